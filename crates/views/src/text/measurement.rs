//! `measure stages`: what was and was not measured, the latencies of each span in path order, and their distributions.

use super::histogram::{direction, histogram};
use super::table::{Column, Table, left, or_none, right};
use super::units::{digits, latency, percent, percentage, printable};
use super::{drops, groups, heading, line, outliers, paths, stamps, timelines, vm};
use nearpath_model::{
    Cost, Detail, Direction, Measurement, NotObservable, Span, StageListing, Watch,
};
use std::collections::BTreeMap;

/// The whole measurement; `width` is that of the terminal, `None` for other outputs.
pub fn measurement(measurement: &Measurement, width: Option<usize>) -> String {
    let mut out = paths::summary(measurement);
    out.push_str(&overview(measurement, width));
    let groups = groups::groups(measurement, width);
    if !groups.is_empty() {
        line!(out);
        out.push_str(&groups);
    }
    let slowest = timelines::slowest(measurement);
    if !slowest.is_empty() {
        line!(out);
        out.push_str(&slowest);
    }
    for span in measurement.spans.iter().filter(|span| !span.buckets.is_empty()) {
        line!(out);
        out.push_str(&printable_lines(&histogram(span)));
    }
    let blind = not_observable(&measurement.not_observable);
    if !blind.is_empty() {
        line!(out);
        out.push_str(&blind);
    }
    out
}

/// Without the distributions: the heads and the tables of spans.
pub(super) fn overview(measurement: &Measurement, width: Option<usize>) -> String {
    let mut out = header(measurement);
    out.push_str(&stamps::nic_stamps(measurement.nic_stamps.as_ref()));
    out.push_str(&paths::paths(&measurement.paths, "", width));
    out.push_str(&drops::of_stages(measurement, width));
    out.push_str(&spans(&measurement.spans, "", width));
    if let Some(what) = NeverCrossed::of(&measurement.spans).in_words() {
        line!(out);
        line!(out, "no packet went to another {what} between two stages");
    }
    if measurement.spans.is_empty() {
        line!(out, "no packet was seen between two stages");
    }
    if let Some(guests) = &measurement.into_guests {
        line!(out);
        out.push_str(&vm::into_guests(guests));
    }
    let totals = outliers::totals(measurement, width);
    if !totals.is_empty() {
        line!(out);
        out.push_str(&totals);
    }
    out
}

/// The tables of spans of either path, under a heading with the group's name.
pub(super) fn spans(all: &[Span], whose: &str, width: Option<usize>) -> String {
    let mut out = String::new();
    let same = NeverCrossed::of(all);
    for (path, title) in [(Direction::Rx, "receive path"), (Direction::Tx, "transmit path")] {
        let spans: Vec<&Span> = all.iter().filter(|span| span.direction == path).collect();
        if !spans.is_empty() {
            line!(out);
            let whose = if whose.is_empty() { String::new() } else { format!("{whose}, ") };
            heading(&mut out, &format!("{whose}{title}"));
            out.push_str(&table(&spans, same, width));
        }
    }
    out
}

/// `201234 received packets in 10.0s, 812 later than 1.00ms, 98.0% of these explained; causes were recorded for 9.80s`.
fn watched(watch: &Watch) -> String {
    if let Some(reason) = &watch.not_watched {
        return format!("not every packet: {}", printable(reason));
    }
    let mut out = format!(
        "{} received packets in {}s, {} later than {}",
        watch.packets,
        digits(watch.watched_s),
        watch.late,
        latency(watch.late_ns)
    );
    if watch.late > 0 {
        let explained = percent((watch.explained as f64 / watch.late as f64).min(1.0));
        out.push_str(&format!(", {explained} of these explained"));
    }
    if watch.unstamped > 0 {
        out.push_str(&format!("; {} more without a time stamp", watch.unstamped));
    }
    if watch.recorded_s < 0.99 * watch.watched_s {
        out.push_str(&format!("; causes were recorded for {}s", digits(watch.recorded_s)));
    }
    out
}

