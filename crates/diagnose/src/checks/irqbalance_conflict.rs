//! irqbalance moving interrupts that somebody set by hand.
//!
//! In go whether irqbalance runs, and the affinities of each NIC's receive interrupts, now and
//! earlier. Out comes a finding when they were moved in the interval, or when they look set by
//! hand: four or more queues on single CPUs in ascending order, one after the other, as the
//! drivers' `set_irq_affinity` scripts do and irqbalance does not.
//!
//! Rule: document 000 (stop irqbalance, or it overrides the affinities).

use crate::counters::ratio;
use crate::{Check, CheckOutcome, Context, text};
use nearpath_model::{
    CpuId, CpuSet, Finding, Irq, Nic, Proposal, ProposedChange, Severity, Target, UnitSetting,
};

pub(super) const CHECK: Check = Check {
    name: "irqbalance_conflict",
    looks_at: "irqbalance moving NIC interrupts that were set by hand",
    run,
};

/// From how many queues an ascending order is no chance.
const IN_ORDER: usize = 4;

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    match context.host.daemons.irqbalance {
        Some(false) => return outcome,
        Some(true) => {}
        None => {
            let why = context.why_unknown("host", "irqbalance");
            outcome.not_checked(format!("whether irqbalance runs is unknown{why}"));
            return outcome;
        }
    }
    for nic in context.hardware_nics() {
        let irqs: Vec<&Irq> = context.rx_irqs(nic).into_iter().map(|(_, irq)| irq).collect();
        if irqs.is_empty() {
            outcome.not_checked(context.no_irqs(nic));
        }
        outcome.findings.extend(finding(context, nic, &irqs));
    }
    outcome
}

/// Interrupts whose affinity changed in the interval, with the one before.
fn moved<'a>(context: &Context<'a>, irqs: &[&'a Irq]) -> Vec<(&'a Irq, &'a CpuSet, &'a CpuSet)> {
    let change = |irq: &&'a Irq| {
        let (then, now) =
            (context.earlier_irq(irq.irq)?.affinity.as_ref()?, irq.affinity.as_ref()?);
        (then != now).then_some((*irq, then, now))
    };
    irqs.iter().filter_map(change).collect()
}

/// Whether each interrupt has one CPU, and these ascend with the queues.
fn in_order(irqs: &[&Irq]) -> bool {
    let one = |irq: &&Irq| irq.affinity.as_ref().filter(|cpus| cpus.len() == 1)?.first();
    let cpus: Vec<CpuId> = irqs.iter().filter_map(one).collect();
    cpus.len() == irqs.len() && cpus.len() >= IN_ORDER && cpus.is_sorted_by(|a, b| a < b)
}

fn finding(context: &Context<'_>, nic: &Nic, irqs: &[&Irq]) -> Option<Finding> {
    let moved = moved(context, irqs);
    let finding = if !moved.is_empty() {
        let title = format!("irqbalance runs and interrupts of {} were moved", nic.name);
        let words = moved.iter().take(8).map(|(irq, then, now)| {
            format!("Interrupt {} went from {} to {}.", irq.irq, text::cpus(then), text::cpus(now))
        });
        let mut finding = Finding::new(Severity::Warning, title);
        finding.evidence.extend(words);
        finding.share(ratio(moved.len() as u64, irqs.len() as u64))
    } else if in_order(irqs) {
        let title =
            format!("irqbalance runs while interrupts of {} seem to be set by hand", nic.name);
        Finding::new(Severity::Info, title).evidence(format!(
            "Its {} receive interrupts are on single CPUs in the order of the queues, which is \
             how scripts set them; irqbalance looks every 10 s whether to move them.",
            irqs.len()
        ))
    } else {
        return None;
    };
    let banned: Vec<String> = irqs.iter().map(|irq| irq.irq.to_string()).collect();
    Some(
        finding
            .change(ProposedChange::new(
                Proposal::IrqbalanceBans,
                None,
                banned.join(" "),
                "irqbalance leaves these interrupts alone and still spreads the others, until it restarts.",
            ))
            .change(
                ProposedChange::new(
                    Target::Unit(UnitSetting::irqbalance()),
                    Some("active".to_owned()),
                    "inactive",
                    "Affinities that are set by hand stay as they are.",
                )
                .instead(),
            ),
    )
}
