//! `tune try`: the effect of a plan on packets, with confidence intervals.

use super::table::{Table, left, right};
use super::units::{self, digits, printable};
use super::{heading, line};
use nearpath_model::{FigureUnit, Hops, LOST_NS, Moved, Tail, TrialFigure, TrialReport, Verdict};

/// A trial.
pub fn trial(report: &TrialReport) -> String {
    let mut out = String::new();
    let kept = if report.kept { "plan applied" } else { "plan undone" };
    let verdict = verdict(report.verdict);
    match &report.stopped {
        None => heading(&mut out, &format!("{verdict}: {kept}")),
        Some(_) => heading(&mut out, &format!("{verdict}: trial stopped, {kept}")),
    }
    if let Some(harm) = &report.stopped {
        line!(out, "harm in block {} with the plan: {}", harm.blocks_with, printable(&harm.what));
    }
    line!(out, "{}", design(report));
    line!(out);
    out.push_str(&figures(report));
    if let Some(tail) = &report.tail {
        line!(out);
        out.push_str(&tail_table(tail));
    }
    for change in &report.one_way {
        line!(out, "{}; blocks without the plan had it, too", printable(change));
    }
    out
}

/// In words.
pub(super) fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Better => "better",
        Verdict::Worse => "worse",
        Verdict::NoDifference => "no difference",
        Verdict::Inconclusive => "inconclusive",
    }
}

/// How it was tried, in one line.
fn design(report: &TrialReport) -> String {
    let design = &report.design;
    let of = report
        .path
        .map_or_else(String::new, |kind| format!("{}, end to end: ", super::paths::name(kind)));
    let order = match design.alternating {
        true => "in pairs with blocks without it",
        false => "after as many without it (drift is not cancelled out)",
    };
    let measured = if design.settling_measured { " (measured)" } else { "" };
    format!(
        "{of}{} blocks of {} with the plan, {order}; {}{measured} to settle, {} in all",
        design.blocks,
        units::seconds(design.block_s),
        units::seconds(design.settling_s),
        units::seconds(design.seconds)
    )
}

/// What was compared, and how packets moved.
fn figures(report: &TrialReport) -> String {
    let columns = [left("FIGURE"), right("WITHOUT"), right("WITH"), right("EFFECT"), left("95 %")];
    let mut table = Table::new(&columns);
    for figure in &report.figures {
        let value =
            |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |it| shown(it, figure.unit));
        let interval = figure.ci95.map(|[low, high]| {
            format!("{} to {}", effect(low, figure.unit), effect(high, figure.unit))
        });
        table.row([
            name(figure),
            value(figure.without),
            value(figure.with),
            figure.effect.map_or_else(String::new, |it| effect(it, figure.unit)),
            interval.unwrap_or_default(),
        ]);
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
            let (without, with) = (shown(without), shown(with));
            table.row([format!("{name} per packet"), without, with, String::new(), String::new()]);
        }
    }
    table.render()
}

fn name(figure: &TrialFigure) -> String {
    match (figure.unit, figure.name.as_str()) {
        (FigureUnit::Cpus, _) => "CPUs busy".to_owned(),
        (FigureUnit::Share, name) => printable(&name.replace("above:", "above ")),
        (_, name) => printable(name),
    }
}

fn shown(value: f64, unit: FigureUnit) -> String {
    match unit {
        _ if !value.is_finite() => "unknown".to_owned(),
        FigureUnit::Ns if value >= LOST_NS => "lost".to_owned(),
        FigureUnit::Ns => latency(value),
        FigureUnit::Share => units::percent(value),
        FigureUnit::LostPerS | FigureUnit::PacketsPerS => rate(value),
        FigureUnit::Gbps => format!("{} Gbit/s", digits(value)),
        FigureUnit::Cpus => digits(value),
    }
}

