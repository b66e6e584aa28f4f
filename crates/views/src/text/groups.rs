//! Packets by group. Input: the groups of a measurement. Output: a table of the groups, each with the path and span of its
//! worst tail, and then the paths and spans of each.

use super::measurement::spans;
use super::paths::{exceeded, name, paths};
use super::table::{Table, left, or_none, right};
use super::units::{latency, percent, printable};
use super::{heading, line};
use nearpath_model::{Measurement, PathLatency, Per};

/// All groups; empty if none were requested.
pub(super) fn groups(measurement: &Measurement, width: Option<usize>) -> String {
    let mut out = String::new();
    let Some(first) = measurement.groups.first() else { return out };
    heading(&mut out, &format!("by {}", what(first.per)));
    let mut table = Table::new(&[
        left("GROUP"),
        right("PACKETS"),
        right("OF-ALL"),
        left("PATH").gives_way(1),
        right("P50").gives_way(2),
        right("P99"),
        right("MAX").gives_way(4),
        left("LONGER").optional().gives_way(3),
        left("WORST-SPAN").gives_way(0),
    ]);
    for group in &measurement.groups {
        let path = group.worst_path();
        let time =
            |figure: fn(&PathLatency) -> Option<u64>| or_none(path.and_then(figure).map(latency));
        let of_all = group.packets as f64 / measurement.packets.started.max(1) as f64;
        table.row([
            group.name.clone(),
            group.packets.to_string(),
            percent(of_all),
            or_none(path.map(|path| name(path.kind).to_owned())),
            time(|path| path.p50_ns),
            time(|path| path.p99_ns),
            time(|path| path.max_ns),
            or_none(path.and_then(exceeded)),
            or_none(group.worst().map(|span| format!("{} -> {}", span.from, span.to))),
        ]);
    }
    out.push_str(&width.map_or_else(|| table.render(), |width| table.render_within(width).0));
    let lost = measurement.not_grouped;
    if lost.packets > 0 || lost.spans > 0 {
        line!(
            out,
            "(the others include {} packets and {} latencies of groups that did not fit)",
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
