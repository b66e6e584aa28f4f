//! `tune try`: what a plan did to the metric, and how sure that is.

use super::table::{Table, left, right};
use super::units::{digits, printable};
use super::{heading, line};
use nearpath_trial::TrialReport;
use nearpath_trial::comparison::Verdict;
use nearpath_trial::live::Hops;

/// A trial.
pub fn trial(report: &TrialReport) -> String {
    let found = &report.comparison;
    let mut out = String::new();
    let verdict = match found.verdict {
        Verdict::Better => "better",
        Verdict::Worse => "worse",
        Verdict::NoDifference => "no difference",
        Verdict::Inconclusive => "inconclusive",
    };
    let kept = if report.kept { "the plan is in force" } else { "undone" };
    heading(&mut out, &format!("{verdict}: {kept}"));
    let is_rate = report.metric == "pps";
    let shown = |metric: f64| if is_rate { rate(1.0 / metric) } else { latency(metric) };
    line!(
        out,
        "{}: {} -> {} ({}; 95 % between {} and {}), {} blocks",
        printable(&report.metric),
        shown(found.baseline),
        shown(found.with_plan),
        percent(found.delta_percent),
        percent(found.ci95[0]),
        percent(found.ci95[1]),
        found.blocks
    );
    if is_rate {
        line!(out, "(percentages are of the time for each packet: less is better)");
    }
    line!(
        out,
        "noise: blocks without the plan differ among themselves by up to {:.1} %",
        found.noise_floor_percent
    );
    line!(out);
    let mut table = Table::new(&[left("BY BLOCK"), right("WITHOUT"), right("WITH")]);
    let mut objections = Vec::new();
    let guards = &found.guards;
    let share = |value: f64| format!("{:.3} %", 100.0 * value);
    for (name, guard, show) in [
        ("lost", guards.lost, &share as &dyn Fn(f64) -> String),
        ("CPUs busy", guards.cpus_busy, &digits),
        ("packets", guards.rate_per_s, &rate),
    ] {
        table.row([name.to_owned(), show(guard.without), show(guard.with)]);
        if guard.objects {
            objections.push(format!("{name}: too much more or less; so the plan counts as worse"));
        }
    }
    for (name, hops) in [
        ("hops to another CPU", (|hops| Some(hops.other_cpu)) as fn(&Hops) -> Option<f64>),
        ("hops to another LLC", |hops| hops.other_llc),
        ("hops to another node", |hops| hops.other_node),
    ] {
        let moved = &report.mechanism;
        if let (Some(without), Some(with)) = (hops(&moved.without), hops(&moved.with)) {
            let shown = |hops: f64| format!("{hops:.3}");
            table.row([format!("{name}, each packet"), shown(without), shown(with)]);
        }
    }
    out.push_str(&table.render());
    for objection in objections {
        line!(out, "{objection}");
    }
    out
}

fn percent(value: f64) -> String {
    format!("{value:+.1} %")
}

fn latency(ns: f64) -> String {
    super::units::latency(ns.round().max(0.0) as u64)
}

fn rate(per_s: f64) -> String {
    format!("{}/s", digits(per_s))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_trial::comparison::{Block, Cycle, Demands, compare};
    use nearpath_trial::{Moved, TRIAL_SCHEMA};

    #[test]
    fn a_trial_says_what_the_plan_did() {
        let block = |metric| Block { metric, lost: 0.0, cpus_busy: 1.2, rate_per_s: 10_000.0 };
        let cycle = Cycle { without: [block(20_000.0); 2], with: [block(15_000.0); 2] };
        let far = Hops { other_cpu: 1.0, other_llc: None, other_node: Some(0.5) };
        let mut report = TrialReport {
            schema: TRIAL_SCHEMA,
            changes: vec!["eth0/rx-0/rps_cpus".to_owned()],
            metric: "p99".to_owned(),
            comparison: compare(&[cycle; 5], &Demands::default(), 1).unwrap(),
            mechanism: Moved { without: far, with: Hops::default() },
            kept: true,
        };
        let said = trial(&report);
        assert!(said.contains("better: the plan is in force"), "{said}");
        assert!(said.contains("p99: 20.0 µs -> 15.0 µs (-25.0 %; 95 % between"), "{said}");
        assert!(said.contains("hops to another CPU"), "{said}");
        assert!(
            !said.contains("node") && !said.contains("LLC") && !said.contains("counts as"),
            "{said}"
        );

        report.comparison.guards.cpus_busy.objects = true;
        assert!(trial(&report).contains("so the plan counts as worse"));
    }
}
