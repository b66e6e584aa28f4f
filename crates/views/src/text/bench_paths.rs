//! `bench paths`: for each path and load the round trips and the stages into the virtual machine, and a picture of
//! them.
//!
//! Input: a report. Output: lines.

use super::latency::{background, bits_per_s};
use super::table::{Table, left, right};
use super::units::{digits, printable, seconds};
use super::{heading, latency, line};
use nearpath_model::histogram::by_number;
use nearpath_model::vm::{VmSpan, VmSpanKind};
use nearpath_trial::paths::{PathLoad, PathResult, PathVm, PathsReport};

/// The stages, each with its letter in the picture.
const STAGES: [(VmSpanKind, &str, char); 4] = [
    (VmSpanKind::InterruptToHandler, "(a) interrupt to handler", 'a'),
    (VmSpanKind::HandlerToVhost, "(b) handler to vhost", 'b'),
    (VmSpanKind::VhostToKvm, "(c) vhost to KVM", 'c'),
    (VmSpanKind::KvmToGuest, "(d) KVM to guest", 'd'),
];
/// The same of a device that is passed through: of its interrupts.
const DEVICE_STAGES: [(VmSpanKind, &str, char); 2] = [
    (VmSpanKind::InterruptToKvm, "(c) interrupt to KVM", 'c'),
    (VmSpanKind::KvmToGuest, "(d) KVM to guest", 'd'),
];
/// The rest of a round trip in the picture.
const REST: char = '.';
/// Characters of the longest bar.
const BAR: f64 = 60.0;
const PERCENTILES: [(&str, f64); 4] = [("50", 0.5), ("90", 0.9), ("99", 0.99), ("99.9", 0.999)];

/// What was compared, the table, and the picture.
pub fn bench_paths(report: &PathsReport) -> String {
    let mut out = String::new();
    line!(out, "{}", answer(report));
    let from = report.from.as_ref().map_or("this host".to_owned(), |from| printable(from));
    let (rounds, block) = (report.rounds, seconds(report.block_s));
    let (rate, bytes, seed) = (report.rate_per_s, report.size_bytes, report.seed);
    line!(
        out,
        "probed from {from} with {rate}/s of {bytes} bytes by UDP: {rounds} x {block} each, in random order (--seed {seed})"
    );
    line!(out);
    out.push_str(&table(report).render());
    line!(out);
    out.push_str(&picture(report));
    let reasons: Vec<String> = report.paths.iter().flat_map(rest).collect();
    if !reasons.is_empty() || !report.notes.is_empty() {
        line!(out);
    }
    for reason in reasons {
        line!(out, "{reason}");
    }
    for note in &report.notes {
        line!(out, "note: {}", printable(note));
    }
    out
}

/// The paths from the fastest to the slowest.
fn answer(report: &PathsReport) -> String {
    let load = report.paths.iter().map(|path| path.load).min().unwrap_or(PathLoad::None);
    let mut paths: Vec<(u64, &str)> = report
        .paths
        .iter()
        .filter(|path| path.load == load)
        .filter_map(|path| Some((*path.percentiles.get("50")?, path.path.as_str())))
        .collect();
    paths.sort_unstable();
    let with = match load {
        PathLoad::None => "without load".to_owned(),
        load => format!("under {} load", load.name().to_uppercase()),
    };
    let named: Vec<String> =
        paths.iter().map(|(ns, name)| format!("{} {}", printable(name), latency(*ns))).collect();
    match named.is_empty() {
        true => "no path answered often enough for a median".to_owned(),
        false => format!("median round trip {with}: {}", named.join(", ")),
    }
}

