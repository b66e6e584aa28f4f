//! Two busy queues' interrupts on SMT siblings of one core, while other cores of the node have
//! none.
//!
//! Input: where each queue interrupt goes and how often it came. Output: one finding for each
//! NIC, with the second interrupt of each crowded core moved to a free one.
//!
//! Rule: DPVS's guide to worker tuning (do not use both hardware threads of one core), everoute's analysis of latency
//! tails (SMT interference).

use super::nic_irq_node::affinity_change;
use crate::context::irq_cpus;
use crate::counters::{ratio, total};
use crate::{Check, CheckOutcome, Context, nearest_cpus, severity, text};
use nearpath_model::{CpuId, CpuSet, Finding, Irq, Nic};

pub(super) const CHECK: Check = Check::new(
    "smt_siblings",
    "two busy queues on SMT siblings of one core while other cores are free",
    run,
);

/// Share of a NIC's interrupts from which a queue is busy, and how many there must be at all.
const BUSY: f64 = 0.05;
const LOAD: u64 = 1_000;

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    let topology = &context.host.topology;
    let unknown = |cpu: &&nearpath_model::Cpu| cpu.online && cpu.siblings.is_empty();
    if topology.cpus.iter().any(|cpu| unknown(&cpu)) {
        outcome.not_checked("which CPUs are SMT siblings is unknown");
    }
    if topology.cpus.iter().all(|cpu| cpu.siblings.len() < 2) {
        return outcome;
    }
    for nic in context.hardware_nics().filter(|nic| nic.rx_queues.len() > 1) {
        let irqs = context.rx_irqs(nic);
        if irqs.is_empty() {
            outcome.not_checked(context.no_irqs(nic));
        }
        let busy = busy(context, irqs.into_iter().map(|(_, irq)| irq).collect());
        outcome.findings.extend(finding(context, nic, &busy));
    }
    outcome
}

/// The busy interrupts that go to exactly one CPU, with that CPU.
fn busy<'a>(context: &Context<'_>, irqs: Vec<&'a Irq>) -> Vec<(&'a Irq, CpuId)> {
    let all = total(irqs.iter().map(|irq| context.irq_total(irq)));
    let one_cpu = |irq: &'a Irq| {
        let cpus = irq_cpus(irq)?;
        let share = ratio(context.irq_total(irq), all)?;
        (all >= LOAD && cpus.len() == 1 && share >= BUSY).then_some((irq, cpus.first()?))
    };
    irqs.into_iter().filter_map(one_cpu).collect()
}

fn finding(context: &Context<'_>, nic: &Nic, busy: &[(&Irq, CpuId)]) -> Option<Finding> {
    let topology = &context.host.topology;
    let siblings = |cpu: CpuId| topology.cpu(cpu).map(|cpu| &cpu.siblings);
    let mut taken = CpuSet::new();
    let mut crowded = Vec::new();
    for &(irq, cpu) in busy {
        let core = siblings(cpu).filter(|core| core.len() > 1);
        let other = core.and_then(|core| core.intersection(&taken).iter().find(|&c| c != cpu));
        match other {
            Some(other) if !taken.contains(cpu) => crowded.push((irq, cpu, other)),
            _ => taken.insert(cpu),
        }
    }
    // Cores of the node on which no interrupt of this NIC is served.
    let used = busy.iter().filter_map(|&(_, cpu)| siblings(cpu));
    let used = used.fold(CpuSet::new(), |all, core| all.union(core));
    let mut free: Vec<CpuId> = nearest_cpus(context.host, nic.numa_node);
    free.retain(|&cpu| {
        !used.contains(cpu) && siblings(cpu).and_then(CpuSet::first).is_none_or(|c| c == cpu)
    });
    if crowded.is_empty() || free.is_empty() {
        return None;
    }
    let busy_irqs = total(crowded.iter().map(|(irq, ..)| context.irq_total(irq)));
    let severity = severity::of_traffic(context.rate(busy_irqs));
    let title = format!(
        "{} of {} {} a core with another while {} free",
        text::count(crowded.len() as u64, "busy queue"),
        nic.name,
        if crowded.len() == 1 { "shares" } else { "share" },
        if free.len() == 1 { "a core is".to_owned() } else { format!("{} cores are", free.len()) },
    );
    let mut finding = Finding::new(severity, title)
        .share(ratio(crowded.len() as u64 * 2, nic.rx_queues.len() as u64), "its queues");
    for (irq, cpu, other) in &crowded {
        let count = context.irq_total(irq);
        finding = finding.evidence(format!(
            "Interrupt {} ({count} {}) is on CPU {cpu}, the SMT sibling of CPU {other}.",
            irq.irq,
            context.since()
        ));
    }
    for ((irq, ..), cpu) in crowded.iter().zip(free) {
        let why = format!("CPU {cpu} is the first of a core without interrupts of {}.", nic.name);
        finding = finding.change(affinity_change(irq, &CpuSet::from_iter([cpu]), why));
    }
    Some(finding)
}
