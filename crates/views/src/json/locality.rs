//! `measure locality --json --interval`: the packets of one interval.

use nearpath_model::locality::{Distances, LOCALITY_SCHEMA, Locality, Method};
use serde::Serialize;

/// What came between two readings.
#[derive(Debug, Serialize)]
pub struct LocalityInterval<'a> {
    schema: u32,
    /// Begin and end, in seconds since the measurement began.
    from_s: f64,
    to_s: f64,
    filter: &'a str,
    method: Method,
    rx: Distances,
    tx: Distances,
    events_lost: u64,
}

/// The document of the interval that ends with a reading.
pub fn locality_interval<'a>(before: &Locality, now: &'a Locality) -> LocalityInterval<'a> {
    LocalityInterval {
        schema: LOCALITY_SCHEMA,
        from_s: before.duration_s,
        to_s: now.duration_s,
        filter: &now.filter,
        method: now.method,
        rx: now.rx.since(&before.rx),
        tx: now.tx.since(&before.tx),
        events_lost: now.events_lost.saturating_sub(before.events_lost),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_has_what_came_in_it() {
        let reading = |duration_s, packets, same_cpu, events_lost| {
            let rx = Distances { packets, same_cpu, ..Distances::default() };
            Locality { duration_s, rx, events_lost, ..Locality::default() }
        };
        let (before, now) = (reading(1.0, 100, 90, 1), reading(2.5, 160, 120, 3));
        let line = serde_json::to_value(locality_interval(&before, &now)).unwrap();
        assert_eq!((&line["from_s"], &line["to_s"]), (&1.0.into(), &2.5.into()));
        assert_eq!((&line["rx"]["packets"], &line["rx"]["same_cpu"]), (&60.into(), &30.into()));
        assert_eq!((&line["tx"]["packets"], &line["events_lost"]), (&0.into(), &2.into()));
        assert_eq!(line["method"], "tracepoints");
    }
}
