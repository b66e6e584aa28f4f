//! `tune try`: the effect of a plan on the metric, with its confidence interval.

use super::table::{Table, left, right};
use super::units::{self, digits, printable, signed_percentage};
use super::{heading, line};
use nearpath_model::{GuardState, Guards, Hops, Moved, Tail, TrialReport, Verdict};

/// A trial.
pub fn trial(report: &TrialReport) -> String {
    let found = &report.comparison;
    let mut out = String::new();
    let kept = if report.kept { "plan applied" } else { "plan undone" };
    let verdict = verdict(found.verdict);
    match &report.stopped {
        None => heading(&mut out, &format!("{verdict}: {kept}")),
        Some(_) => heading(&mut out, &format!("{verdict}: trial stopped, {kept}")),
    }
    if let Some(harm) = &report.stopped {
        line!(out, "harm in block {} with the plan: {}", harm.blocks_with, printable(&harm.what));
    }
    line!(out, "{}", difference(report));
    if let Some(placebo) = &found.placebo {
        let [low, high] = placebo.ci95.map(signed_percentage);
        line!(
            out,
            "placebo (plan undone and undone again): {} (95% between {low} and {high}), {} blocks",
            signed_percentage(placebo.delta_percent),
            placebo.blocks
        );
    }
    line!(out, "{}", design(report));
    line!(out);
    if let Some(tail) = &report.tail {
        out.push_str(&tail_table(tail));
        line!(out);
    }
    out.push_str(&block_table(report));
    let Guards { lost, errors, drops, cpus_busy, rate_per_s } = found.guards;
    let guards = [
        ("lost", lost),
        ("errors", errors),
        ("drops", drops),
        ("CPUs busy", cpus_busy),
        ("packets", rate_per_s),
    ];
    for (name, guard) in guards {
        match guard.state {
            GuardState::Holds => {}
            GuardState::NotShown if report.stopped.is_some() => {}
            GuardState::NotShown => line!(
                out,
                "{name}: not shown to stay within the margin, so the plan does not count as better"
            ),
            GuardState::Violated => {
                line!(out, "{name}: beyond the margin, so the plan counts as worse");
            }
        }
    }
    for change in &report.one_way {
        line!(out, "{}; blocks without the plan had it, too", printable(change));
    }
    out
}

fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Better => "better",
        Verdict::Worse => "worse",
        Verdict::NoDifference => "no difference",
        Verdict::Inconclusive => "inconclusive",
    }
}

/// The metric without and with the plan.
fn difference(report: &TrialReport) -> String {
    let found = &report.comparison;
    let shown = |value: f64| match report.metric.as_str() {
        _ if !value.is_finite() => "unknown".to_owned(),
        "pps" => rate(value),
        "gbps" => format!("{} Gbit/s", digits(value)),
        metric if metric.contains("above:") => units::percent(value),
        _ => latency(value),
    };
    let mut parts = Vec::new();
    if found.delta_percent.is_finite() {
        parts.push(signed_percentage(found.delta_percent));
    }
    if let Some([low, high]) = found.ci95.map(|ends| ends.map(signed_percentage)) {
        parts.push(format!("95% between {low} and {high}"));
    }
    if let Some(p) = found.p_adjusted {
        parts.push(format!("p = {p:.3} corrected for the number of trials"));
    }
    let parts = if parts.is_empty() { String::new() } else { format!(" ({})", parts.join("; ")) };
    format!(
        "{}: {} -> {}{parts}, {} blocks",
        printable(&metric(report)),
        shown(found.baseline),
        shown(found.with_plan),
        found.blocks
    )
}

/// How it was tried, in one line.
fn design(report: &TrialReport) -> String {
    let design = &report.design;
    let order = match design.alternating {
        true => "alternating".to_owned(),
        false => "applied once: drift is not cancelled out".to_owned(),
    };
    let measured = if design.settling_measured { " (measured)" } else { "" };
    let correlation = match report.comparison.autocorrelation {
        Some(found) => format!("; correlation of successive blocks {found:.2}"),
        None => String::new(),
    };
    format!(
        "blocks: {}, {order}, after {}{measured} to settle{correlation}",
        units::seconds(design.block_s),
        units::seconds(design.settling_s)
    )
}

