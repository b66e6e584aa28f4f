//! vhost workers and emulator threads of virtual machines on the wrong CPUs: off the node or the last-level cache of
//! the vCPUs that they copy packets for, off the node of the guest's memory, or on a vCPU's CPU.
//!
//! Input: where the threads of each virtual machine may run, the node of its memory, and the packets of its taps.
//! Output: up to one finding for each of these conditions and virtual machine, with the affinity that ends it.
//!
//! Rules: Linaro's latencies to virtual machines ("move vhost process to CPU#3"), drivers/vhost/vhost.c (a worker has
//! the affinity of the thread that opened vhost), libvirt's `<emulatorpin>` and `<vcpupin>`.

use crate::vms::{affinity, name, pinned, placed, traffic, union, vcpus, vms, workers};
use crate::{Check, CheckOutcome, Context, cpus_near_node, severity, text};
use nearpath_model::{CpuSet, Finding, ProposedChange, Vm, VmThread};

pub(super) const CHECK: Check = Check::new(
    "vm_vhost",
    "vhost and emulator threads on vCPUs' CPUs, or off the node or cache of their guest",
    run,
);

/// Changes proposed for each finding.
const MAX_CHANGES: usize = 16;
/// Share of the memory on a node from which it is the guest's node, in percent.
const ON_NODE: f64 = 80.0;

type Threads<'a> = [(&'a VmThread, CpuSet)];

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    for vm in vms(context, &mut outcome) {
        let vcpus = vcpus(context, vm, &mut outcome);
        let workers = workers(context, vm, &mut outcome);
        if vcpus.is_empty() {
            continue;
        }
        // One of them at most: each asks for another place.
        let misplaced = off_node(context, vm, &vcpus, &workers)
            .or_else(|| off_cache(context, vm, &vcpus, &workers))
            .or_else(|| off_memory(context, vm, (&vcpus, &workers), &mut outcome.not_checked));
        outcome.findings.extend(misplaced);
        let emulator: Vec<&VmThread> = vm.emulator.iter().collect();
        let emulator = placed(context, &emulator);
        outcome.findings.extend(sharing(context, vm, "vhost", &vcpus, &workers));
        outcome.findings.extend(sharing(context, vm, "emulator", &vcpus, &emulator));
    }
    outcome
}

/// Workers that cannot run on any node of the vCPUs.
fn off_node(
    context: &Context<'_>,
    vm: &Vm,
    vcpus: &Threads<'_>,
    workers: &Threads<'_>,
) -> Option<Finding> {
    let topology = &context.host.topology;
    let cpus = union(vcpus);
    let nodes = topology.nodes_of(&cpus);
    let [node] = nodes.as_slice() else { return None };
    let near = cpus_near_node(topology, Some(*node));
    let off: Vec<_> =
        workers.iter().filter(|(_, cpus)| cpus.intersection(&near).is_empty()).cloned().collect();
    let title = format!("{}: vhost runs on another node than the vCPUs", name(vm));
    let evidence = format!("The vCPUs run on {}, node {node}.", text::cpus(&cpus));
    let to = free(&near, vcpus);
    finding(context, vm, &off, (title, evidence), &to, "Copies packets on the node of the guest.")
}

/// Workers that cannot run under the cache of any vCPU, though on their node.
fn off_cache(
    context: &Context<'_>,
    vm: &Vm,
    vcpus: &Threads<'_>,
    workers: &Threads<'_>,
) -> Option<Finding> {
    let topology = &context.host.topology;
    let cpus = union(vcpus);
    let (near, nodes) = (context.llc_cpus(&cpus), topology.nodes_of(&cpus));
    if near.is_empty() || nodes.len() != 1 {
        return None;
    }
    let is_off =
        |cpus: &CpuSet| cpus.intersection(&near).is_empty() && topology.nodes_of(cpus) == nodes;
    let off: Vec<_> = workers.iter().filter(|(_, cpus)| is_off(cpus)).cloned().collect();
    let title = format!("{}: vhost runs under another last-level cache than the vCPUs", name(vm));
    let evidence = format!("The vCPUs share a cache with {}.", text::cpus(&near));
    let to = free(&near, vcpus);
    let why = "The guest finds its packets in the cache that they were copied to.";
    finding(context, vm, &off, (title, evidence), &to, why)
}

