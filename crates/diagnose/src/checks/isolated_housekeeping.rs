//! Receive work on CPUs that were isolated from it.
//!
//! Input: the isolated and `nohz_full` CPUs, the NICs' interrupts and RPS. Output: one finding
//! for each NIC that works there, with housekeeping CPUs instead. XPS is skipped: `xps_cpus`
//! says which queue a sender's CPU uses and brings no work to a CPU.
//!
//! Rules: DPVS's guide to worker tuning (keep interrupts off the workers' CPUs), Documentation/admin-guide/
//! kernel-parameters.txt (`isolcpus`, `nohz_full`).

use super::nic_irq_node::affinity_change;
use crate::context::irq_cpus;
use crate::counters::{ratio, total};
use crate::place::spared;
use crate::steering::rps_change;
use crate::{Check, CheckOutcome, Context, housekeeping, nearest_cpus, severity, spread, text};
use nearpath_model::{CpuSet, Finding, Irq, Nic, RxQueue};

pub(super) const CHECK: Check = Check::new(
    "isolated_housekeeping",
    "NIC interrupts and RPS on isolated or nohz_full CPUs",
    run,
);

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    let kernel = &context.host.kernel;
    for (fact, cpus) in [("isolated", &kernel.isolated), ("nohz_full", &kernel.nohz_full)] {
        if cpus.is_none() {
            let why = context.why_unknown("host", fact);
            outcome.not_checked(format!("which CPUs are {fact} is unknown{why}"));
        }
    }
    let isolated = spared(context.host);
    if isolated.is_empty() || context.host.topology.online.is_subset(&isolated) {
        return outcome;
    }
    for nic in context.nics() {
        outcome.findings.extend(finding(context, nic, &isolated));
    }
    outcome
}

fn finding(context: &Context<'_>, nic: &Nic, isolated: &CpuSet) -> Option<Finding> {
    let meets =
        |cpus: Option<&CpuSet>| cpus.is_some_and(|cpus| !cpus.intersection(isolated).is_empty());
    // An interrupt with a wide affinity goes to one CPU: the effective affinity shows which.
    let irqs: Vec<&Irq> =
        context.queue_irqs(nic).into_iter().filter(|irq| meets(irq_cpus(irq))).collect();
    let queues: Vec<&RxQueue> =
        nic.rx_queues.iter().filter(|queue| meets(queue.rps_cpus.as_ref())).collect();
    if irqs.is_empty() && queues.is_empty() {
        return None;
    }
    let there = irqs.iter().flat_map(|irq| context.irq_counts(irq));
    let fired = total(there.filter(|(cpu, _)| isolated.contains(*cpu)).map(|(_, n)| n));
    let severity = severity::of_events(context, fired);
    let title = format!("{} interrupts isolated {}", nic.name, text::cpus_brief(isolated));
    let all = context.queue_irqs(nic).len() as u64;
    let mut finding =
        Finding::new(severity, title).share(ratio(irqs.len() as u64, all), "its interrupts");
    for irq in irqs.iter().take(8) {
        let cpus = irq_cpus(irq).map(text::cpus).unwrap_or_default();
        finding = finding.evidence(format!("Interrupt {} goes to {cpus}.", irq.irq));
    }
    let near = spread(&nearest_cpus(context.host, nic.numa_node), irqs.len());
    for (irq, cpu) in irqs.iter().zip(near) {
        let why = format!("CPU {cpu} is not isolated.");
        finding = finding.change(affinity_change(irq, &CpuSet::from_iter([cpu]), why));
    }
    for queue in queues {
        let cpus = queue.rps_cpus.as_ref().map(text::cpus).unwrap_or_default();
        finding = finding.evidence(format!("RPS of rx-{} steers to {cpus}.", queue.queue));
        let kept = queue.rps_cpus.clone().unwrap_or_default();
        let kept = kept.intersection(&housekeeping(context.host));
        let why = "Leaves isolated CPUs out.";
        finding = finding.change(rps_change(nic, queue, &kept, why));
    }
    Some(finding)
}
