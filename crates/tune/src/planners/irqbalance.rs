//! irqbalance is told to leave alone the interrupts that the plan places: the one that runs, by its
//! socket. It still spreads all others. Where that was asked for, it is stopped instead.
//!
//! In go the interrupts that planners before this one have placed. Out comes a change of the running
//! daemon's list, before all others, as it looks every few seconds. Its arguments in `/etc` are not changed: the
//! numbers that they would name are other interrupts' after a reboot.
//!
//! Rule: document 000 (or it overrides the affinities).

use super::Planner;
use super::draft::{Draft, Wish};
use super::situation::Situation;
use crate::irqbalance::{fits, numbers, text};
use nearpath_model::{IrqNumber, Target, UnitSetting};
use std::collections::BTreeSet;

pub(super) const PLANNER: Planner = Planner {
    name: "irqbalance",
    plans: "irqbalance leaves alone the interrupts that the plan places",
    run,
};

fn run(situation: &Situation<'_>, draft: &mut Draft) {
    let irqs: BTreeSet<IrqNumber> = draft.planned_irqs().into_iter().collect();
    if irqs.is_empty() || situation.host.daemons.irqbalance != Some(true) {
        return;
    }
    if situation.request.stop_irqbalance {
        if let Err(reason) = stop(situation, draft, &irqs) {
            draft.note(format!(
                "irqbalance cannot be stopped, and moves interrupts again: {reason}"
            ));
        }
        return;
    }
    match running_one(situation, draft, &irqs) {
        Ok(true) => draft.note(
            "irqbalance forgets which interrupts it leaves alone when it restarts; 'nearpath tune watch' \
             reminds it",
        ),
        Ok(false) => {}
        Err(reason) => draft.note(format!(
            "irqbalance runs and moves interrupts again: {reason}; until the next boot, which numbers \
             them anew, start it with {}",
            irqs.iter().map(|irq| format!("--banirq={irq}")).collect::<Vec<_>>().join(" ")
        )),
    }
}

/// No daemon until the next boot; why it cannot be stopped.
fn stop(
    situation: &Situation<'_>,
    draft: &mut Draft,
    irqs: &BTreeSet<IrqNumber>,
) -> Result<(), String> {
    let before = situation.request.system.irqbalance_service()?;
    if before != "active" {
        return Err(format!("it was not started as a service ({before}); stop it by hand"));
    }
    draft.add_first(Wish {
        id: "irqbalance-stop".to_owned(),
        target: Target::Unit(UnitSetting::irqbalance()),
        before: before.into(),
        after: "inactive".into(),
        why: format!(
            "--stop-irqbalance; it would move again the interrupts that the plan places: {}. The next \
             boot starts it again: systemctl disable irqbalance",
            text(irqs)
        ),
        finding: Some("irqbalance_conflict".to_owned()),
    });
    Ok(())
}

/// The daemon that runs: whether a change is planned; why it cannot be told.
fn running_one(
    situation: &Situation<'_>,
    draft: &mut Draft,
    irqs: &BTreeSet<IrqNumber>,
) -> Result<bool, String> {
    let (irqbalance, banned) = situation.request.system.irqbalance()?;
    let now = numbers(banned).ok_or("which interrupts it leaves alone is not understood")?;
    let wanted: BTreeSet<IrqNumber> = now.union(irqs).copied().collect();
    if wanted == now {
        return Ok(false);
    }
    if !fits(&wanted) {
        return Err(format!("it takes no list of {} at once", wanted.len()));
    }
    draft.add_first(Wish {
        id: "irqbalance".to_owned(),
        target: Target::Irqbalance(irqbalance.clone()),
        before: banned.into(),
        after: text(&wanted).into(),
        why: format!(
            "irqbalance runs, and would move again the interrupts that the plan places: {}",
            text(irqs)
        ),
        finding: Some("irqbalance_conflict".to_owned()),
    });
    Ok(true)
}
