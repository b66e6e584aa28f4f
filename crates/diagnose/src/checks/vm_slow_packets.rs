//! Packets into virtual machines that were late because vhost or a vCPU was without a CPU, or their NIC did not
//! interrupt.
//!
//! Input: what was measured of the path into the guests (`measure vm --slow`), and where the threads of the virtual
//! machines may run. Output: a finding for each virtual machine and part of the path, with another place for vhost where
//! a task had its CPU.
//!
//! Rules: the measured times; Linaro's latencies to virtual machines ("move vhost process to CPU#3").

use crate::place::spared;
use crate::vms::{affinity, name, pinned, placed, vms};
use crate::{Check, CheckOutcome, Context, cpus_near_node, severity, text};
use nearpath_model::vm::{MeasuredVm, VmLate, VmPart, VmQueue};
use nearpath_model::{CpuId, CpuSet, Finding, ProposedChange, Severity, Vm, VmThread};
use std::collections::{BTreeMap, BTreeSet};

pub(super) const CHECK: Check = Check::new(
    "vm_slow_packets",
    "late packets into virtual machines: vhost or a vCPU without a CPU, a NIC that does not interrupt",
    run,
);

/// Changes proposed for each finding.
const MAX_CHANGES: usize = 16;
/// Tasks named in the evidence.
const NAMED: usize = 3;

/// The late packets of a virtual machine that spent most of their time in one part of their path.
#[derive(Default)]
struct Late {
    packets: u64,
    time_ns: u64,
    behind: BTreeMap<String, u64>,
}

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    let vms = vms(context, &mut outcome);
    let Some(measured) = context.vm else {
        if vms.iter().any(|vm| !vm.taps.is_empty()) {
            outcome.not_checked("packets into virtual machines were not measured".to_owned());
        }
        return outcome;
    };
    let ways = measured.vms.iter().any(|vm| all(vm) > 0);
    if ways && measured.vms.iter().all(|vm| lates(vm).next().is_none()) {
        outcome
            .not_checked("packets into virtual machines were measured without --slow".to_owned());
    }
    for one in &measured.vms {
        // A virtual machine that has ended since is not among the facts.
        let vm = vms.iter().find(|vm| Some(vm.pid) == one.pid);
        let title = vm.map_or_else(|| name_of(one), name);
        for (part, late) in parts(one) {
            if let Some(finding) =
                finding(context, measured.duration_s, (one, vm), &title, part, &late)
            {
                outcome.findings.push(finding);
            }
        }
    }
    outcome
}

fn name_of(vm: &MeasuredVm) -> String {
    let name = vm.name.as_deref().or(vm.comm.as_deref()).unwrap_or("a virtual machine");
    match vm.pid {
        Some(pid) => format!("{} ({pid})", text::clean(name)),
        None => text::clean(name),
    }
}

/// What was late of all ways into a virtual machine.
fn lates(vm: &MeasuredVm) -> impl Iterator<Item = &VmLate> {
    let queues = vm.queues.iter().filter_map(|queue| queue.late.as_ref());
    let devices = vm.device_interrupts.iter().filter_map(|one| one.late.as_ref());
    let backends = vm.backend_interrupts.iter().filter_map(|one| one.late.as_ref());
    queues.chain(devices).chain(backends)
}

fn parts(vm: &MeasuredVm) -> BTreeMap<VmPart, Late> {
    let mut parts: BTreeMap<VmPart, Late> = BTreeMap::new();
    for part in lates(vm).flat_map(|late| &late.parts) {
        let sum = parts.entry(part.part).or_default();
        sum.packets = sum.packets.saturating_add(part.packets);
        sum.time_ns = sum.time_ns.saturating_add(part.time_ns);
        for (comm, packets) in &part.behind {
            let behind = sum.behind.entry(comm.clone()).or_default();
            *behind = behind.saturating_add(*packets);
        }
    }
    parts
}

/// Packets that vhost took, and interrupts of the other ways.
fn all(vm: &MeasuredVm) -> u64 {
    let queues = vm.queues.iter().map(|queue| queue.taken);
    let devices = vm.device_interrupts.iter().map(|one| one.interrupts);
    let backends = vm.backend_interrupts.iter().map(|one| one.interrupts);
    queues.chain(devices).chain(backends).fold(0, u64::saturating_add)
}

