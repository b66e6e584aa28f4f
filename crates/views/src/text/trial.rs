//! `tune try`: the effect of a plan on the metric, with its confidence interval.

use super::table::{Table, left, right};
use super::units::{self, digits, percentage, printable, signed_percentage};
use super::{heading, line};
use nearpath_model::{Hops, Moved, TrialReport, Verdict};

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
    let kept = if report.kept { "plan applied" } else { "plan undone" };
    heading(&mut out, &format!("{verdict}: {kept}"));
    let shown = |value: f64| match report.metric.as_str() {
        "pps" => rate(value),
        "gbps" => format!("{} Gbit/s", digits(value)),
        _ => latency(value),
    };
    line!(
        out,
        "{}: {} -> {} ({}; 95% between {} and {}), {} blocks",
        printable(&metric(report)),
        shown(found.baseline),
        shown(found.with_plan),
        signed_percentage(found.delta_percent),
        signed_percentage(found.ci95[0]),
        signed_percentage(found.ci95[1]),
        found.blocks
    );
    line!(out, "A/A noise (95% CI): ±{}", percentage(found.noise_floor_percent));
    line!(out);
    let mut table = Table::new(&[left("BY BLOCK"), right("WITHOUT"), right("WITH")]);
    let mut objections = Vec::new();
    let guards = &found.guards;
    let share = units::percent;
    for (name, guard, show) in [
        ("lost", guards.lost, &share as &dyn Fn(f64) -> String),
        ("CPUs busy", guards.cpus_busy, &digits),
        ("packets", guards.rate_per_s, &rate),
    ] {
        table.row([name.to_owned(), show(guard.without), show(guard.with)]);
        if guard.objects {
            let follows = if guard.sure {
                "so the plan counts as worse"
            } else {
                "possibly noise, so the plan does not count as better"
            };
            objections.push(format!("{name}: beyond the guard limit, {follows}"));
        }
    }
    for (name, hops) in [
        ("hops to another CPU", (|hops| Some(hops.other_cpu)) as fn(&Hops) -> Option<f64>),
        ("hops to another LLC", |hops| hops.other_llc),
        ("hops to another node", |hops| hops.other_node),
    ] {
        let moved = report.mechanism.as_ref();
        let of = |which: fn(&Moved) -> &Hops| moved.and_then(|moved| hops(which(moved)));
        if let (Some(without), Some(with)) = (of(|m| &m.without), of(|m| &m.with)) {
            let shown = |hops: f64| format!("{hops:.3}");
            table.row([format!("{name} per packet"), shown(without), shown(with)]);
        }
    }
    out.push_str(&table.render());
    for objection in objections {
        line!(out, "{objection}");
    }
    for change in &report.one_way {
        line!(
            out,
            "{}; blocks without the plan after the first switch had it, too",
            printable(change)
        );
    }
    out
}

/// What was compared, by name.
fn metric(report: &TrialReport) -> String {
    match report.path {
        // `forward:p99` names the path already.
        Some(kind) => {
            let figure = report.metric.rsplit(':').next().unwrap_or_default();
            format!("{}, end to end {figure}", super::paths::name(kind))
        }
        None => report.metric.clone(),
    }
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
    use nearpath_model::{Block, Cycle, PathKind, TRIAL_SCHEMA, Thresholds};
    use nearpath_trial::comparison::compare;

    #[test]
    fn a_trial_says_what_the_plan_did() {
        let block = |metric| Block { metric, lost: 0.0, cpus_busy: 1.2, rate_per_s: 10_000.0 };
        let cycle = Cycle { without: [block(20_000.0); 2], with: [block(15_000.0); 2] };
        let far = Hops { other_cpu: 1.0, other_llc: None, other_node: Some(0.5) };
        let mut report = TrialReport {
            schema: TRIAL_SCHEMA,
            changes: vec!["eth0/rx-0/rps_cpus".to_owned()],
            metric: "p99".to_owned(),
            path: Some(PathKind::Receive),
            comparison: compare(&[cycle; 5], &Thresholds::default(), 1).unwrap(),
            mechanism: Some(Moved { without: far, with: Hops::default() }),
            kept: true,
            one_way: Vec::new(),
        };
        let said = trial(&report);
        assert!(said.contains("better: plan applied") && !said.contains("first switch"), "{said}");
        report.one_way.push("memory pid 7 start 99: one-way: it stays".to_owned());
        let said = trial(&report);
        assert!(
            said.contains("\nmemory pid 7 start 99: one-way: it stays; blocks without"),
            "{said}"
        );
        report.one_way.clear();
        assert!(
            said.contains("\nreceive, end to end p99: 20.0µs -> 15.0µs (-25.0%; 95% between"),
            "{said}"
        );
        assert!(said.contains("hops to another CPU"), "{said}");
        assert!(
            !said.contains("node") && !said.contains("LLC") && !said.contains("counts as"),
            "{said}"
        );

        report.comparison.guards.cpus_busy.objects = true;
        report.comparison.guards.cpus_busy.sure = false;
        assert!(trial(&report).contains("possibly noise, so the plan does not count as better"));
        report.comparison.guards.cpus_busy.sure = true;
        assert!(trial(&report).contains("so the plan counts as worse"));

        (report.metric, report.path) = ("forward:p99.9".to_owned(), Some(PathKind::Forward));
        assert!(trial(&report).contains("\nforward, end to end p99.9: 20.0"), "{}", trial(&report));
        // Round trips of probes, and what an older nearpath wrote.
        (report.metric, report.path) = ("p99".to_owned(), None);
        assert!(trial(&report).contains("\np99: 20.0µs"), "{}", trial(&report));

        // 50 and 66.7ms for each Gbit.
        let [slow, fast] = [0.0667, 0.05].map(block);
        let cycle = Cycle { without: [slow; 2], with: [fast; 2] };
        report.comparison = compare(&[cycle; 5], &Thresholds::default(), 1).unwrap().of_rate();
        report.metric = "gbps".to_owned();
        report.mechanism = None;
        let said = trial(&report);
        assert!(said.contains("gbps: 15.0 Gbit/s -> 20.0 Gbit/s (+33.4%; 95%"), "{said}");
        assert!(!said.contains("hops"), "{said}");
    }
}