/// Percentiles and shares above limits, of the packets of all blocks of a kind.
fn tail_table(tail: &Tail) -> String {
    let mut table = Table::new(&[left("ALL PACKETS"), right("WITHOUT"), right("WITH")]);
    table.row(["count".to_owned(), tail.count[0].to_string(), tail.count[1].to_string()]);
    for (name, values) in &tail.percentiles {
        let [without, with] = values.map(latency);
        table.row([format!("p{name}"), without, with]);
    }
    for (limit, shares) in &tail.above {
        let [without, with] = shares.map(|share| format!("{:.4}%", 100.0 * share));
        table.row([format!("above {}", latency(*limit as f64)), without, with]);
    }
    table.render()
}

/// Means over blocks: the guards, and how packets moved.
fn block_table(report: &TrialReport) -> String {
    let mut table = Table::new(&[left("BY BLOCK"), right("WITHOUT"), right("WITH")]);
    let guards = &report.comparison.guards;
    let share = units::percent;
    for (name, guard, show) in [
        ("lost", guards.lost, &share as &dyn Fn(f64) -> String),
        ("errors", guards.errors, &share),
        ("drops", guards.drops, &share),
        ("CPUs busy", guards.cpus_busy, &digits),
        ("packets", guards.rate_per_s, &rate),
    ] {
        table.row([name.to_owned(), show(guard.without), show(guard.with)]);
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
    table.render()
}

/// What was compared, by name.
fn metric(report: &TrialReport) -> String {
    match report.path {
        // `forward:p99` names the path already.
        Some(kind) => {
            let figure = report.metric.strip_prefix(kind.name()).unwrap_or(&report.metric);
            let figure = figure.trim_start_matches(':');
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
    use nearpath_model::{
        Block, Cycle, Harm, Observed, PathKind, TRIAL_SCHEMA, Thresholds, TrialDesign,
    };
    use nearpath_trial::comparison::compare;

    fn block(metric: f64) -> Block {
        let observed = Observed::Ratio { sum: metric, count: 1.0 };
        let (lost, errors, drops, cpus_busy, rate_per_s) = (0.0, 0.0, 0.0, 1.2, 10_000.0);
        Block { observed, lost, errors, drops, cpus_busy, rate_per_s }
    }

    fn cycle(without: f64, with: f64, placebo: bool) -> Cycle {
        let twice = |metric| [block(metric), block(metric)];
        Cycle { without: twice(without), with: twice(with), placebo, with_first: false }
    }

    fn report() -> TrialReport {
        let mut cycles = vec![cycle(20_000.0, 15_000.0, false); 12];
        cycles.extend([1.01, 0.99, 1.0, 1.0].map(|times| cycle(20_000.0, 20_000.0 * times, true)));
        let far = Hops { other_cpu: 1.0, other_llc: None, other_node: Some(0.5) };
        TrialReport {
            schema: TRIAL_SCHEMA,
            changes: vec!["eth0/rx-0/rps_cpus".to_owned()],
            metric: "p99".to_owned(),
            path: Some(PathKind::Receive),
            comparison: compare(&cycles, &Thresholds::default()).unwrap(),
            design: TrialDesign {
                alternating: true,
                seed: 7,
                block_s: 2.0,
                settling_s: 0.3,
                settling_measured: true,
            },
            stopped: None,
            tail: Some(Tail {
                count: [40_000, 40_100],
                percentiles: vec![("99.9".to_owned(), [90_000.0, 70_000.0])],
                above: vec![(100_000, [0.000_5, 0.000_02])],
            }),
            mechanism: Some(Moved { without: far, with: Hops::default() }),
            kept: true,
            one_way: Vec::new(),
        }
    }

    #[test]
    fn a_trial_says_what_the_plan_did() {
        let expected = "\
better: plan applied
receive, end to end p99: 20.0µs -> 15.0µs (-25.0%; 95% between -25.0% and -25.0%), 48 blocks
placebo (plan undone and undone again): 0% (95% between -1.6% and +1.6%), 16 blocks
blocks: 2.00s, alternating, after 300ms (measured) to settle; correlation of successive blocks 0.50

ALL PACKETS  WITHOUT     WITH
count          40000    40100
p99.9         90.0µs   70.0µs
above 100µs  0.0500%  0.0020%

BY BLOCK                        WITHOUT     WITH
lost                                 0%       0%
errors                               0%       0%
drops                                0%       0%
CPUs busy                          1.20     1.20
packets                         10000/s  10000/s
hops to another CPU per packet    1.000    0.000
";
        let mut report = report();
        report.comparison.autocorrelation = Some(0.5);
        assert_eq!(plain(&report), expected);
    }

    /// Without bold.
    fn plain(report: &TrialReport) -> String {
        trial(report).replace("\u{1b}[1m", "").replace("\u{1b}[0m", "")
    }

    #[test]
    fn guards_that_do_not_hold_and_harm_are_said() {
        let mut report = report();
        report.comparison.guards.cpus_busy.state = GuardState::NotShown;
        assert!(trial(&report).contains("CPUs busy: not shown to stay within the margin"));
        report.comparison.guards.drops.state = GuardState::Violated;
        assert!(trial(&report).contains("drops: beyond the margin, so the plan counts as worse"));
        report.stopped = Some(Harm { what: "eth0: link lost".to_owned(), blocks_with: 1 });
        report.comparison.verdict = Verdict::Worse;
        (report.kept, report.comparison.ci95) = (false, None);
        report.comparison.with_plan = f64::NAN;
        report.comparison.delta_percent = f64::NAN;
        let said = plain(&report);
        assert!(said.starts_with("worse: trial stopped, plan undone\nharm in block 1 with the plan: eth0: link lost\n"), "{said}");
        assert!(said.contains("p99: 20.0µs -> unknown, 48 blocks"), "{said}");
        report.one_way.push("memory pid 7 start 99: one-way: it stays".to_owned());
        let said = plain(&report);
        assert!(
            said.contains("\nmemory pid 7 start 99: one-way: it stays; blocks without"),
            "{said}"
        );
        report.design.alternating = false;
        assert!(trial(&report).contains("applied once: drift is not cancelled out"));
    }

    #[test]
    fn metrics_have_their_units() {
        let mut report = report();
        (report.metric, report.path) = ("forward:p99.9".to_owned(), Some(PathKind::Forward));
        assert!(trial(&report).contains("\nforward, end to end p99.9: 20.0"), "{}", trial(&report));
        // Round trips of probes.
        (report.metric, report.path) = ("p99".to_owned(), None);
        assert!(trial(&report).contains("\np99: 20.0µs"), "{}", trial(&report));
        report.comparison.p_adjusted = Some(0.0123);
        assert!(trial(&report).contains("p = 0.012 corrected for the number of trials"));

        let cycles = vec![cycle(0.01, 0.005, false); 12];
        report.comparison = compare(&cycles, &Thresholds::default()).unwrap();
        (report.metric, report.path) = ("above:250us".to_owned(), Some(PathKind::Receive));
        let said = trial(&report);
        assert!(said.contains("receive, end to end above:250us: 1.0% -> 0.50%"), "{said}");

        // 66.7 and 50ms for each Gbit.
        let cycles = vec![cycle(0.0667, 0.05, false); 12];
        report.comparison = compare(&cycles, &Thresholds::default()).unwrap().of_rate();
        (report.metric, report.path) = ("gbps".to_owned(), None);
        report.mechanism = None;
        let said = trial(&report);
        assert!(said.contains("gbps: 15.0 Gbit/s -> 20.0 Gbit/s (+33.4%; 95%"), "{said}");
        assert!(!said.contains("hops"), "{said}");
    }
}
