//! The packets of a measurement as what a prediction weighs its queues by: in goes what `measure stages`
//! saw, out come packets by queue, and by the CPU that they arrive on.

use nearpath_host::{CpuId, Nic, QueueId, Topology};
use nearpath_instruments::{Direction, Measurement, Per, Span};
use std::collections::{BTreeMap, BTreeSet};

/// On hosts of more CPUs a place of a measurement is a cache, not a CPU.
const CPUS_MAX: usize = 128;

/// Packets that were measured; empty when nothing was.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Received packets by `eth0 rx-0`, where the measurement was by queue.
    pub(super) queues: BTreeMap<String, u64>,
    /// Received packets by the CPU that they arrived on, before any steering.
    pub(super) arrivals: BTreeMap<CpuId, u64>,
}

impl Traffic {
    /// That of a measurement of this host.
    pub fn of_measurement(measurement: &Measurement, topology: &Topology) -> Self {
        let by_queue = measurement.groups.iter().filter(|group| group.per == Per::Queue);
        let queues = by_queue.map(|group| (group.name.clone(), group.packets)).collect();
        let arrivals = if topology.online.len() > CPUS_MAX {
            BTreeMap::new()
        } else {
            arrivals(&measurement.spans)
        };
        Self { queues, arrivals }
    }

    /// The packets of a queue; `None` when they were not measured.
    pub(super) fn of(&self, nic: &Nic, queue: QueueId) -> Option<u64> {
        self.queues.get(&format!("{} rx-{queue}", nic.name)).copied()
    }
}

/// Packets by the CPU of the first stage of the receive path: of those that no span leads to.
fn arrivals(spans: &[Span]) -> BTreeMap<CpuId, u64> {
    let received = || spans.iter().filter(|span| span.direction == Direction::Rx && span.count > 0);
    let reached: BTreeSet<&str> = received().map(|span| span.to.as_str()).collect();
    let mut arrivals = BTreeMap::new();
    for span in received().filter(|span| !reached.contains(span.from.as_str())) {
        for place in &span.places {
            *arrivals.entry(place.from_cpu).or_default() += place.count;
        }
    }
    arrivals
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_instruments::{Group, Place};

    fn span(from: &str, to: &str, places: &[(u32, u32, u64)]) -> Span {
        let place = |&(from, to, count): &(u32, u32, u64)| Place {
            from_cpu: CpuId(from),
            to_cpu: CpuId(to),
            from_node: None,
            to_node: None,
            count,
        };
        Span {
            direction: Direction::Rx,
            from: from.to_owned(),
            to: to.to_owned(),
            count: places.iter().map(|place| place.2).sum(),
            min_ns: None,
            p50_ns: None,
            p90_ns: None,
            p99_ns: None,
            p999_ns: None,
            max_ns: None,
            total_ns: 0,
            other_cpu: None,
            other_llc: None,
            other_node: None,
            buckets: Vec::new(),
            places: places.iter().map(place).collect(),
        }
    }

    #[test]
    fn packets_arrive_where_their_first_stage_is() {
        let spans = [
            span("netif_rx", "net_rx_raise", &[(0, 0, 70), (1, 0, 30)]),
            span("net_rx_raise", "net_rx_entry", &[(0, 0, 100)]),
        ];
        let group =
            Group { per: Per::Queue, name: "eth0 rx-1".to_owned(), packets: 9, spans: Vec::new() };
        let measured =
            Measurement { spans: spans.to_vec(), groups: vec![group], ..Measurement::default() };
        let traffic = Traffic::of_measurement(&measured, &Topology::default());
        assert_eq!(traffic.arrivals, BTreeMap::from([(CpuId(0), 70), (CpuId(1), 30)]));
        assert_eq!(traffic.queues, BTreeMap::from([("eth0 rx-1".to_owned(), 9)]));
        let large = Topology { online: (0..256).map(CpuId).collect(), ..Topology::default() };
        assert!(Traffic::of_measurement(&measured, &large).arrivals.is_empty());
    }
}