fn header(measurement: &Measurement) -> String {
    let mut out = String::new();
    measured(&mut out, &measurement.filter, measurement.duration_s);
    if let Some(watch) = &measurement.watch {
        line!(out, "watched:      {}", watched(watch));
    }
    if let Some(observed) = measurement.observed_s {
        let limit = measurement.limit_percent.map_or_else(String::new, |limit| {
            format!(", limited to {} of a CPU", percentage(limit))
        });
        let rate = measurement.packets.started as f64 / observed.max(f64::MIN_POSITIVE);
        line!(
            out,
            "observed:     {}s of it, {}{limit}; counts are of that time: {rate:.0} packets/s",
            digits(observed),
            percent(observed / measurement.duration_s)
        );
    }
    if let Some(detail) = measurement.detail.filter(|&detail| detail < Detail::Full) {
        let stages = measurement.stages.len();
        line!(out, "detail:       {}, {stages} stages (--detail full for all)", detail.name());
    }
    let packets = &measurement.packets;
    let share = |part: u64| match packets.started {
        0 => String::new(),
        all => format!(" ({})", percent(part as f64 / all as f64)),
    };
    line!(
        out,
        "packets:      {} started, {} completed{}",
        packets.started,
        packets.completed,
        share(packets.completed)
    );
    line!(
        out,
        "not followed: {} dropped, {} abandoned{}, {} collided, {} sampled out; {} events lost",
        packets.dropped,
        packets.abandoned,
        share(packets.abandoned),
        packets.collided,
        packets.sampled_out,
        measurement.events_lost
    );
    if let Some(refused) = &measurement.fallback {
        line!(out, "fallback:     {}", printable(refused));
    }
    cost(&mut out, measurement.cost.as_ref(), &measurement.filter, packets.started);
    out
}

/// The heading of a measurement: of which packets, and how long.
pub(super) fn measured(out: &mut String, filter: &str, seconds: f64) {
    let filter = match filter.trim() {
        "" => "all packets".to_owned(),
        filter => format!("packets that match {}", printable(filter)),
    };
    heading(out, &format!("measured {filter} for {}s", digits(seconds)));
}

/// The overhead for packets that match a filter.
pub(super) fn cost(out: &mut String, cost: Option<&Cost>, filter: &str, started: u64) {
    match cost {
        Some(cost) => line!(
            *out,
            "cost:         {}ns per {}, {}ns per event, {} of one CPU",
            digits(cost.ns_per_packet),
            if filter.is_empty() {
                "packet"
            } else {
                "matching packet (including runs for others)"
            },
            digits(cost.ns_per_event),
            percentage(cost.cpu_percent)
        ),
        None if started == 0 => line!(*out, "cost:         unknown (no packet was seen)"),
        None => line!(
            *out,
            "cost:         unknown (no BPF run-time statistics in this kernel, or no packet while \
             they were enabled)"
        ),
    }
}

/// The spans of a path. If the table is wider than the terminal, both stages share a column and the less important
/// columns are hidden, which is noted below.
fn table(spans: &[&Span], same: NeverCrossed, width: Option<usize>) -> String {
    let columns = [&[left("FROM"), left("TO")], FIGURES.as_slice()].concat();
    let mut table = Table::new(&columns).shares_stand_out();
    for span in spans {
        table.row([span.from.clone(), span.to.clone()].into_iter().chain(figures(span, same)));
    }
    let wide = table.render();
    match width {
        Some(width) if wide.lines().any(|line| line.chars().count() > width) => {
            narrow_table(spans, same, width)
        }
        _ => wide,
    }
}

fn narrow_table(spans: &[&Span], same: NeverCrossed, width: usize) -> String {
    let columns = [&[left("FROM -> TO")], FIGURES.as_slice()].concat();
    let mut table = Table::new(&columns).shares_stand_out();
    for group in spans.chunk_by(|a, b| a.from == b.from) {
        if let Some(span) = group.first() {
            table.title(&span.from);
        }
        for span in group {
            table.row([format!("  -> {}", span.to)].into_iter().chain(figures(span, same)));
        }
    }
    let (mut out, left_out) = table.render_within(width);
    if !left_out.is_empty() {
        line!(out, "(hidden: {}; use a wider terminal or a pipe)", left_out.join(", "));
    }
    out
}

/// What no packet changed, for instance because the host has only one: noted once instead of a column.
#[derive(Clone, Copy)]
struct NeverCrossed {
    llc: bool,
    node: bool,
}

