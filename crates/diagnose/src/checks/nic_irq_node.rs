//! NIC interrupts that go to another node than the NIC is on.
//!
//! Input: each queue interrupt's effective affinity and the NIC's node. Output: one finding for
//! each NIC with the interrupts that leave its node, and for each a near CPU.
//!
//! Rule: everoute's analysis of latency tails (set the NIC's IRQs to its node), the chapter on NUMA for SR-IOV paths.
//! Buffers come from the node of the CPU that polls (`page_pool_create` with `NUMA_NO_NODE`, net/core/page_pool.c).

use crate::context::irq_cpus;
use crate::counters::{ratio, total};
use crate::{
    Check, CheckOutcome, Context, cpus_near_node, nearest_cpus, severity, spread, text, why_near,
};
use nearpath_model::{CpuSet, Finding, Irq, Nic, NodeId, ProposedChange, SettingFile, Subject};

pub(super) const CHECK: Check =
    Check::new("nic_irq_node", "NIC interrupts that go to another node than the NIC's", run);

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    if context.nodes_with_cpus() < 2 {
        return outcome;
    }
    for nic in context.hardware_nics() {
        let Some(node) = nic.numa_node else {
            let why = context.why_unknown(&format!("nic {}", nic.name), "numa_node");
            outcome.not_checked(format!("the node of {} is unknown{why}", nic.name));
            continue;
        };
        let irqs = context.queue_irqs(nic);
        if irqs.is_empty() {
            outcome.not_checked(context.no_irqs(nic));
            continue;
        }
        if irqs.iter().any(|irq| irq_cpus(irq).is_none()) {
            outcome.not_checked(format!("where some interrupts of {} go is unknown", nic.name));
        }
        let near = cpus_near_node(&context.host.topology, Some(node));
        let off: Vec<&Irq> = irqs.iter().copied().filter(|irq| is_off(irq, &near)).collect();
        if !off.is_empty() {
            outcome.findings.push(finding(context, nic, node, &irqs, &off));
        }
    }
    outcome
}

/// Whether an interrupt goes elsewhere: certainly, if only its allowed CPUs are known.
fn is_off(irq: &Irq, near: &CpuSet) -> bool {
    match (&irq.effective_affinity, &irq.affinity) {
        (Some(effective), _) if !effective.is_empty() => !effective.is_subset(near),
        (_, Some(allowed)) if !allowed.is_empty() => allowed.intersection(near).is_empty(),
        _ => false,
    }
}

fn finding(context: &Context<'_>, nic: &Nic, node: NodeId, all: &[&Irq], off: &[&Irq]) -> Finding {
    let count = |irqs: &[&Irq]| total(irqs.iter().map(|irq| context.irq_total(irq)));
    let (off_count, all_count) = (count(off), count(all));
    let severity = severity::of_traffic(context.rate(off_count));
    let places =
        off.iter().filter_map(|irq| irq_cpus(irq)).fold(CpuSet::new(), |all, c| all.union(c));
    let topology = &context.host.topology;
    let nodes = topology.nodes_of(&places);
    let which = format!("{} has {} of {} interrupts", nic.name, off.len(), all.len());
    let title = match topology.is_cpuless(node) {
        false => format!("{which} off its node {node}"),
        true => format!("{which} off the CPUs nearest to its node {node}"),
    };
    let near = match topology.is_cpuless(node) {
        false => String::new(),
        true => {
            let near = text::cpus(&cpus_near_node(topology, Some(node)));
            format!(", which has no CPUs: {near} are nearest")
        }
    };
    let mut finding = Finding::new(severity, title)
        .evidence(format!(
            "{} is on node {node}{near}; these interrupts go to {} on node {}.",
            nic.name,
            text::cpus(&places),
            text::list(&nodes)
        ))
        .evidence(format!(
            "Most drivers allocate receive buffers where the queue is polled: {} writes these packets to node {}.",
            nic.name,
            text::list(&nodes)
        ))
        .share(ratio(off_count, all_count), "its interrupts")
        .about([Subject::Nic(nic.name.clone())]);
    if all_count > 0 {
        let since = context.since();
        finding = finding
            .evidence(format!("{off_count} of its {all_count} interrupts {since} were these."));
    }
    if context.host.daemons.irqbalance == Some(true) {
        finding = finding.evidence(
            "irqbalance runs: it moves interrupts again unless these are banned from it.",
        );
    }
    let cpus = spread(&nearest_cpus(context.host, Some(node)), off.len());
    for (irq, cpu) in off.iter().zip(cpus) {
        let near = why_near(topology, cpu, Some(node), &nic.name);
        let why = format!("CPU {cpu} {near}.");
        finding = finding.change(affinity_change(irq, &CpuSet::from_iter([cpu]), why));
    }
    finding
}

/// Sets where an interrupt goes.
pub(super) fn affinity_change(irq: &Irq, cpus: &CpuSet, why: impl Into<String>) -> ProposedChange {
    ProposedChange::new(
        SettingFile::irq_affinity(irq.irq),
        irq.affinity.as_ref().map(CpuSet::to_string),
        cpus.to_string(),
        why,
    )
}