/// Workers that cannot run on the node that has most of the guest's memory.
fn off_memory(
    context: &Context<'_>,
    vm: &Vm,
    (vcpus, workers): (&Threads<'_>, &Threads<'_>),
    not_checked: &mut Vec<String>,
) -> Option<Finding> {
    if context.nodes_with_cpus() < 2 || workers.is_empty() {
        return None;
    }
    let Some((node, share)) = vm.main_node() else {
        not_checked.push(format!("the node of the memory of {} is unknown", name(vm)));
        return None;
    };
    let near = cpus_near_node(&context.host.topology, Some(node));
    let is_off = |cpus: &CpuSet| cpus.intersection(&near).is_empty();
    let off: Vec<_> = workers.iter().filter(|(_, cpus)| is_off(cpus)).cloned().collect();
    if share < ON_NODE {
        return None;
    }
    let title = format!("{}: vhost runs on another node than the guest's memory", name(vm));
    let evidence = format!("{}% of its memory is on node {node}.", text::digits(share));
    finding(
        context,
        vm,
        &off,
        (title, evidence),
        &free(&near, vcpus),
        "Copies packets to memory of its own node.",
    )
}

/// Threads that run on CPUs to which a vCPU is pinned: they have no other, or may also come there.
fn sharing(
    context: &Context<'_>,
    vm: &Vm,
    what: &str,
    vcpus: &Threads<'_>,
    threads: &Threads<'_>,
) -> Option<Finding> {
    let taken: CpuSet = vcpus.iter().filter_map(|(_, cpus)| pinned(cpus)).collect();
    // vCPUs that float share CPUs with everything: another check reports them.
    if vcpus.iter().any(|(_, cpus)| pinned(cpus).is_none()) {
        return None;
    }
    let shares = |cpus: &CpuSet| !cpus.intersection(&taken).is_empty();
    let sharing: Vec<_> = threads.iter().filter(|(_, cpus)| shares(cpus)).cloned().collect();
    let only = sharing.iter().filter(|(_, cpus)| cpus.is_subset(&taken)).count();
    let title = format!("{}: {what} threads may run on CPUs of its vCPUs", name(vm));
    let evidence = match only {
        0 => format!("Its vCPUs are pinned to {}.", text::cpus(&taken)),
        n => {
            let count = text::count(n as u64, "thread");
            format!("Its vCPUs are pinned to {}; {count} cannot run elsewhere.", text::cpus(&taken))
        }
    };
    let topology = &context.host.topology;
    let near = topology
        .nodes_of(&taken)
        .into_iter()
        .fold(CpuSet::new(), |all, node| all.union(&cpus_near_node(topology, Some(node))));
    let near = if near.is_empty() { topology.online.clone() } else { near };
    let to = free(&near.intersection(&topology.online), vcpus);
    let why = "Leaves the vCPU its CPU: while another thread has it, the guest's time is stolen.";
    finding(context, vm, &sharing, (title, evidence), &to, why)
}

/// The CPUs without those that a vCPU is pinned to.
fn free(cpus: &CpuSet, vcpus: &Threads<'_>) -> CpuSet {
    let taken: CpuSet = vcpus.iter().filter_map(|(_, cpus)| pinned(cpus)).collect();
    cpus.difference(&taken)
}

/// One finding for the threads, if there are any. Without a CPU to move them to, it proposes nothing.
fn finding(
    context: &Context<'_>,
    vm: &Vm,
    threads: &Threads<'_>,
    (title, evidence): (String, String),
    to: &CpuSet,
    why: &str,
) -> Option<Finding> {
    let (first, cpus) = threads.first()?;
    let severity =
        severity::of_condition(context, true, traffic(context, vm), severity::TRAFFIC_PER_S);
    let count = text::count(threads.len() as u64, "thread");
    let example = format!("{} may run on {}", text::clean(&first.comm), text::cpus_brief(cpus));
    let mut finding =
        Finding::new(severity, title).evidence(evidence).evidence(format!("{count}: {example}."));
    if to.is_empty() {
        return Some(finding.evidence("No other CPU of the node is free of them."));
    }
    for (thread, cpus) in threads.iter().take(MAX_CHANGES) {
        let before = Some(cpus.to_string());
        finding =
            finding.change(ProposedChange::new(affinity(vm, thread), before, to.to_string(), why));
    }
    Some(finding)
}