fn finding(
    context: &Context<'_>,
    duration_s: f64,
    (measured, vm): (&MeasuredVm, Option<&Vm>),
    title: &str,
    part: VmPart,
    late: &Late,
) -> Option<Finding> {
    let most = most(&late.behind);
    // Of an idle CPU the wait is its wake-up.
    let idle = most.is_some_and(|comm| comm.starts_with("swapper/"));
    let behind = most.map_or_else(String::new, |comm| format!(", behind {}", text::clean(comm)));
    let what = match part {
        VmPart::Nic => "wait at the NIC for its interrupt".to_owned(),
        VmPart::VhostWaited if idle => "wait until vhost's idle CPU wakes up".to_owned(),
        VmPart::VcpuWaited if idle => "wait until a vCPU's idle CPU wakes up".to_owned(),
        VmPart::VhostWaited => format!("wait until vhost has a CPU{behind}"),
        VmPart::VhostThrottled => "wait for the CPU quota of vhost".to_owned(),
        VmPart::VcpuWaited => format!("wait until a vCPU has a CPU{behind}"),
        VmPart::VcpuThrottled => "wait for the CPU quota of its vCPUs".to_owned(),
        // The stages say why packets are late before the tap; the rest is work, or unknown.
        VmPart::Interrupt | VmPart::Handler | VmPart::Vhost | VmPart::Vcpu => return None,
    };
    let (packets, all) = (late.packets, all(measured).max(late.packets));
    if packets == 0 || duration_s.is_nan() || duration_s <= 0.0 {
        return None;
    }
    let severity = severity::of_tail(packets as f64, all, duration_s);
    let limit = lates(measured).map(|late| late.slow_ns).max().unwrap_or(0);
    let each = late.time_ns / packets;
    let mut finding = Finding::new(severity, format!("{title}: packets into it {what}"))
        .share(Some(packets as f64 / all as f64), "its packets")
        .evidence(format!(
            "{} that took {} or longer spent most of it so, {} each.",
            text::count(packets, "packet"),
            text::time(limit),
            text::time(each)
        ));
    finding.cost.seconds_per_second = Some(late.time_ns as f64 / 1e9 / duration_s);
    finding.cost.per_packet_ns = Some(each);
    if !late.behind.is_empty() {
        finding = finding.evidence(format!("Had the CPU for longest: {}.", named(&late.behind)));
    }
    finding = match (part, vm) {
        (VmPart::Nic, _) => finding.evidence(
            "Interrupt moderation holds them (ethtool -c), or interrupts were off on the CPU.",
        ),
        (VmPart::VhostWaited | VmPart::VcpuWaited, _) if idle => {
            finding.evidence("Deep idle states take long to leave, as does an idle virtual CPU.")
        }
        // What is hardly felt is not moved.
        (VmPart::VhostWaited, Some(vm)) if severity > Severity::Info => {
            elsewhere(context, vm, measured, finding)
        }
        (VmPart::VcpuWaited, Some(vm)) => on_cpus(vm, finding),
        (VmPart::VhostThrottled | VmPart::VcpuThrottled, _) => finding
            .evidence("Its cgroup had used up cpu.max: a longer quota, or none, would end it."),
        _ => finding,
    };
    Some(finding)
}

/// The task behind which most packets waited.
fn most(behind: &BTreeMap<String, u64>) -> Option<&str> {
    behind.iter().max_by_key(|(_, packets)| **packets).map(|(comm, _)| comm.as_str())
}

/// `hog (237 packets), sh (3)`.
fn named(behind: &BTreeMap<String, u64>) -> String {
    let mut tasks: Vec<(&String, &u64)> = behind.iter().collect();
    tasks.sort_by_key(|(comm, packets)| (std::cmp::Reverse(**packets), (*comm).clone()));
    let one = |(place, (comm, packets)): (usize, (&String, &u64))| match place {
        0 => format!("{} ({})", text::clean(comm), text::count(*packets, "packet")),
        _ => format!("{} ({packets})", text::clean(comm)),
    };
    tasks.into_iter().take(NAMED).enumerate().map(one).collect::<Vec<_>>().join(", ")
}