fn table(report: &PathsReport) -> Table {
    let mut table = Table::new(&[
        left("PATH"),
        left("LOAD"),
        left("STAGE"),
        right("COUNT"),
        right("LOST"),
        right("MIN"),
        right("MEAN"),
        right("STDDEV"),
        right("P50").optional(),
        right("P90").optional(),
        right("P99").optional(),
        right("P99.9").optional(),
        right("MAX"),
    ]);
    for path in &report.paths {
        let whole = |ns: Option<u64>| ns.map(latency).unwrap_or_default();
        let head = [path.path.clone(), path.load.name().to_owned(), "round trip".to_owned()];
        let counts = [path.received.to_string(), path.lost.to_string()];
        let mut row: Vec<String> = head.into_iter().chain(counts).collect();
        row.push(whole(path.min_ns));
        row.push(fraction(path.mean_ns));
        row.push(fraction(path.stddev_ns));
        row.extend(PERCENTILES.map(|(name, _)| whole(path.percentiles.get(name).copied())));
        row.push(whole(path.max_ns));
        table.row(row);
        let Some(vm) = &path.vm else { continue };
        let whole = match vm.device {
            Some(_) => "interrupt to guest",
            None => "whole into the guest",
        };
        for (kind, name, _) in stages(Some(vm)) {
            table.row(stage(path, name, vm.queue.span(*kind)));
        }
        table.row(stage(path, whole, vm.queue.span(VmSpanKind::Whole)));
    }
    table
}

/// The stages of the path into a virtual machine.
fn stages(vm: Option<&PathVm>) -> &'static [(VmSpanKind, &'static str, char)] {
    match vm.and_then(|vm| vm.device.as_ref()) {
        Some(_) => &DEVICE_STAGES,
        None => &STAGES,
    }
}

fn fraction(ns: Option<f64>) -> String {
    ns.map(|ns| latency(ns.round() as u64)).unwrap_or_default()
}

/// A row of a stage; its numbers except for count and maximum are those of its histogram.
fn stage(path: &PathResult, name: &str, span: Option<&VmSpan>) -> Vec<String> {
    let mut row = vec![path.path.clone(), path.load.name().to_owned(), format!("  {name}")];
    let Some(span) = span else {
        row.push("0".to_owned());
        return row;
    };
    let times = Times::of(span);
    row.extend([span.count.to_string(), String::new(), latency(times.min_ns)]);
    row.push(fraction(Some(times.mean_ns)));
    row.push(fraction(times.stddev_ns));
    row.extend(
        PERCENTILES.map(|(_, share)| times.percentile(share).map(latency).unwrap_or_default()),
    );
    row.push(latency(span.max_ns));
    row
}

/// The times of a histogram: each is taken for the middle of its bucket, which is 4.4 % wide.
struct Times {
    min_ns: u64,
    mean_ns: f64,
    stddev_ns: Option<f64>,
    max_ns: u64,
    filled: Vec<(usize, u64)>,
}

impl Times {
    fn of(span: &VmSpan) -> Self {
        /// Half of the width of a bucket: 2^(1/32).
        const HALF: f64 = 1.021_897_148_654_116_7;
        let middle = |upper: u64| (upper as f64 / HALF).min(span.max_ns as f64);
        let count = span.count.max(1) as f64;
        let sum: f64 = span.buckets.iter().map(|&(upper, n)| middle(upper) * n as f64).sum();
        let mean_ns = sum / count;
        let squares =
            span.buckets.iter().map(|&(upper, n)| (middle(upper) - mean_ns).powi(2) * n as f64);
        let stddev_ns = (span.count > 1).then(|| (squares.sum::<f64>() / (count - 1.0)).sqrt());
        let min_ns = span.buckets.first().map_or(0, |&(upper, _)| middle(upper).round() as u64);
        let filled = by_number(&span.buckets).into_iter().collect();
        Self { min_ns, mean_ns, stddev_ns, max_ns: span.max_ns, filled }
    }

    fn percentile(&self, share: f64) -> Option<u64> {
        let ns = nearpath_model::histogram::quantile_ns(&self.filled, share)?;
        Some((ns.round().max(0.0) as u64).min(self.max_ns))
    }
}

/// A bar for each path and load: the mean of each stage, and of the rest of the round trip.
fn picture(report: &PathsReport) -> String {
    let mut out = String::new();
    let longest = report.paths.iter().filter_map(|path| path.mean_ns).fold(0.0, f64::max);
    heading(
        &mut out,
        "mean round trip: a, b, c, d as in the table; the rest is before and after the path into the guest",
    );
    let wide = |of: fn(&PathResult) -> usize| report.paths.iter().map(of).max().unwrap_or(0);
    let name_width = wide(|path| printable(&path.path).chars().count());
    for path in &report.paths {
        let Some(mean_ns) = path.mean_ns else { continue };
        let bar = bar(path.vm.as_ref(), mean_ns, BAR / longest.max(1.0));
        let (name, load) = (printable(&path.path), path.load.name());
        line!(out, "  {name:<name_width$}  {load:<4} |{bar} {}", fraction(Some(mean_ns)));
    }
    out
}

