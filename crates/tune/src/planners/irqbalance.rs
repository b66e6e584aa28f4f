//! Bans the interrupts that the plan places from the running irqbalance, through its socket. It still balances all
//! others. On request it is stopped instead.
//!
//! Input: the interrupts placed by earlier planners. Output: a change of the running daemon's ban list, before all
//! other changes, as it rebalances every few seconds. Its arguments in `/etc` are not changed: interrupt numbers differ
//! after a reboot.
//!
//! Rule: everoute's analysis of latency tails (otherwise it overrides the affinities); irqbalance(1) `--banirq`.

use super::Planner;
use super::draft::{Draft, DraftChange};
use super::situation::Situation;
use crate::irqbalance::{fits, numbers, text};
use nearpath_model::{IrqNumber, Target, UnitSetting};
use std::collections::BTreeSet;

pub(super) const PLANNER: Planner =
    Planner { name: "irqbalance", plans: "excludes the placed interrupts from irqbalance", run };

fn run(situation: &Situation<'_>, draft: &mut Draft) {
    let irqs: BTreeSet<IrqNumber> = draft.planned_irqs().into_iter().collect();
    if irqs.is_empty() || situation.host.daemons.irqbalance != Some(true) {
        return;
    }
    if situation.request.stop_irqbalance {
        if let Err(reason) = stop(situation, draft, &irqs) {
            draft.note(format!(
                "irqbalance cannot be stopped and will move interrupts again: {reason}"
            ));
        }
        return;
    }
    match running_one(situation, draft, &irqs) {
        Ok(true) => draft.note(
            "irqbalance loses its list of excluded interrupts when it restarts; 'nearpath tune watch' \
             restores it",
        ),
        Ok(false) => {}
        Err(reason) => draft.note(format!(
            "irqbalance is running and will move interrupts again: {reason}; until the next boot, which \
             renumbers them, start it with {}",
            irqs.iter().map(|irq| format!("--banirq={irq}")).collect::<Vec<_>>().join(" ")
        )),
    }
}

/// Stops the daemon until the next boot; the error is why it cannot be stopped.
fn stop(
    situation: &Situation<'_>,
    draft: &mut Draft,
    irqs: &BTreeSet<IrqNumber>,
) -> Result<(), String> {
    let before = situation.request.system.irqbalance_service()?;
    if before != "active" {
        return Err(format!("it was not started as a service ({before}); stop it manually"));
    }
    draft.add_first(DraftChange {
        id: "irqbalance-stop".to_owned(),
        target: Target::Unit(UnitSetting::irqbalance()),
        before: before.into(),
        after: "inactive".into(),
        why: format!(
            "--stop-irqbalance: it would move the interrupts placed by the plan: {}. The next boot \
             starts it again, unless disabled: systemctl disable irqbalance",
            text(irqs)
        ),
        finding: Some("irqbalance_conflict".to_owned()),
    });
    Ok(())
}

/// Plans for the running daemon; returns whether a change is planned, or why that is not possible.
fn running_one(
    situation: &Situation<'_>,
    draft: &mut Draft,
    irqs: &BTreeSet<IrqNumber>,
) -> Result<bool, String> {
    let (irqbalance, banned) = situation.request.system.irqbalance()?;
    let now = numbers(banned).ok_or("cannot parse its list of excluded interrupts")?;
    let wanted: BTreeSet<IrqNumber> = now.union(irqs).copied().collect();
    if wanted == now {
        return Ok(false);
    }
    if !fits(&wanted) {
        return Err(format!("a list of {} is too long for one request", wanted.len()));
    }
    draft.add_first(DraftChange {
        id: "irqbalance".to_owned(),
        target: Target::Irqbalance(irqbalance.clone()),
        before: banned.into(),
        after: text(&wanted).into(),
        why: format!(
            "irqbalance is running and would move the interrupts placed by the plan: {}",
            text(irqs)
        ),
        finding: Some("irqbalance_conflict".to_owned()),
    });
    Ok(true)
}
