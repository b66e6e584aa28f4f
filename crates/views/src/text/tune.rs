//! `tune`: a plan as a difference that can be read, what became of it, and how the journal stands.

use super::cpus::count;
use super::table::{Table, left, or_none, right};
use super::units::printable;
use super::{heading, line, time_of_day};
use anstyle::{AnsiColor, Style};
use nearpath_host::CpuSet;
use nearpath_tune::{
    ChangeStatus, Crossings, Entry, Goal, Outcome, Plan, PlannedChange, Standing, TuneError,
};

/// A value that is longer than this is cut in tables.
const VALUE_WIDTH: usize = 40;

/// A plan.
pub fn plan(plan: &Plan) -> String {
    let mut out = String::new();
    let goal = match plan.goal {
        Goal::Latency => "latency",
        Goal::Throughput => "throughput",
        Goal::Isolation => "isolation",
    };
    heading(&mut out, &format!("plan for {goal}: {}", count(plan.changes.len(), "change")));
    for text in crossings(&plan.now, &plan.predicted) {
        line!(out, "{text}");
    }
    for change in &plan.changes {
        line!(out);
        out.push_str(&difference(change));
    }
    if !plan.notes.is_empty() {
        line!(out);
        heading(&mut out, "to know:");
        for note in &plan.notes {
            line!(out, "  {}", printable(note));
        }
    }
    out
}

/// What is known of the shares before and after.
fn crossings(now: &Crossings, then: &Crossings) -> Vec<String> {
    let rows = [
        ("CPU", now.other_cpu, then.other_cpu),
        ("LLC", now.other_llc, then.other_llc),
        ("node", now.other_node, then.other_node),
    ];
    let text = |(what, now, then): (&str, Option<f64>, Option<f64>)| {
        let (now, then) = (now?, then?);
        Some(format!(
            "packets that cross to another {what}: {:.1} % -> {:.1} %, as predicted",
            now * 100.0,
            then * 100.0
        ))
    };
    rows.into_iter().filter_map(text).collect()
}

fn difference(change: &PlannedChange) -> String {
    let (red, green) = (AnsiColor::Red.on_default(), AnsiColor::Green.on_default());
    let bold = Style::new().bold();
    let mut out = String::new();
    let finding = change.finding.as_ref().map(|name| format!("  [{name}]")).unwrap_or_default();
    let optional = if change.optional { "  (optional)" } else { "" };
    let target = printable(&format!("{}{finding}{optional}", change.target));
    line!(out, "{bold}{}{bold:#}  {target}", printable(&change.id));
    line!(out, "  {red}- {}{red:#}", value(change, &change.before));
    line!(out, "  {green}+ {}{green:#}", value(change, &change.after));
    line!(out, "  {}", printable(&change.why));
    out
}

/// A value, a mask with the CPUs that it means.
fn value(change: &PlannedChange, value: &str) -> String {
    let masked = matches!(change.kind.as_str(), "rps_cpus" | "xps_cpus");
    match CpuSet::from_mask(value) {
        Ok(cpus) if masked && cpus.is_empty() => format!("{} (off)", printable(value)),
        Ok(cpus) if masked => format!("{} (CPUs {cpus})", printable(value)),
        _ => printable(value),
    }
}

/// What became of a plan, or would.
pub fn applied(applied: bool, outcome: &Outcome) -> String {
    let mut out = String::new();
    let verb = if applied { "made" } else { "would make" };
    heading(&mut out, &format!("{verb} {}", count(outcome.made.len(), "change")));
    for change in &outcome.made {
        let (before, after) = (short(&change.before), short(&change.after));
        line!(out, "  {}: {before} -> {after}", printable(&change.target.to_string()));
    }
    for skipped in &outcome.skipped {
        line!(out, "  left out: {}", printable(&skipped.reason.to_string()));
    }
    out
}

/// How the changes of the journal stand.
pub fn journal(statuses: &[ChangeStatus]) -> String {
    let mut out = String::new();
    if statuses.is_empty() {
        line!(out, "nothing is changed by nearpath");
        return out;
    }
    let columns = [
        right("ID"),
        left("STATE"),
        left("TARGET"),
        left("BEFORE"),
        left("AFTER"),
        left("APPLIED-AT"),
    ];
    let mut table = Table::new(&columns);
    for ChangeStatus { entry, standing, .. } in statuses {
        let Entry { id, time_s, change, .. } = entry;
        let state = standing.map(|standing| match standing {
            Standing::Applied => "applied",
            Standing::Drifted => "drifted",
            Standing::Undone => "undone",
            Standing::Lost => "lost",
        });
        let (target, time) = (change.target.to_string(), time_of_day(*time_s));
        let (before, after) = (short(&change.before), short(&change.after));
        table.row([id.to_string(), or_none(state), target, before, after, time]);
    }
    out.push_str(&table.render());
    for status in statuses {
        if let Some(reason) = &status.reason {
            line!(out, "change {}: {}", status.entry.id, printable(reason));
        }
    }
    out
}

/// What was undone, and what was not.
pub fn rolled_back(results: &[(Entry, Result<(), TuneError>)]) -> String {
    let mut out = String::new();
    for (entry, result) in results {
        let target = printable(&entry.change.target.to_string());
        match result {
            Ok(()) => line!(out, "undone: change {}, {target}", entry.id),
            Err(error) => {
                line!(out, "kept:   change {}, {}", entry.id, printable(&error.to_string()));
            }
        }
    }
    out
}

/// A value that fits a table.
fn short(value: &impl ToString) -> String {
    let text = printable(&value.to_string());
    if text.is_empty() {
        return "\"\"".to_owned();
    }
    if text.chars().count() <= VALUE_WIDTH {
        return text;
    }
    let cut: String = text.chars().take(VALUE_WIDTH - 1).collect();
    format!("{cut}…")
}