/// The parts in order, each as long as its share: rounded at its end, so that the bar's length is that of the whole.
fn bar(vm: Option<&PathVm>, mean_ns: f64, per_ns: f64) -> String {
    let mut bar = String::new();
    let mut end_ns = 0.0;
    let mut add = |ns: f64, letter: char| {
        end_ns += ns;
        let end = (end_ns * per_ns).round() as usize;
        while bar.len() < end {
            bar.push(letter);
        }
    };
    let mut inside_ns = 0.0;
    for (kind, _, letter) in stages(vm) {
        let span = vm.and_then(|vm| vm.queue.span(*kind));
        // Of all probes on their way into the guest: some have no interrupt of their own.
        let whole = vm.map_or(0, |vm| vm.queue.entered()).max(1) as f64;
        let ns = span.map_or(0.0, |span| Times::of(span).mean_ns * span.count as f64 / whole);
        add(ns, *letter);
        inside_ns += ns;
    }
    add((mean_ns - inside_ns).max(0.0), REST);
    bar
}

/// Where a path's stages are, why there are none, and its load.
fn rest(path: &PathResult) -> Vec<String> {
    let mut out = Vec::new();
    let head = format!("{}, load {}", printable(&path.path), path.load.name());
    if let Some(vm) = &path.vm {
        let name = vm.name.as_deref().map_or("unknown".to_owned(), printable);
        let pid = vm.pid.map(|pid| format!(" {pid}")).unwrap_or_default();
        let number = vm.queue.queue.map_or(" several queues".to_owned(), |n| format!(" queue {n}"));
        let each = digits(vm.queue.interrupted as f64 / vm.queue.interrupts.max(1) as f64);
        let tap = printable(&vm.queue.tap);
        let (entered, interrupts) = (vm.queue.entered(), vm.queue.interrupts);
        out.push(match &vm.device {
            Some(device) => format!(
                "{head}: into {name}{pid} by {}: {} interrupts for {} probes, {entered} reached the guest; which of \
                 them the probes raised is not known",
                printable(device),
                vm.queue.taken,
                path.sent
            ),
            None => format!(
                "{head}: into {name}{pid} by {tap}{number}, {entered} probes in {interrupts} interrupts, {each} each"
            ),
        });
    }
    if let Some(reason) = &path.not_split {
        let what = if path.vm.is_some() { "" } else { "not split: " };
        out.push(format!("{head}: {what}{}", printable(reason)));
    }
    out.extend(path.streams.iter().map(|load| format!("{head}: {}", background(load))));
    if let Some(own) = &path.own_load {
        let bits = own.sent as f64 * f64::from(own.size_bytes) * 8.0 / own.seconds.max(1e-9);
        out.push(format!(
            "{head}: {} datagrams of nearpath's own sent, {}, {} answered",
            own.sent,
            bits_per_s(bits),
            own.answered
        ));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_model::histogram::bucket;
    use nearpath_model::vm::VmQueue;
    use serde_json::json;

    fn span(kind: VmSpanKind, count: u64, ns: u64) -> VmSpan {
        VmSpan::new(kind, &[(bucket(ns), count)], ns).unwrap()
    }

    fn report() -> PathsReport {
        let row = |path: &str, load: &str, ms: u64| {
            json!({"path": path, "target": "10.0.0.2:7", "load": load, "sent": 1000, "received": 998, "lost": 2,
                "uncounted": 40, "min_ns": ms * 900_000, "mean_ns": ms as f64 * 1e6, "stddev_ns": 50_000.0,
                "percentiles": {"50": ms * 1_000_000, "90": ms * 1_100_000, "99": ms * 1_200_000},
                "max_ns": ms * 2_000_000, "vm": null, "not_split": null, "streams": [], "own_load": null})
        };
        let mut report: PathsReport = serde_json::from_value(json!({"schema": 1, "from": "peer", "seed": 7,
            "rounds": 2, "block_s": 5.0, "rate_per_s": 100, "size_bytes": 64, "order": [["tap", "none"]],
            "paths": [row("host", "none", 1), row("tap", "none", 4), row("tap", "udp", 8)],
            "notes": ["mind the gap"]}))
        .unwrap();
        report.paths[0].not_split = Some("the target is this host itself (br0)".to_owned());
        let spans = vec![
            span(VmSpanKind::InterruptToHandler, 500, 400_000),
            span(VmSpanKind::HandlerToVhost, 1000, 200_000),
            span(VmSpanKind::VhostToKvm, 1000, 1_000_000),
            span(VmSpanKind::KvmToGuest, 1000, 400_000),
            span(VmSpanKind::Whole, 1000, 1_800_000),
        ];
        let queue = VmQueue {
            tap: "tap0".to_owned(),
            queue: Some(0),
            taken: 1000,
            interrupts: 800,
            interrupted: 1000,
            spans,
            ..VmQueue::default()
        };
        report.paths[1].vm =
            Some(PathVm { pid: Some(42), name: Some("web".to_owned()), queue, device: None });
        report.paths[2].own_load = serde_json::from_value(
            json!({"sent": 500, "answered": 499, "size_bytes": 1400, "seconds": 5.6}),
        )
        .unwrap();
        report
    }

    #[test]
    fn each_path_has_its_stages_and_a_bar() {
        let expected = "\
median round trip without load: host 1.00ms, tap 4.00ms
probed from peer with 100/s of 64 bytes by UDP: 2 x 5.00s each, in random order (--seed 7)

PATH  LOAD  STAGE                       COUNT  LOST     MIN    MEAN  STDDEV     P50     P90     P99   P99.9     MAX
host  none  round trip                    998     2   900µs  1.00ms  50.0µs  1.00ms  1.10ms  1.20ms       -  2.00ms
tap   none  round trip                    998     2  3.60ms  4.00ms  50.0µs  4.00ms  4.40ms  4.80ms       -  8.00ms
tap   none    (a) interrupt to handler    500     -   400µs   400µs     0ns   400µs   400µs   400µs       -   400µs
tap   none    (b) handler to vhost       1000     -   200µs   200µs     0ns   200µs   200µs   200µs   200µs   200µs
tap   none    (c) vhost to KVM           1000     -   998µs   998µs     0ns   998µs  1.00ms  1.00ms  1.00ms  1.00ms
tap   none    (d) KVM to guest           1000     -   400µs   400µs     0ns   400µs   400µs   400µs   400µs   400µs
tap   none    whole into the guest       1000     -  1.80ms  1.80ms     0ns  1.80ms  1.80ms  1.80ms  1.80ms  1.80ms
tap   udp   round trip                    998     2  7.20ms  8.00ms  50.0µs  8.00ms  8.80ms  9.60ms       -  16.0ms

mean round trip: a, b, c, d as in the table; the rest is before and after the path into the guest
  host  none |........ 1.00ms
  tap   none |aabcccccccddd................. 4.00ms
  tap   udp  |............................................................ 8.00ms

host, load none: not split: the target is this host itself (br0)
tap, load none: into web 42 by tap0 queue 0, 1000 probes in 800 interrupts, 1.25 each
tap, load udp: 500 datagrams of nearpath's own sent, 1.0 Mbit/s, 499 answered
note: mind the gap
";
        assert_eq!(anstream::adapter::strip_str(&bench_paths(&report())).to_string(), expected);
    }

    #[test]
    fn a_bar_is_as_long_as_its_mean() {
        let report = report();
        let bar = bar(report.paths[1].vm.as_ref(), 4e6, 10.0 / 1e6);
        // Half of the packets have (a), 0.4 ms: 0.2 ms on average.
        assert_eq!(bar, "aabbccccccccccdddd......................");
        assert_eq!(super::bar(None, 4e6, 1e-6), "....");
    }
}
