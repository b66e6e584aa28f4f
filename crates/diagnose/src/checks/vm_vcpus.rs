//! vCPUs that share a CPU, that float over nodes, or that are more than the host's CPUs; and memory of the guest on
//! another node.
//!
//! Input: where the vCPU threads of all virtual machines may run, the CPUs that are online, the node of each guest's
//! memory. Output: one finding for each condition, and of the last two one for each virtual machine.
//!
//! Rules: Linaro's latencies to virtual machines (a vCPU that waits for its CPU delays the packet that woke it),
//! libvirt's `<vcpupin>` and `<numatune>`.

use crate::vms::{name, pinned, traffic, union, vcpus, vms};
use crate::{Check, CheckOutcome, Context, cpus_near_node, severity, text};
use nearpath_model::{CpuId, CpuSet, Finding, Vm, VmThread};
use std::collections::BTreeMap;

pub(super) const CHECK: Check =
    Check::new("vm_vcpus", "vCPUs that share CPUs or float, and guests off their memory", run);

/// Share of the memory on a node from which it is the guest's node, in percent.
const ON_NODE: f64 = 80.0;
/// Share of its runnable time that a vCPU has waited, in percent, from which it is evidence.
const WAITED: f64 = 1.0;

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    let vms = vms(context, &mut outcome);
    let mut pins: BTreeMap<CpuId, Vec<String>> = BTreeMap::new();
    let mut traffic_of_all: Option<f64> = None;
    for vm in vms {
        let vcpus = vcpus(context, vm, &mut outcome);
        for (thread, cpus) in &vcpus {
            if let Some(cpu) = pinned(cpus) {
                let which = format!("{} of {}", text::clean(&thread.comm), name(vm));
                pins.entry(cpu).or_default().push(which);
            }
        }
        outcome.findings.extend(floating(context, vm, &vcpus));
        if !vcpus.is_empty() {
            outcome.findings.extend(off_memory(
                context,
                vm,
                &union(&vcpus),
                &mut outcome.not_checked,
            ));
        }
        let more = traffic(context, vm);
        traffic_of_all = more.map(|more| more + traffic_of_all.unwrap_or(0.0)).or(traffic_of_all);
    }
    outcome.findings.extend(shared(context, &pins, traffic_of_all));
    outcome.findings.extend(too_many(context, vms, traffic_of_all));
    outcome
}

/// CPUs to which several vCPUs are pinned.
fn shared(
    context: &Context<'_>,
    pins: &BTreeMap<CpuId, Vec<String>>,
    traffic: Option<f64>,
) -> Option<Finding> {
    let shared: Vec<_> = pins.iter().filter(|(_, vcpus)| vcpus.len() > 1).collect();
    let (cpu, vcpus) = shared.first()?;
    let cpus: CpuSet = shared.iter().map(|(cpu, _)| **cpu).collect();
    let severity = severity::of_condition(context, true, traffic, severity::TRAFFIC_PER_S);
    let title = format!("several vCPUs are pinned to the same CPU: {}", text::cpus(&cpus));
    let shown: Vec<&str> = vcpus.iter().take(4).map(String::as_str).collect();
    Some(
        Finding::new(severity, title)
            .evidence(format!("CPU {cpu}: {}.", shown.join(", ")))
            .evidence("While one runs, packets for the other wait."),
    )
}

/// More vCPUs than CPUs.
fn too_many(context: &Context<'_>, vms: &[Vm], traffic: Option<f64>) -> Option<Finding> {
    let vcpus: usize = vms.iter().map(|vm| vm.vcpus.len()).sum();
    let online = context.host.topology.online.len();
    if online == 0 || vcpus <= online {
        return None;
    }
    let severity = severity::of_condition(context, true, traffic, severity::TRAFFIC_PER_S);
    let title = format!("{vcpus} vCPUs on {online} CPUs");
    let guests = text::count(vms.len() as u64, "guest");
    let evidence = format!("Of {guests}: while some run, packets for others wait.");
    Some(Finding::new(severity, title).evidence(evidence))
}

/// vCPUs that may run on several nodes.
fn floating(context: &Context<'_>, vm: &Vm, vcpus: &[(&VmThread, CpuSet)]) -> Option<Finding> {
    if context.nodes_with_cpus() < 2 {
        return None;
    }
    let floats = |cpus: &CpuSet| context.host.topology.nodes_of(cpus).len() > 1;
    let floating: Vec<_> = vcpus.iter().filter(|(_, cpus)| floats(cpus)).collect();
    let (_, cpus) = floating.first()?;
    let severity = severity::UNFELT;
    let count = text::count(floating.len() as u64, "vCPU");
    let title = format!("{}: {count} may run on several nodes", name(vm));
    let finding = Finding::new(severity, title)
        .evidence(format!("They may run on {}.", text::cpus_brief(cpus)))
        .evidence("Pin them to the node of the guest's memory (virsh vcpupin, <vcpupin>).");
    Some(match longest_wait(&floating) {
        Some((thread, share)) => finding.evidence(format!(
            "{} has waited for a CPU for {}% of its runnable time.",
            text::clean(&thread.comm),
            text::digits(share)
        )),
        None => finding,
    })
}

/// The vCPU that has waited most.
fn longest_wait<'a>(vcpus: &[&(&'a VmThread, CpuSet)]) -> Option<(&'a VmThread, f64)> {
    let share = |thread: &'a VmThread| {
        let (ran, waited) = (thread.run_ns?, thread.wait_ns?);
        let share = waited as f64 * 100.0 / (ran as f64 + waited as f64);
        (share >= WAITED).then_some((thread, share))
    };
    let shares = vcpus.iter().filter_map(|(thread, _)| share(thread));
    shares.max_by(|(_, a), (_, b)| a.total_cmp(b))
}

/// A guest whose vCPUs cannot run on the node that has most of its memory.
fn off_memory(
    context: &Context<'_>,
    vm: &Vm,
    cpus: &CpuSet,
    not_checked: &mut Vec<String>,
) -> Option<Finding> {
    if context.nodes_with_cpus() < 2 {
        return None;
    }
    let Some((node, share)) = vm.main_node() else {
        not_checked.push(format!("the node of the memory of {} is unknown", name(vm)));
        return None;
    };
    let near = cpus_near_node(&context.host.topology, Some(node));
    if share < ON_NODE || near.is_empty() || !cpus.intersection(&near).is_empty() {
        return None;
    }
    let severity =
        severity::of_condition(context, true, traffic(context, vm), severity::TRAFFIC_PER_S);
    let title = format!("{}: its vCPUs run on another node than its memory", name(vm));
    Some(
        Finding::new(severity, title)
            .evidence(format!("{}% of its memory is on node {node}.", text::digits(share)))
            .evidence(format!("Its vCPUs may run on {} only.", text::cpus(cpus)))
            .evidence(
                "Start it with its memory on their node (<numatune>), or pin them to the memory's.",
            ),
    )
}
