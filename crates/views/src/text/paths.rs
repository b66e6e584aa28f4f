//! Whole paths. Input: the latencies of each kind. Output: a summary line, and a table.

use super::table::{Column, Table, left, or_none, right};
use super::units::{digits, latency, percent, percentage};
use super::{heading, line};
use nearpath_model::{Above, Measurement, PathKind, PathLatency};

/// The first line of a measurement: end-to-end latency.
pub(super) fn summary(measurement: &Measurement) -> String {
    let paths = measurement.paths.iter().filter(|path| path.kind != PathKind::KernelTransmit);
    let parts: Vec<String> = paths.map(in_a_line).collect();
    let mut out = String::new();
    if parts.is_empty() {
        line!(out, "end to end: no packet completed its path{}", when(measurement));
    } else {
        heading(&mut out, &format!("end to end: {}", parts.join("; ")));
    }
    out
}

/// Where the overhead limit left little time: ` in the 0.12s of 10s that --max-overhead 2% left to observe`.
fn when(measurement: &Measurement) -> String {
    let little = |observed: &f64| *observed < 0.5 * measurement.duration_s;
    let Some(observed) = measurement.observed_s.filter(little) else { return String::new() };
    let limit = measurement.limit_percent.map_or_else(
        || "--duty".to_owned(),
        |limit| format!("--max-overhead {}", percentage(limit)),
    );
    let (observed, all) = (digits(observed), digits(measurement.duration_s));
    format!(" in the {observed}s of {all}s that {limit} left to observe")
}

/// `receive p50 12.1µs, p99 180µs, p99.9 1.20ms, max 12.6ms, 0.120% above 1ms (537103 packets)`.
fn in_a_line(path: &PathLatency) -> String {
    let figures =
        [("p50", path.p50_ns), ("p99", path.p99_ns), ("p99.9", path.p999_ns), ("max", path.max_ns)];
    let figure = |(name, ns): (&str, Option<u64>)| Some(format!("{name} {}", latency(ns?)));
    let mut parts: Vec<String> = figures.into_iter().filter_map(figure).collect();
    parts.extend(longest(path).map(|above| format!("{} above {}", share(above), round(above.ns))));
    let packets = if path.count == 1 { "packet" } else { "packets" };
    // A transmission normally starts at the send call.
    let from = match path.kind {
        PathKind::Transmit if path.from != SEND_CALL => format!(" from {}", path.from),
        _ => String::new(),
    };
    format!("{}{from} {} ({} {packets})", name(path.kind), parts.join(", "), path.count)
}

/// The longest time that some packet exceeded, which says most.
fn longest(path: &PathLatency) -> Option<&Above> {
    path.above.iter().rev().find(|above| above.count > 0)
}

/// The share of packets above that time: `0.120% > 1ms`.
pub(super) fn exceeded(path: &PathLatency) -> Option<String> {
    longest(path).map(|above| format!("{} > {}", share(above), round(above.ns)))
}

/// The first stage of a send call.
const SEND_CALL: &str = "sock_send";

/// The display name of a kind.
pub fn name(kind: PathKind) -> &'static str {
    match kind {
        PathKind::ReceiveFromNic => "receive from the NIC",
        PathKind::Receive => "receive",
        PathKind::ForwardFromNic => "forward from the NIC",
        PathKind::Forward => "forward",
        PathKind::Transmit => "transmit",
        PathKind::KernelTransmit => "transmit by the kernel",
        PathKind::Watch => "every packet received",
    }
}

/// A share that may be small: `0.12%`, `<0.001%`.
fn share(above: &Above) -> String {
    if above.count == 0 { "0%".to_owned() } else { percent(above.share) }
}

/// A time chosen by the user, without trailing zeros: `1ms`, `250µs`.
fn round(ns: u64) -> String {
    let text = latency(ns);
    let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let number = match number.contains('.') {
        true => number.trim_end_matches('0').trim_end_matches('.'),
        false => number,
    };
    format!("{number}{unit}")
}

const COLUMNS: [Column; 13] = [
    left("PATH"),
    left("FROM").gives_way(0),
    right("COUNT"),
    right("MIN").gives_way(2),
    right("P50"),
    right("P90").gives_way(6),
    right("P99"),
    right("P99.9").gives_way(5),
    right("MAX").gives_way(7),
    right("OTHER-CPU").optional().gives_way(4),
    right("OTHER-LLC").optional().gives_way(3),
    right("OTHER-NODE").optional().gives_way(3),
    left("LONGER").gives_way(1),
];

/// All kinds, under a heading with the group's name; empty without any.
pub(super) fn paths(all: &[PathLatency], whose: &str, width: Option<usize>) -> String {
    let mut out = String::new();
    if all.is_empty() {
        return out;
    }
    let whose = if whose.is_empty() { String::new() } else { format!("{whose}, ") };
    line!(out);
    heading(&mut out, &format!("{whose}end to end"));
    let mut table = Table::new(&COLUMNS).shares_stand_out();
    for path in all {
        let time = |ns: Option<u64>| or_none(ns.map(latency));
        // Said once below the spans where no packet changed them.
        let crossed = |of: fn(&PathLatency) -> Option<f64>| {
            let none = all.iter().all(|path| of(path) == Some(0.0));
            or_none(of(path).filter(|_| !none).map(percent))
        };
        let longer = |above: &Above| format!("{} > {}", share(above), round(above.ns));
        table.row([
            name(path.kind).to_owned(),
            path.from.clone(),
            path.count.to_string(),
            time(path.min_ns),
            time(path.p50_ns),
            time(path.p90_ns),
            time(path.p99_ns),
            time(path.p999_ns),
            time(path.max_ns),
            or_none(path.other_cpu.map(percent)),
            crossed(|path| path.other_llc),
            crossed(|path| path.other_node),
            path.above.iter().map(longer).collect::<Vec<_>>().join(", "),
        ]);
    }
    out.push_str(&width.map_or_else(|| table.render(), |width| table.render_within(width).0));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chosen_times_and_small_shares_are_short() {
        let times = [(1_000_000, "1ms"), (250_000, "250µs"), (2_500_000, "2.5ms"), (100, "100ns")];
        for (ns, text) in times {
            assert_eq!(round(ns), text);
        }
        let above = |count, share| Above { ns: 1, count, share };
        assert_eq!(share(&above(0, 0.0)), "0%");
        assert_eq!(share(&above(1, 1e-9)), "<0.001%");
        assert_eq!(share(&above(12, 0.0012)), "0.12%");
    }
}
