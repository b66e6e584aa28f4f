//! `demo tune`: the finding, the plan, the result of its trial, and the restored settings.

use super::cpus::count;
use super::units::{printable, seconds};
use super::{diagnosis, heading, line, trial, tune};
use crate::json::{JournalEntry, TuneDemo, UndoneChange};
use nearpath_model::ChangeState;

/// The whole demonstration.
pub fn tune_demo(shown: &TuneDemo) -> String {
    let mut out = String::new();
    heading(
        &mut out,
        &format!("measured: {} packets in {}", shown.packets, seconds(shown.measured_s)),
    );
    match shown.findings.first() {
        Some(first) => out.push_str(&diagnosis::one(1, first)),
        None => line!(out, "nothing is misplaced"),
    }
    let others = shown.findings.len().saturating_sub(1);
    if others > 0 {
        line!(out, "and {}", count(others, "more finding"));
    }
    line!(out);
    out.push_str(&tune::plan(&shown.plan));
    line!(out);
    match (&shown.trial, &shown.not_tried) {
        (Some(report), _) => out.push_str(&trial::trial(report)),
        (None, reason) => {
            let reason = reason.as_deref().unwrap_or("unknown");
            heading(&mut out, &format!("not tried: {}", printable(reason)));
        }
    }
    line!(out);
    heading(&mut out, &format!("rolled back: {}", count(shown.undone.len(), "change")));
    shown.journal.iter().for_each(|entry| out.push_str(&stood(entry)));
    shown.undone.iter().for_each(|change| out.push_str(&undone(change)));
    let compared = count(shown.settings, "setting");
    if shown.not_restored.is_empty() {
        line!(out, "compared with the original values: {compared}, all restored byte for byte");
    } else {
        let left = printable(&shown.not_restored.join(", "));
        line!(out, "compared with the original values: {compared}; NOT restored: {left}");
    }
    out
}

/// The state of a change before it was rolled back.
fn stood(entry: &JournalEntry) -> String {
    let state = match entry.state {
        Some(ChangeState::Applied) => "applied",
        Some(ChangeState::Drifted) => "drifted",
        Some(ChangeState::Undone) => "undone",
        Some(ChangeState::Lost) => "lost",
        None => "unknown",
    };
    let JournalEntry { id, target, before, after, .. } = entry;
    let (target, before, after) = (printable(target), printable(before), printable(after));
    format!("  {state}: change {id}, {target}: {before} -> {after}\n")
}

fn undone(change: &UndoneChange) -> String {
    let target = printable(&change.target);
    match &change.reason {
        None => format!("  undone:  change {}, {target}\n", change.id),
        Some(reason) => format!("  kept:    change {}, {}\n", change.id, printable(reason)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_model::{Crossings, Goal, Measurement, PLAN_SCHEMA, Plan};

    #[test]
    fn unrestored_settings_are_reported() {
        let plan = Plan {
            schema: PLAN_SCHEMA,
            goal: Goal::Latency,
            boot: None,
            made_ticks: None,
            netns: None,
            changes: vec![],
            now: Crossings::default(),
            predicted: Crossings::default(),
            notes: vec![],
        };
        let mut shown = TuneDemo::new(&Measurement::default(), vec![], plan);
        shown.settings = 61;
        shown.not_tried = Some("the plan has no changes".to_owned());
        let said = tune_demo(&shown);
        assert!(said.contains("nothing is misplaced"), "{said}");
        assert!(said.contains("not tried: the plan has no changes"), "{said}");
        assert!(said.contains("61 settings, all restored byte for byte"), "{said}");
        shown.not_restored = vec!["/sys/a\u{1b}".to_owned()];
        let said = tune_demo(&shown);
        assert!(said.contains("61 settings; NOT restored: /sys/a\\u{1b}"), "{said}");
    }
}