impl NeverCrossed {
    fn of(spans: &[Span]) -> Self {
        let none = |share: fn(&Span) -> Option<f64>| {
            !spans.is_empty() && spans.iter().all(|span| share(span) == Some(0.0))
        };
        Self { llc: none(|span| span.other_llc), node: none(|span| span.other_node) }
    }

    fn in_words(self) -> Option<&'static str> {
        match (self.llc, self.node) {
            (true, true) => Some("LLC or node"),
            (true, false) => Some("LLC"),
            (false, true) => Some("node"),
            (false, false) => None,
        }
    }
}

/// The figures of each span.
const FIGURES: [Column; 11] = [
    right("COUNT"),
    right("MIN").gives_way(2),
    right("P50"),
    right("P90").gives_way(5),
    right("P99"),
    right("P99.9").gives_way(4),
    right("MAX").gives_way(7),
    right("OTHER-CPU").optional().gives_way(6),
    right("OTHER-LLC").optional().gives_way(3),
    right("OTHER-NODE").optional().gives_way(3),
    left("MOSTLY").optional().gives_way(1),
];

fn figures(span: &Span, same: NeverCrossed) -> [String; FIGURES.len()] {
    let time = |ns: Option<u64>| or_none(ns.map(latency));
    let share = |share: Option<f64>| or_none(share.map(percent));
    [
        span.count.to_string(),
        time(span.min_ns),
        time(span.p50_ns),
        time(span.p90_ns),
        time(span.p99_ns),
        time(span.p999_ns),
        time(span.max_ns),
        share(span.other_cpu),
        share(span.other_llc.filter(|_| !same.llc)),
        share(span.other_node.filter(|_| !same.node)),
        or_none(mostly(span)),
    ]
}

/// `measure stages --list-stages`: how each stage is observed here, or why it cannot be.
pub fn stages(stages: &[StageListing], into_guests: &[StageListing]) -> String {
    let mut out = listing(stages);
    line!(out);
    heading(&mut out, "from the tap of a virtual machine into its guest");
    out.push_str(&listing(into_guests));
    out
}

fn listing(listing: &[StageListing]) -> String {
    let mut table = Table::new(&[
        left("DIR"),
        left("STAGE"),
        left("DETAIL"),
        left("FUNCTION"),
        left("OBSERVED-BY"),
    ]);
    for stage in listing {
        let unseen = || stage.reason.as_ref().map(|reason| format!("not observable: {reason}"));
        table.row([
            direction(stage.direction).to_lowercase(),
            stage.stage.to_owned(),
            stage.detail.name().to_owned(),
            stage.function.to_owned(),
            or_none(stage.attach.clone().or_else(unseen)),
        ]);
    }
    table.render()
}

/// The most common CPUs of a span: `cpu 0 -> 1 (83.0%)`, `cpu 0 (100%)` if it stayed.
fn mostly(span: &Span) -> Option<String> {
    let all = span.places.iter().fold(0u64, |sum, place| sum.saturating_add(place.count));
    let place = span.places.iter().max_by_key(|place| place.count).filter(|_| all > 0)?;
    let share = percent(place.count as f64 / all as f64);
    let (from, to) = (place.from_cpu, place.to_cpu);
    let way = if from == to { from.to_string() } else { format!("{from} -> {to}") };
    Some(format!("cpu {way} ({share})"))
}

/// Stages that could not be observed, grouped by reason.
pub(super) fn not_observable(stages: &[NotObservable]) -> String {
    let mut by_reason: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for stage in stages {
        let name = match stage.direction {
            Some(path) => format!("{} {}", direction(path), stage.stage),
            None => stage.stage.clone(),
        };
        by_reason.entry(stage.reason.as_str()).or_default().push(name);
    }
    let mut out = String::new();
    if !by_reason.is_empty() {
        heading(&mut out, "not observable:");
    }
    for (reason, names) in by_reason {
        line!(out, "  {}", printable(&format!("{}: {reason}", names.join(", "))));
    }
    out
}

fn printable_lines(text: &str) -> String {
    text.lines().map(|line| printable(line) + "\n").collect()
}
