//! The packets of a measurement as weights for predictions. Input: a measurement of `measure stages`. Output: packets by
//! queue, and by the CPU that they arrive on.

use nearpath_model::{CpuId, Direction, Measurement, Nic, Per, QueueId, Span, Topology};
use std::collections::{BTreeMap, BTreeSet};

/// On larger hosts the places of a measurement are caches, not CPUs.
const CPUS_MAX: usize = 128;

/// Measured packets; empty without a measurement.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Received packets by queue (`eth0 rx-0`), if the measurement was grouped by queue.
    pub(super) queues: BTreeMap<String, u64>,
    /// Received packets by arrival CPU, before any steering.
    pub(super) arrivals: BTreeMap<CpuId, u64>,
    /// Of these, the packets that a driver polled there.
    pub(super) polled: BTreeMap<CpuId, u64>,
}

/// The stage at which drivers pass on polled packets.
const POLLED: &str = "napi_gro_receive";

impl Traffic {
    /// Reads it from a measurement of this host.
    pub fn of_measurement(measurement: &Measurement, topology: &Topology) -> Self {
        let by_queue = measurement.groups.iter().filter(|group| group.per == Per::Queue);
        let queues = by_queue.map(|group| (group.name.clone(), group.packets)).collect();
        if topology.online.len() > CPUS_MAX {
            return Self { queues, ..Self::default() };
        }
        let received = || {
            let all = measurement.spans.iter();
            all.filter(|span| span.direction == Direction::Rx && span.count > 0)
        };
        let reached: BTreeSet<&str> = received().map(|span| span.to.as_str()).collect();
        // The first stage of the receive path has no span that leads to it.
        let first = received().filter(|span| !reached.contains(span.from.as_str()));
        let polled = received().filter(|span| span.from == POLLED);
        Self { queues, arrivals: by_cpu(first), polled: by_cpu(polled) }
    }

    /// The packets of a queue; `None` if not measured.
    pub(super) fn of(&self, nic: &Nic, queue: QueueId) -> Option<u64> {
        self.queues.get(&format!("{} rx-{queue}", nic.name)).copied()
    }
}

/// Packets by the CPU on which they leave a stage.
fn by_cpu<'a>(spans: impl Iterator<Item = &'a Span>) -> BTreeMap<CpuId, u64> {
    let mut packets = BTreeMap::new();
    for place in spans.flat_map(|span| &span.places) {
        *packets.entry(place.from_cpu).or_default() += place.count;
    }
    packets
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_model::{Group, Place};

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
    fn packets_arrive_on_the_cpu_of_their_first_stage() {
        let spans = [
            span("netif_rx", "net_rx_raise", &[(0, 0, 70), (1, 0, 30)]),
            span("net_rx_raise", "net_rx_entry", &[(0, 0, 100)]),
            span("net_rx_entry", "napi_gro_receive", &[(0, 0, 25)]),
            span("napi_gro_receive", "netif_receive_skb", &[(0, 0, 20), (0, 1, 5)]),
        ];
        let group = Group {
            per: Per::Queue,
            name: "eth0 rx-1".to_owned(),
            packets: 9,
            paths: Vec::new(),
            spans: Vec::new(),
        };
        let measured =
            Measurement { spans: spans.to_vec(), groups: vec![group], ..Measurement::default() };
        let traffic = Traffic::of_measurement(&measured, &Topology::default());
        assert_eq!(traffic.arrivals, BTreeMap::from([(CpuId(0), 70), (CpuId(1), 30)]));
        assert_eq!(traffic.polled, BTreeMap::from([(CpuId(0), 25)]));
        assert_eq!(traffic.queues, BTreeMap::from([("eth0 rx-1".to_owned(), 9)]));
        let large = Topology { online: (0..256).map(CpuId).collect(), ..Topology::default() };
        assert!(Traffic::of_measurement(&measured, &large).arrivals.is_empty());
    }
}
