//! irqbalance is told to leave alone the interrupts that the plan places: the one that runs, by its
//! socket, and the next one, by its arguments. It still spreads all others. Where that was asked for, it
//! is stopped instead.
//!
//! In go the interrupts that planners before this one have placed. Out come a change of the running
//! daemon's list and one of its line of arguments, before all others, as it looks every few seconds.
//!
//! Rule: document 000 (or it overrides the affinities).

use super::Planner;
use super::draft::{Draft, Wish};
use super::situation::Situation;
use crate::configuration::{IRQBALANCE_ARGS, irqbalance_arguments, irqbalance_line};
use crate::irqbalance::{fits, numbers, text};
use crate::units::UnitSetting;
use nearpath_model::IrqNumber;
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
    let next = next_one(situation, draft, &irqs);
    let running = running_one(situation, draft, &irqs);
    for reason in [next, running].into_iter().filter_map(Result::err) {
        draft.note(format!("irqbalance runs and moves interrupts again: {reason}"));
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
        target: UnitSetting::irqbalance().to_string(),
        before: before.to_owned(),
        after: "inactive".to_owned(),
        why: format!(
            "--stop-irqbalance; it would move again the interrupts that the plan places: {}. The next \
             boot starts it again: systemctl disable irqbalance",
            text(irqs)
        ),
        finding: Some("irqbalance_conflict".to_owned()),
    });
    Ok(())
}

/// The daemon that runs; why it cannot be told.
fn running_one(
    situation: &Situation<'_>,
    draft: &mut Draft,
    irqs: &BTreeSet<IrqNumber>,
) -> Result<(), String> {
    let (irqbalance, banned) = situation.request.system.irqbalance()?;
    let now = numbers(banned).ok_or("which interrupts it leaves alone is not understood")?;
    let wanted: BTreeSet<IrqNumber> = now.union(irqs).copied().collect();
    if wanted == now {
        return Ok(());
    }
    if !fits(&wanted) {
        return Err(format!(
            "it takes no list of {} at once; restart it once the plan is applied",
            wanted.len()
        ));
    }
    draft.add_first(Wish {
        id: "irqbalance".to_owned(),
        target: irqbalance.to_string(),
        before: banned.to_owned(),
        after: text(&wanted),
        why: format!(
            "irqbalance runs, and would move again the interrupts that the plan places: {}",
            text(irqs)
        ),
        finding: Some("irqbalance_conflict".to_owned()),
    });
    Ok(())
}

/// The daemon when it starts again; why it cannot be told.
fn next_one(
    situation: &Situation<'_>,
    draft: &mut Draft,
    irqs: &BTreeSet<IrqNumber>,
) -> Result<(), String> {
    let ban = |irq: &IrqNumber| format!("--banirq={irq}");
    let bans: Vec<String> = irqs.iter().map(ban).collect();
    let by_hand = |reason: String| format!("{reason}; start it with {}", bans.join(" "));
    let (target, before) = situation.request.system.irqbalance_line().map_err(by_hand)?;
    let there = match before {
        "" => Vec::new(),
        line => irqbalance_arguments(line)
            .ok_or_else(|| by_hand(format!("the line {IRQBALANCE_ARGS} is no plain one")))?,
    };
    let new: Vec<String> =
        bans.iter().filter(|ban| !there.contains(&ban.as_str())).cloned().collect();
    if new.is_empty() {
        return Ok(());
    }
    let all: Vec<String> = there.into_iter().map(str::to_owned).chain(new).collect();
    draft.add_first(Wish {
        id: "irqbalance-arguments".to_owned(),
        target: target.to_owned(),
        before: before.to_owned(),
        after: irqbalance_line(&all),
        why: "irqbalance, when it starts again, leaves alone the interrupts that the plan places"
            .to_owned(),
        finding: Some("irqbalance_conflict".to_owned()),
    });
    Ok(())
}
