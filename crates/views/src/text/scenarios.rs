//! `bench scenarios`: a line for each placement of the application.
//!
//! Input: a report. Output: lines.

use super::table::{Table, left, right};
use super::units::{digits, percent, printable, seconds, signed_percentage};
use super::{latency, line};
use nearpath_model::{Comparison, Verdict};
use nearpath_trial::scenarios::{ScenarioResult, ScenariosReport};

/// What was compared, and the table.
pub fn scenarios(report: &ScenariosReport) -> String {
    let mut out = String::new();
    line!(out, "{}", in_a_line(report));
    let nic = report.nic.as_deref().map_or("no interface".to_owned(), printable);
    let node = report.node.map_or("no node".to_owned(), |node| format!("node {}", node.0));
    let cpus = report.cpus.as_ref().map_or("none".to_owned(), ToString::to_string);
    line!(out, "application: {} at {}", printable(&report.application), printable(&report.target));
    line!(out, "near:        {nic}, {node}, CPUs {cpus}");
    if !report.changes.is_empty() {
        let ids: Vec<String> = report.changes.iter().map(|id| printable(id)).collect();
        line!(out, "optimised:   {}", ids.join(", "));
    }
    let blocks = report.cycles * 2;
    line!(out, "blocks:      {blocks} of {} per scenario, alternating", seconds(report.block_s));
    line!(out);
    out.push_str(&table(report));
    if !report.notes.is_empty() {
        line!(out);
    }
    for note in &report.notes {
        line!(out, "note: {}", printable(note));
    }
    out
}

/// The best of those that are better than no binding, else that none is, or why that is unknown.
fn in_a_line(report: &ScenariosReport) -> String {
    let p99 = |row: &ScenarioResult| row.percentiles.get("99").copied();
    let compared = |row: &&ScenarioResult| row.against_no_binding.is_some();
    let better = report.scenarios.iter().filter(|row| {
        row.against_no_binding.as_ref().is_some_and(|compared| compared.verdict == Verdict::Better)
    });
    let best = better.filter_map(|row| Some((p99(row)?, row))).min_by_key(|(ns, _)| *ns);
    if let Some((ns, row)) = best {
        let against = row.against_no_binding.as_ref().map(change).unwrap_or_default();
        let name = row.scenario.name();
        return format!("best: {name}, P99 {}: {against} against no binding", latency(ns));
    }
    if report.scenarios.iter().any(|row| compared(&row)) {
        return "no scenario is better than no binding".to_owned();
    }
    let lowest = report.scenarios.iter().filter_map(|row| Some((p99(row)?, row)));
    match lowest.min_by_key(|(ns, _)| *ns) {
        Some((ns, row)) => {
            format!("no comparison; lowest P99: {}, {}", row.scenario.name(), latency(ns))
        }
        None => "no comparison: too few answers".to_owned(),
    }
}

fn table(report: &ScenariosReport) -> String {
    let columns = [
        left("SCENARIO"),
        right("ANSWERS"),
        right("PER S").optional(),
        right("LOST"),
        right("P50"),
        right("P99"),
        right("P99.9").optional(),
        right("MAX"),
        right("P99 OF BLOCKS"),
        right("MEMORY ELSEWHERE").optional(),
        right("CACHE MISSES PER ANSWER").optional(),
        left("P99 AGAINST NO BINDING").optional(),
    ];
    let mut table = Table::new(&columns);
    for row in &report.scenarios {
        let deep =
            |name: &str| row.percentiles.get(name).map(|&ns| latency(ns)).unwrap_or_default();
        table.row([
            row.scenario.name().to_owned(),
            row.count.to_string(),
            if row.per_s > 0.0 { digits(row.per_s) } else { String::new() },
            row.lost.to_string(),
            deep("50"),
            deep("99"),
            deep("99.9"),
            row.max_ns.map(latency).unwrap_or_default(),
            spread(row),
            row.memory_elsewhere.map(percent).unwrap_or_default(),
            row.cache_misses_per_answer.map(digits).unwrap_or_default(),
            row.against_no_binding.as_ref().map(difference).unwrap_or_default(),
        ]);
    }
    table.render()
}

/// The range from the lowest block to the highest: the noise of a scenario.
fn spread(row: &ScenarioResult) -> String {
    let (low, high) = (row.p99_of_blocks.iter().min(), row.p99_of_blocks.iter().max());
    match (low, high) {
        (Some(&low), Some(&high)) => format!("{} - {}", latency(low), latency(high)),
        _ => String::new(),
    }
}

pub(super) fn difference(compared: &Comparison) -> String {
    let verdict = match compared.verdict {
        Verdict::Better => "better",
        Verdict::Worse => "worse",
        Verdict::NoDifference => "no difference",
        Verdict::Inconclusive => "inconclusive",
    };
    format!("{}: {verdict}", change(compared))
}

/// `-50.0% (-55.0% to -45.5%)`.
fn change(compared: &Comparison) -> String {
    let delta = signed_percentage(compared.delta_percent);
    let ends = compared.ci95.map(|ends| ends.map(signed_percentage));
    let interval = ends.map(|[low, high]| format!(" ({low} to {high})")).unwrap_or_default();
    format!("{delta}{interval}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_scenario_has_a_line() {
        let row = |scenario: &str, p99: u64, compared: serde_json::Value| {
            json!({"scenario": scenario, "count": 2000, "lost": 0, "percentiles": {"50": 9_000,
                "90": 10_000, "99": p99, "99.9": 60_000}, "max_ns": 8_100_000,
                "p99_of_blocks": [p99, p99 + 1_000], "against_no_binding": compared})
        };
        let guard = json!({"without": 1.0, "with": 1.0, "margin": 0.1, "harm_bound": 0.0, "state": "holds"});
        let compared = json!({"blocks": 16, "baseline": 40_000.0, "with_plan": 20_000.0,
            "delta_percent": -50.0, "ci95": [-55.0, -45.5], "p_value": 0.001, "p_adjusted": null,
            "placebo": null, "autocorrelation": 0.1, "guards": {"lost": guard, "errors": guard, "drops": guard,
            "cpus_busy": guard, "rate_per_s": guard}, "verdict": "better"});
        let report = json!({"schema": 1, "application": "nearpath bench reflect", "target":
            "10.0.0.1:6327", "nic": "eth0", "node": 1, "cpus": "2-3", "changes": ["irq-40"],
            "cycles": 4, "block_s": 2.0, "notes": ["mind the gap"], "scenarios": [
                row("no_binding", 40_000, json!(null)), row("cpu_binding", 20_000, compared)]});
        let report = serde_json::from_value(report).unwrap();
        let expected = "\
best: CPU binding, P99 20.0µs: -50.0% (-55.0% to -45.5%) against no binding
application: nearpath bench reflect at 10.0.0.1:6327
near:        eth0, node 1, CPUs 2-3
optimised:   irq-40
blocks:      8 of 2.00s per scenario, alternating

SCENARIO     ANSWERS  LOST     P50     P99   P99.9     MAX    P99 OF BLOCKS  P99 AGAINST NO BINDING
no binding      2000     0  9.00µs  40.0µs  60.0µs  8.10ms  40.0µs - 41.0µs  -
CPU binding     2000     0  9.00µs  20.0µs  60.0µs  8.10ms  20.0µs - 21.0µs  -50.0% (-55.0% to -45.5%): better

note: mind the gap
";
        assert_eq!(scenarios(&report), expected);
    }
}
