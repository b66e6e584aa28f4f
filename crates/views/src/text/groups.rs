//! Packets by group: in go the groups of a measurement, out come a table of them, each with the span
//! of its worst tail, and then the spans of each.

use super::measurement::spans;
use super::paths::paths;
use super::table::{Table, left, or_none, right};
use super::units::{latency, percent, printable};
use super::{heading, line};
use nearpath_instruments::{Measurement, Per, Span};

/// All groups; nothing where none were asked for.
pub(super) fn groups(measurement: &Measurement, width: Option<usize>) -> String {
    let mut out = String::new();
    let Some(first) = measurement.groups.first() else { return out };
    heading(&mut out, &format!("by {}", what(first.per)));
    let mut table = Table::new(&[
        left("GROUP"),
        right("PACKETS"),
        right("OF-ALL"),
        right("P50").gives_way(1),
        right("P99"),
        right("MAX").gives_way(2),
        left("WORST-SPAN").gives_way(0),
    ]);
    for group in &measurement.groups {
        let time =
            |figure: fn(&Span) -> Option<u64>| or_none(group.worst().and_then(figure).map(latency));
        let of_all = group.packets as f64 / measurement.packets.started.max(1) as f64;
        table.row([
            group.name.clone(),
            group.packets.to_string(),
            percent(of_all),
            time(|span| span.p50_ns),
            time(|span| span.p99_ns),
            time(|span| span.max_ns),
            or_none(group.worst().map(|span| format!("{} -> {}", span.from, span.to))),
        ]);
    }
    out.push_str(&width.map_or_else(|| table.render(), |width| table.render_within(width).0));
    let lost = measurement.not_grouped;
    if lost.packets > 0 || lost.spans > 0 {
        line!(
            out,
            "(the others include {} packets, and {} latencies, for whose groups there was no room)",
            lost.packets,
            lost.spans
        );
    }
    for group in &measurement.groups {
        let title = format!("{} {}", what(group.per), printable(&group.name));
        // The name of a CPU says what it is.
        let title = match group.per {
            Per::Cpu | Per::Node => printable(&group.name),
            _ => title,
        };
        out.push_str(&paths(&group.paths, &title, width));
        out.push_str(&spans(&group.spans, &title, width));
    }
    out
}

pub(super) fn what(per: Per) -> &'static str {
    match per {
        Per::Cpu => "cpu",
        Per::Node => "node",
        Per::Queue => "queue",
        Per::Flow => "flow",
        Per::Process => "process",
        Per::Cgroup => "cgroup",
    }
}