/// A ratio as `0.52x`; a difference with its sign.
fn effect(effect: f64, unit: FigureUnit) -> String {
    match unit {
        FigureUnit::Share => units::signed_percentage(100.0 * effect),
        FigureUnit::LostPerS if effect.abs() < 0.001 => rate(0.0),
        FigureUnit::LostPerS => {
            format!("{}{}", if effect < 0.0 { "-" } else { "+" }, rate(effect.abs()))
        }
        _ => format!("{effect:.2}x"),
    }
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

fn latency(ns: f64) -> String {
    super::units::latency(ns.round().max(0.0) as u64)
}

fn rate(per_s: f64) -> String {
    if per_s == 0.0 {
        return "0/s".to_owned();
    }
    format!("{}/s", digits(per_s))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_model::{Harm, PathKind, TRIAL_SCHEMA, TrialDesign};

    fn figure(
        name: &str,
        unit: FigureUnit,
        values: [f64; 3],
        ci95: Option<[f64; 2]>,
    ) -> TrialFigure {
        let [without, with, effect] = values.map(Some);
        TrialFigure { name: name.to_owned(), unit, decides: true, without, with, effect, ci95 }
    }

    fn report() -> TrialReport {
        let far = Hops { other_cpu: 1.0, other_llc: None, other_node: Some(0.5) };
        TrialReport {
            schema: TRIAL_SCHEMA,
            changes: vec!["eth0/rx-0/rps_cpus".to_owned()],
            verdict: Verdict::Better,
            path: Some(PathKind::Receive),
            figures: vec![
                figure("p99", FigureUnit::Ns, [20_000.0, 15_000.0, 0.75], Some([0.6, 0.8])),
                figure("above:1ms", FigureUnit::Share, [0.01, 0.0, -0.01], Some([-0.02, -0.005])),
                figure("lost", FigureUnit::LostPerS, [0.0, 3.0, 3.0], None),
                figure("cpus_busy", FigureUnit::Cpus, [1.2, 1.2, 1.0], None),
                figure("packets", FigureUnit::PacketsPerS, [10_000.0, 10_000.0, 1.0], None),
            ],
            design: TrialDesign {
                alternating: true,
                blocks: 9,
                seed: 7,
                block_s: 0.5,
                settling_s: 0.3,
                settling_measured: true,
                seconds: 14.2,
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
receive, end to end: 9 blocks of 500ms with the plan, in pairs with blocks without it; 300ms (measured) to settle, 14.2s in all

FIGURE                          WITHOUT     WITH   EFFECT  95 %
p99                              20.0µs   15.0µs    0.75x  0.60x to 0.80x
above 1ms                          1.0%       0%    -1.0%  -2.0% to -0.50%
lost                                0/s   3.00/s  +3.00/s  -
CPUs busy                          1.20     1.20    1.00x  -
packets                         10000/s  10000/s    1.00x  -
hops to another CPU per packet    1.000    0.000        -  -

ALL PACKETS  WITHOUT     WITH
count          40000    40100
p99.9         90.0µs   70.0µs
above 100µs  0.0500%  0.0020%
";
        assert_eq!(plain(&report()), expected);
    }

    /// Without bold.
    fn plain(report: &TrialReport) -> String {
        trial(report).replace("\u{1b}[1m", "").replace("\u{1b}[0m", "")
    }

    #[test]
    fn harm_and_what_cannot_be_undone_are_said() {
        let mut report = report();
        report.stopped = Some(Harm { what: "eth0: link lost".to_owned(), blocks_with: 1 });
        (report.verdict, report.kept) = (Verdict::Worse, false);
        (report.figures[0].with, report.figures[0].effect) = (None, None);
        let said = plain(&report);
        assert!(said.starts_with("worse: trial stopped, plan undone\nharm in block 1 with the plan: eth0: link lost\n"), "{said}");
        assert!(said.contains("20.0µs        -"), "{said}");
        report.one_way.push("memory pid 7 start 99: one-way: it stays".to_owned());
        let said = plain(&report);
        assert!(
            said.contains("\nmemory pid 7 start 99: one-way: it stays; blocks without"),
            "{said}"
        );
        report.design.alternating = false;
        assert!(trial(&report).contains("after as many without it (drift is not cancelled out)"));
    }

    #[test]
    fn rates_have_their_units() {
        let mut report = report();
        report.figures = vec![figure("gbps", FigureUnit::Gbps, [15.0, 20.0, 1.334], None)];
        (report.path, report.mechanism) = (None, None);
        let said = plain(&report);
        assert!(said.contains("gbps    15.0 Gbit/s  20.0 Gbit/s   1.33x"), "{said}");
        assert!(!said.contains("hops") && !said.contains("end to end"), "{said}");
    }
}
