//! irqbalance moving interrupts that were set manually.
//!
//! Input: whether irqbalance runs, and the affinities of each NIC's receive interrupts, now and
//! earlier. Output: a finding for each NIC of which it moved some in the interval. Single CPUs in
//! ascending order prove nothing: drivers set them themselves.
//!
//! Rule: everoute's analysis of latency tails (stop irqbalance, or it overrides the affinities).

use crate::counters::ratio;
use crate::{Check, CheckOutcome, Context, text};
use nearpath_model::{
    CpuSet, Finding, Irq, Nic, Proposal, ProposedChange, Severity, Subject, Target, UnitSetting,
};

pub(super) const CHECK: Check = Check::new(
    "irqbalance_conflict",
    "irqbalance moving NIC interrupts that were set by hand",
    run,
);

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

fn finding(context: &Context<'_>, nic: &Nic, irqs: &[&Irq]) -> Option<Finding> {
    let moved = moved(context, irqs);
    if moved.is_empty() {
        return None;
    }
    let title = format!(
        "irqbalance moved {} of {}",
        text::count(moved.len() as u64, "interrupt"),
        nic.name
    );
    let words = moved.iter().take(8).map(|(irq, then, now)| {
        format!("Interrupt {} went from {} to {}.", irq.irq, text::cpus(then), text::cpus(now))
    });
    let mut finding = Finding::new(Severity::Info, title)
        .share(ratio(moved.len() as u64, irqs.len() as u64), "its interrupts")
        .about([Subject::Nic(nic.name.clone())]);
    finding.evidence.extend(words);
    let banned: Vec<String> = irqs.iter().map(|irq| irq.irq.to_string()).collect();
    Some(
        finding
            .change(ProposedChange::new(
                Proposal::IrqbalanceBans,
                None,
                banned.join(" "),
                "irqbalance skips these interrupts and still spreads the others, until it restarts.",
            ))
            .change(
                ProposedChange::new(
                    Target::Unit(UnitSetting::irqbalance()),
                    Some("active".to_owned()),
                    "inactive",
                    "Manual affinities persist.",
                )
                .instead(),
            ),
    )
}
