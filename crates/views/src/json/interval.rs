//! `measure … --json --interval`: what came between two readings of a measurement, a document a line.

use nearpath_model::accepts::AcceptMeasurement;
use nearpath_model::drops::DropMeasurement;
use nearpath_model::irqs::IrqMeasurement;
use nearpath_model::memory::MemoryMeasurement;
use nearpath_model::tcp::TcpMeasurement;
use nearpath_model::{MEASUREMENT_SCHEMA, Measurement, Packets, PathLatency, Slow, Span};
use serde::Serialize;

/// A measurement of an interval, in the form of the whole.
#[derive(Debug, Serialize)]
pub struct Interval<T> {
    /// Begin and end, in seconds since the measurement began.
    from_s: f64,
    to_s: f64,
    #[serde(flatten)]
    measurement: T,
}

/// The interrupts of the interval that ends with a reading.
pub fn irqs_interval(before: &IrqMeasurement, now: &IrqMeasurement) -> Interval<IrqMeasurement> {
    let (from_s, to_s) = (before.duration_s, now.duration_s);
    Interval { from_s, to_s, measurement: now.since(before) }
}

/// The drops of the interval that ends with a reading.
pub fn drops_interval(
    before: &DropMeasurement,
    now: &DropMeasurement,
) -> Interval<DropMeasurement> {
    let (from_s, to_s) = (before.duration_s, now.duration_s);
    Interval { from_s, to_s, measurement: now.since(before) }
}

/// The memory at the end of the interval that ends with a reading, and the pages moved in it.
pub fn memory_interval(
    before: &MemoryMeasurement,
    now: &MemoryMeasurement,
) -> Interval<MemoryMeasurement> {
    let (from_s, to_s) = (before.duration_s.unwrap_or(0.0), now.duration_s.unwrap_or(0.0));
    Interval { from_s, to_s, measurement: now.since(before) }
}

/// The accepts of the interval that ends with a reading.
pub fn accepts_interval(
    before: &AcceptMeasurement,
    now: &AcceptMeasurement,
) -> Interval<AcceptMeasurement> {
    let (from_s, to_s) = (before.duration_s, now.duration_s);
    Interval { from_s, to_s, measurement: now.since(before) }
}

/// The connections in the interval that ends with a reading; of the first `top` alone, if given. Both readings must
/// have all.
pub fn tcp_interval(
    before: &TcpMeasurement,
    now: &TcpMeasurement,
    top: Option<usize>,
) -> Interval<TcpMeasurement> {
    let (from_s, to_s) = (before.duration_s, now.duration_s);
    let mut measurement = now.since(before);
    measurement.connections.sort_by_key(|one| std::cmp::Reverse(one.interval.bytes()));
    measurement.connections.truncate(top.unwrap_or(usize::MAX));
    Interval { from_s, to_s, measurement }
}

/// The spans of an interval.
#[derive(Debug, Serialize)]
pub struct StagesInterval<'a> {
    schema: u32,
    from_s: f64,
    to_s: f64,
    filter: &'a str,
    packets: PacketsOfInterval,
    events_lost: u64,
    bucket_schema: u32,
    paths: Vec<PathLatency>,
    spans: Vec<Span>,
    slow: Slow,
}

/// What became of packets in an interval. Packets without an observed end are reported only for the total: at
/// the end of an interval it is unknown which of them will continue.
#[derive(Debug, Serialize)]
struct PacketsOfInterval {
    started: u64,
    completed: u64,
    dropped: u64,
    collided: u64,
    sampled_out: u64,
}

/// The stages of the interval that ends with a reading.
pub fn stages_interval<'a>(before: &Measurement, now: &'a Measurement) -> StagesInterval<'a> {
    let packets = |of: fn(&Packets) -> u64| of(&now.packets).saturating_sub(of(&before.packets));
    StagesInterval {
        schema: MEASUREMENT_SCHEMA,
        from_s: before.duration_s,
        to_s: now.duration_s,
        filter: &now.filter,
        packets: PacketsOfInterval {
            started: packets(|p| p.started),
            completed: packets(|p| p.completed),
            dropped: packets(|p| p.dropped),
            collided: packets(|p| p.collided),
            sampled_out: packets(|p| p.sampled_out),
        },
        events_lost: now.events_lost.saturating_sub(before.events_lost),
        bucket_schema: now.bucket_schema,
        paths: now.paths_since(before),
        spans: now.spans_since(before),
        slow: now.slow.since(&before.slow),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_begins_where_the_one_before_ends() {
        let reading = |duration_s, events_lost| IrqMeasurement {
            duration_s,
            events_lost,
            ..IrqMeasurement::default()
        };
        let line = serde_json::to_value(irqs_interval(&reading(1.0, 2), &reading(2.5, 7))).unwrap();
        assert_eq!((&line["from_s"], &line["to_s"]), (&1.0.into(), &2.5.into()));
        assert_eq!((&line["duration_s"], &line["events_lost"]), (&1.5.into(), &5.into()));
        assert!(line["queues"].is_array() && line["softirqs"].is_object(), "{line}");
    }

    #[test]
    fn packets_are_those_of_the_interval() {
        let reading = |started, completed, abandoned| Measurement {
            packets: Packets { started, completed, abandoned, ..Packets::default() },
            filter: "--proto udp".to_owned(),
            ..Measurement::default()
        };
        let (before, now) = (reading(100, 90, 10), reading(160, 155, 5));
        let line = serde_json::to_value(stages_interval(&before, &now)).unwrap();
        let packets = &line["packets"];
        assert_eq!((&packets["started"], &packets["completed"]), (&60.into(), &65.into()));
        assert_eq!(packets.get("abandoned"), None);
        assert_eq!(line["filter"], "--proto udp");
    }
}
