//! The figures, as medians over the rounds with the lowest and the highest round.

use crate::Sample;
use crate::load::Load;
use crate::tools::Tool;
use nearpath_model::locality::Method;

/// Prints the results of one load.
pub fn print(load: &Load, tools: &[Tool], samples: &[Sample]) {
    let report = Report { samples };
    let Load { name, unit, units, .. } = load;
    println!("\n{name}: pieces of {units} {unit}s, {} per tool", report.of(tools[0]).count());
    let passes = report.stage_passes() / *units as f64;
    if passes.is_finite() {
        println!("  nearpath sees {passes:.1} stages passed for each {unit}");
    }
    let columns = ["throughput lost", &format!("CPU ns/{unit}"), "run ns", "ns/stage, net"];
    println!(
        "  {:<11} {:>22} {:>28} {:>22} {:>22}",
        "", columns[0], columns[1], columns[2], columns[3]
    );
    for &tool in tools {
        let lost = spread(report.against(tool, Tool::Nothing, |with, without| {
            100.0 * (1.0 - without.wall_ns / with.wall_ns)
        }));
        let cpu = spread(report.of(tool).map(|s| s.cpu_ns / *units as f64).collect());
        let run = spread(report.of(tool).map(Sample::ns_per_run).collect());
        let net = report.net(tool).filter(|_| !tool.is_sliced());
        let passes = report.passes_of(tool);
        let net = spread(net.map(|ns| ns / passes).collect());
        println!(
            "  {:<11} {:>22} {:>28} {:>22} {:>22}",
            tool.name(),
            cell(lost, 1, " %"),
            cell(cpu, 0, ""),
            cell(run, 1, ""),
            cell(net, 1, ""),
        );
    }
    let here = |tool: &Tool| tools.contains(tool);
    let localities = [Tool::Locality, Tool::LocalityBpftrace, Tool::LocalityFunctions];
    for tool in localities.into_iter().filter(here) {
        let each = report.net(tool).map(|ns| ns / *units as f64).collect();
        let method = match report.of(tool).find_map(|sample| sample.method) {
            Some(Method::Exact) => " (exact)",
            Some(Method::Tracepoints) => " (by tracepoints)",
            None => "",
        };
        println!(
            "  {}{method}: {} ns of programs a {unit}, net of empty programs",
            tool.name(),
            cell(spread(each), 0, ""),
        );
    }
    let pairs = [
        (Tool::Coarse, Tool::Nearpath),
        (Tool::Nearpath, Tool::Bpftrace),
        (Tool::NoBudgets, Tool::Bpftrace),
        (Tool::Nearpath, Tool::Bcc),
        (Tool::NoBudgets, Tool::Bcc),
        (Tool::Locality, Tool::LocalityBpftrace),
        (Tool::Locality, Tool::LocalityFunctions),
    ];
    for (ours, peer) in pairs.into_iter().filter(|(ours, peer)| here(ours) && here(peer)) {
        let ratios = report.net(ours).zip(report.net(peer)).map(|(o, p)| o / p).collect();
        println!(
            "  {} / {}: {} of the program time, net of empty programs",
            ours.name(),
            peer.name(),
            cell(spread(ratios), 2, ""),
        );
    }
}

/// Prints the cost of each program of each tool, in its median round.
pub fn print_programs(load: &Load, tools: &[Tool], samples: &[Sample]) {
    let report = Report { samples };
    let (empty, _, _) = spread(report.of(Tool::Empty).map(Sample::ns_per_run).collect());
    for &tool in tools.iter().filter(|&&tool| tool != Tool::Nothing) {
        println!("\n{}, {}: runs and ns net of an empty program", load.name, tool.name());
        let names = report.of(tool).next().map(|s| s.programs.keys()).into_iter().flatten();
        for name in names {
            let of = |figure: fn(u64, u64) -> f64| {
                let each = report.of(tool).filter_map(|s| s.programs.get(name));
                spread(each.map(|&(runs, ns)| figure(runs, ns)).collect()).0
            };
            let runs = of(|runs, _| runs as f64) / load.units as f64;
            let net = of(|runs, ns| ns as f64 / runs as f64) - empty;
            if runs >= 0.005 {
                println!(
                    "  {name:<28} {runs:>7.2} a {} {net:>8.1} ns {:>8.1} ns",
                    load.unit,
                    runs * net
                );
            }
        }
    }
}

struct Report<'a> {
    samples: &'a [Sample],
}

impl Report<'_> {
    fn of(&self, tool: Tool) -> impl Iterator<Item = &Sample> {
        self.samples.iter().filter(move |s| s.tool == tool)
    }

    /// Stages that the packets of one piece of work pass, by nearpath's own count.
    fn stage_passes(&self) -> f64 {
        let (median, _, _) = spread(self.of(Tool::NoBudgets).map(|s| s.passes as f64).collect());
        median
    }

    /// The stages passed as counted by a tool; those of all hooks if it does not count them.
    fn passes_of(&self, tool: Tool) -> f64 {
        let (own, _, _) = spread(self.of(tool).map(|s| s.passes as f64).collect());
        if own > 0.0 { own } else { self.stage_passes() }
    }

    /// A figure of each sample with the adjacent one of another tool, under the same conditions.
    fn against(&self, tool: Tool, other: Tool, figure: fn(&Sample, &Sample) -> f64) -> Vec<f64> {
        self.of(tool).zip(self.of(other)).map(|(a, b)| figure(a, b)).collect()
    }

    /// Program time of each piece of work, minus that of as many runs of empty programs: the accounting,
    /// and the calls.
    fn net(&self, tool: Tool) -> impl Iterator<Item = f64> {
        let empty = self.of(Tool::Empty).map(Sample::ns_per_run);
        self.of(tool).zip(empty).map(|(s, empty)| s.run_ns as f64 - empty * s.runs as f64)
    }
}

/// Median, lowest and highest.
fn spread(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    let at = |i: usize| values.get(i).copied().unwrap_or(f64::NAN);
    (at(values.len() / 2), at(0), at(values.len().saturating_sub(1)))
}

fn cell((median, low, high): (f64, f64, f64), digits: usize, unit: &str) -> String {
    if median.is_nan() {
        return "-".to_owned();
    }
    format!("{median:.digits$}{unit} [{low:.digits$} {high:.digits$}]")
}
