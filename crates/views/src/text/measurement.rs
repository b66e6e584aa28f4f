//! `measure stages`: what was measured and what was not seen, the latencies of each span in the
//! order of the path, and their distributions.

use super::histogram::{direction, histogram};
use super::table::{Table, left, or_none, right};
use super::units::{digits, latency, percent, printable};
use super::{heading, line};
use nearpath_instruments::stages::StageListing;
use nearpath_instruments::{Direction, Measurement, NotObservable, Span};
use std::collections::BTreeMap;

/// The whole measurement for people.
pub fn measurement(measurement: &Measurement) -> String {
    let mut out = overview(measurement);
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
pub(super) fn overview(measurement: &Measurement) -> String {
    let mut out = header(measurement);
    for (path, title) in [(Direction::Rx, "receive path"), (Direction::Tx, "transmit path")] {
        let spans: Vec<&Span> =
            measurement.spans.iter().filter(|span| span.direction == path).collect();
        if !spans.is_empty() {
            line!(out);
            heading(&mut out, title);
            out.push_str(&table(&spans));
        }
    }
    if measurement.spans.is_empty() {
        line!(out, "no packet was seen between two stages");
    }
    out
}

fn header(measurement: &Measurement) -> String {
    let mut out = String::new();
    let filter = match measurement.filter.trim() {
        "" => "all packets".to_owned(),
        filter => format!("packets that match {}", printable(filter)),
    };
    heading(&mut out, &format!("measured {filter} for {} s", digits(measurement.duration_s)));
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
    match &measurement.cost {
        Some(cost) => line!(
            out,
            "cost:         {} ns per packet, {} ns per event, {} % of one CPU",
            digits(cost.ns_per_packet),
            digits(cost.ns_per_event),
            digits(cost.cpu_percent)
        ),
        None => {
            line!(out, "cost:         unknown (no run-time statistics of the kernel's programs)")
        }
    }
    out
}

fn table(spans: &[&Span]) -> String {
    let mut table = Table::new(&[
        left("FROM"),
        left("TO"),
        right("COUNT"),
        right("MIN"),
        right("P50"),
        right("P90"),
        right("P99"),
        right("P99.9"),
        right("MAX"),
        right("OTHER-CPU").optional(),
        right("OTHER-LLC").optional(),
        right("OTHER-NODE").optional(),
        left("MOSTLY").optional(),
    ]);
    for span in spans {
        let time = |ns: Option<u64>| or_none(ns.map(latency));
        table.row([
            span.from.clone(),
            span.to.clone(),
            span.count.to_string(),
            time(span.min_ns),
            time(span.p50_ns),
            time(span.p90_ns),
            time(span.p99_ns),
            time(span.p999_ns),
            time(span.max_ns),
            or_none(span.other_cpu.map(percent)),
            or_none(span.other_llc.map(percent)),
            or_none(span.other_node.map(percent)),
            or_none(mostly(span)),
        ]);
    }
    table.render()
}

/// `measure stages --list-stages`: how each stage is observed here, or why it cannot be.
pub fn stages(listing: &[StageListing]) -> String {
    let mut table =
        Table::new(&[left("DIR"), left("STAGE"), left("FUNCTION"), left("OBSERVED-BY")]);
    for stage in listing {
        let unseen = || stage.reason.as_ref().map(|reason| format!("not observable: {reason}"));
        table.row([
            direction(stage.direction).to_lowercase(),
            stage.stage.to_owned(),
            stage.function.to_owned(),
            or_none(stage.attach.clone().or_else(unseen)),
        ]);
    }
    table.render()
}

/// The commonest way of a span: `cpu 0 -> 1 (83 %)`.
fn mostly(span: &Span) -> Option<String> {
    let all = span.places.iter().fold(0u64, |sum, place| sum.saturating_add(place.count));
    let place = span.places.iter().max_by_key(|place| place.count).filter(|_| all > 0)?;
    let share = place.count as f64 / all as f64 * 100.0;
    Some(format!("cpu {} -> {} ({share:.0} %)", place.from_cpu, place.to_cpu))
}

/// Stages that could not be observed, folded by reason.
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