/// Where the vCPUs may run; nothing moves them.
fn on_cpus(vm: &Vm, finding: Finding) -> Finding {
    let cpus = vm.vcpus.iter().filter_map(|vcpu| vcpu.thread.as_ref()?.cpus.as_ref());
    let cpus = cpus.fold(CpuSet::new(), |all, cpus| all.union(cpus));
    if cpus.is_empty() {
        return finding;
    }
    finding.evidence(format!(
        "The vCPUs may run on {}: their pins belong to the guest's configuration (<vcpupin>).",
        text::cpus_brief(&cpus)
    ))
}

/// Moves the vhost workers that packets waited for: on the node of the vCPUs, to CPUs that no virtual machine's vCPU is
/// pinned to, and off those where they waited.
fn elsewhere(
    context: &Context<'_>,
    vm: &Vm,
    measured: &MeasuredVm,
    mut finding: Finding,
) -> Finding {
    let waited = |queue: &&VmQueue| {
        let parts = queue.late.iter().flat_map(|late| &late.parts);
        parts.into_iter().any(|part| part.part == VmPart::VhostWaited && part.packets > 0)
    };
    let tids: Vec<u32> =
        measured.queues.iter().filter(waited).flat_map(|queue| queue.workers.clone()).collect();
    let workers: Vec<&VmThread> =
        vm.vhost_workers.iter().filter(|thread| tids.contains(&thread.tid)).collect();
    for (thread, cpus) in placed(context, &workers).into_iter().take(MAX_CHANGES) {
        finding = finding.evidence(format!(
            "{} may run on {}.",
            text::clean(&thread.comm),
            text::cpus_brief(&cpus)
        ));
        let to = others(context, vm, &cpus);
        if to.is_empty() {
            finding = finding.evidence("No other CPU is free of vCPUs and of workers that wait.");
            continue;
        }
        finding = finding.change(ProposedChange::new(
            affinity(vm, thread),
            Some(cpus.to_string()),
            to.to_string(),
            "Copies packets where that task does not run.",
        ));
    }
    finding
}

/// CPUs to which vhost workers are pinned that wait there, of all virtual machines.
fn waited_on(context: &Context<'_>) -> CpuSet {
    let Some(measured) = context.vm else { return CpuSet::new() };
    let waits = |queue: &&VmQueue| {
        let parts = queue.late.iter().flat_map(|late| &late.parts);
        let waited = parts.filter(|part| part.part == VmPart::VhostWaited);
        let packets = waited.fold(0u64, |sum, part| sum.saturating_add(part.packets));
        let all = queue.taken.max(packets);
        severity::of_tail(packets as f64, all, measured.duration_s) > Severity::Info
    };
    let queues = measured.vms.iter().flat_map(|vm| &vm.queues).filter(waits);
    let tids: BTreeSet<u32> = queues.flat_map(|queue| queue.workers.clone()).collect();
    let workers = context.host.vms.iter().flat_map(|vm| &vm.vhost_workers);
    let waiting: Vec<&VmThread> = workers.filter(|thread| tids.contains(&thread.tid)).collect();
    placed(context, &waiting).iter().filter_map(|(_, cpus)| pinned(cpus)).collect()
}

/// CPUs near the vCPUs that neither a vCPU nor these threads have, that are not isolated, and on which no vhost worker
/// waits.
fn others(context: &Context<'_>, vm: &Vm, cpus: &CpuSet) -> CpuSet {
    let topology = &context.host.topology;
    let pins = |vm: &Vm| -> Vec<CpuId> {
        let threads = vm.vcpus.iter().filter_map(|vcpu| vcpu.thread.as_ref()?.cpus.as_ref());
        threads.filter_map(pinned).collect()
    };
    let own: CpuSet = pins(vm).into_iter().collect();
    let vcpus: CpuSet = context.host.vms.iter().flat_map(pins).collect();
    let taken = vcpus.union(&waited_on(context)).union(&spared(context.host));
    let near = |cpus: &CpuSet| {
        let nodes = topology.nodes_of(cpus).into_iter();
        nodes.fold(CpuSet::new(), |all, node| all.union(&cpus_near_node(topology, Some(node))))
    };
    let free =
        |near: &CpuSet| near.intersection(&topology.online).difference(&taken).difference(cpus);
    // Near the vCPUs, else where it is, else anywhere.
    let places = [near(&own), near(cpus), topology.online.clone()];
    places.iter().map(free).find(|free| !free.is_empty()).unwrap_or_default()
}
