//! The slowest packets individually. Input: slow spans with their budgets, and the recorded paths of their
//! packets, as they end. Output: outliers, each with its packet's path.

use super::budget::Budget;
use super::packet_path::{Hop, Identity, PacketPath};
use super::record::Record;
use crate::layout::Layout;
use nearpath_model::{CpuId, NodeId, Outlier, Passed};
use std::cmp::Reverse;

/// Pruning is deferred until there are this many.
const FEW: usize = 32;

/// The slowest packets so far.
#[derive(Debug)]
pub struct Slowest {
    keep: usize,
    nodes: Vec<Option<NodeId>>,
    kept: Vec<(Option<Identity>, Outlier)>,
    packets: u64,
}

impl Slowest {
    /// Keeps this many.
    pub fn new(layout: &Layout, keep: usize) -> Self {
        let nodes =
            layout.cpus.iter().map(|row| (row.node != u32::MAX).then_some(NodeId(row.node)));
        Self { keep, nodes: nodes.collect(), kept: Vec::new(), packets: 0 }
    }

    /// A span was slow.
    pub fn add(&mut self, record: &Record, budget: Budget) {
        let identity = record.packet_path.as_ref().map(|packet_path| packet_path.packet);
        let same =
            |(other, _): &&(Option<Identity>, Outlier)| identity.is_some() && *other == identity;
        let packet = match self.kept.iter().find(same) {
            Some((_, outlier)) => outlier.packet,
            None => {
                self.packets += 1;
                self.packets
            }
        };
        let outlier = Outlier {
            direction: record.to.direction,
            from: record.from.name.to_owned(),
            to: record.to.name.to_owned(),
            span_ns: record.span_ns,
            from_cpu: CpuId(record.from_cpu),
            cpu: CpuId(record.to_cpu),
            node: self.node(record.to_cpu),
            flow: record.flow.clone(),
            at_ns: record.at_ns,
            packets_meanwhile: budget.packets,
            complete: budget.complete,
            budget: budget.shares,
            packet,
            path: Vec::new(),
        };
        self.kept.push((identity, outlier));
        match &record.packet_path {
            Some(packet_path) => self.follow(packet_path),
            None => self.set_path(self.kept.len() - 1, &[]),
        }
        if self.kept.len() >= 2 * self.keep.max(FEW) {
            self.trim();
        }
    }

    /// The path of a packet is known up to its end, or further than before.
    pub fn follow(&mut self, packet_path: &PacketPath) {
        for index in 0..self.kept.len() {
            if self.kept[index].0 == Some(packet_path.packet) {
                self.set_path(index, &packet_path.hops);
            }
        }
    }

    /// The slowest ones, slowest first.
    pub fn outliers(&mut self) -> Vec<Outlier> {
        self.trim();
        self.kept.iter().map(|(_, outlier)| outlier.clone()).collect()
    }

    fn set_path(&mut self, index: usize, hops: &[Hop]) {
        let path: Vec<Passed> =
            hops.iter().map(|hop| self.passed(hop.stage.name, hop.cpu, hop.at_ns)).collect();
        let Some((_, outlier)) = self.kept.get(index) else { return };
        let is_told = path.windows(2).any(|pair| match pair {
            [before, stage] => outlier.ends_at(before, stage),
            _ => false,
        });
        // A slow span beyond the end of a recorded path.
        let rest = (!is_told).then(|| {
            [
                self.passed(
                    &outlier.from,
                    outlier.from_cpu.0,
                    outlier.at_ns.saturating_sub(outlier.span_ns),
                ),
                self.passed(&outlier.to, outlier.cpu.0, outlier.at_ns),
            ]
        });
        let path = path.into_iter().chain(rest.into_iter().flatten()).collect();
        if let Some((_, outlier)) = self.kept.get_mut(index) {
            outlier.path = path;
        }
    }

    fn passed(&self, stage: &str, cpu: u32, at_ns: u64) -> Passed {
        Passed { stage: stage.to_owned(), cpu: CpuId(cpu), node: self.node(cpu), at_ns }
    }

    fn node(&self, cpu: u32) -> Option<NodeId> {
        self.nodes.get(cpu as usize).copied().flatten()
    }

    fn trim(&mut self) {
        self.kept.sort_by_key(|(_, outlier)| Reverse(outlier.span_ns));
        self.kept.truncate(self.keep);
    }
}

#[cfg(test)]
mod tests {
    use super::super::packet_path::tests::written;
    use super::super::record::{CpuEvents, ReaderEvents, Task};
    use super::super::table::STAGES;
    use super::*;
    use nearpath_model::Topology;
    use std::collections::BTreeMap;

    const PACKET: Identity = (64, 1000);

    fn stage(number: usize) -> &'static super::super::Stage {
        &STAGES[number - 1]
    }

    /// The number of a stage of the receive path.
    fn number(name: &str) -> usize {
        STAGES.iter().position(|stage| stage.name == name).unwrap() + 1
    }

    fn packet_path(hops: &[(usize, u32, u64)]) -> PacketPath {
        PacketPath::read(&written(PACKET, hops)).unwrap()
    }

    /// A span between two stages that ends at `at_ns`.
    fn record(
        from: usize,
        to: usize,
        at_ns: u64,
        span_ns: u64,
        packet_path: Option<PacketPath>,
    ) -> Record {
        Record {
            at_ns,
            span_ns,
            from_cpu: 0,
            to_cpu: 0,
            from: stage(from),
            to: stage(to),
            task: Task::default(),
            received: 0,
            ended_in_task: false,
            queued: None,
            early: None,
            throttled: Vec::new(),
            bytes: 0,
            flow: None,
            cpu: CpuEvents::default(),
            others: BTreeMap::new(),
            reader: ReaderEvents::default(),
            packet_path,
        }
    }

    fn budget() -> Budget {
        Budget { shares: Vec::new(), complete: true, packets: 0 }
    }

    fn path(outlier: &Outlier) -> Vec<(&str, u64)> {
        outlier.path.iter().map(|passed| (passed.stage.as_str(), passed.at_ns)).collect()
    }

    fn slowest(keep: usize) -> Slowest {
        Slowest::new(&Layout::new(&Topology::default()), keep)
    }

    #[test]
    fn two_slow_spans_of_a_packet_share_its_whole_path() {
        let mut slowest = slowest(10);
        let (receive, ip) = (number("netif_receive_skb"), number("ip_rcv"));
        let hops = [(2, 0, 900), (3, 0, 1900), (4, 0, 1950), (receive, 0, 3950), (ip, 0, 4000)];
        slowest.add(&record(2, 3, 1900, 1000, Some(packet_path(&hops[..2]))), budget());
        slowest.add(&record(4, receive, 3950, 2000, Some(packet_path(&hops[..4]))), budget());
        slowest.add(&record(2, 3, 9000, 500, None), budget());
        slowest.follow(&packet_path(&hops));
        let outliers = slowest.outliers();
        assert_eq!(outliers.iter().map(|o| o.span_ns).collect::<Vec<_>>(), [2000, 1000, 500]);
        assert_eq!(outliers[0].packet, outliers[1].packet);
        assert_ne!(outliers[0].packet, outliers[2].packet);
        assert_eq!(path(&outliers[0]), path(&outliers[1]));
        assert_eq!(path(&outliers[0]).len(), 5);
        assert_eq!(path(&outliers[0])[4], ("ip_rcv", 4000));
        assert_eq!(path(&outliers[2]), [("irq_handler", 8500), ("net_rx_raise", 9000)]);
    }

    #[test]
    fn a_path_whose_end_was_not_seen_ends_at_the_slow_span() {
        let mut slowest = slowest(10);
        let so_far = packet_path(&[(2, 0, 900), (3, 0, 1900)]);
        slowest.add(&record(2, 3, 1900, 1000, Some(so_far)), budget());
        // A later packet at the same address.
        let later = PacketPath { packet: (64, 5000), hops: Vec::new() };
        slowest.follow(&later);
        assert_eq!(path(&slowest.outliers()[0]), [("irq_handler", 900), ("net_rx_raise", 1900)]);
    }

    #[test]
    fn a_slow_span_missing_in_the_path_is_added_at_its_end() {
        let mut slowest = slowest(10);
        let first = packet_path(&[(2, 0, 900), (3, 0, 950)]);
        let (receive, ip) = (number("netif_receive_skb"), number("ip_rcv"));
        slowest.add(&record(receive, ip, 4000, 1000, Some(first)), budget());
        let outliers = slowest.outliers();
        let stages: Vec<_> = path(&outliers[0]).iter().map(|p| p.0).collect();
        assert_eq!(stages, ["irq_handler", "net_rx_raise", "netif_receive_skb", "ip_rcv"]);
    }

    #[test]
    fn the_slowest_are_kept() {
        let mut slowest = slowest(3);
        for ns in (1..=500).chain(1..=500) {
            slowest.add(&record(2, 3, 1000 + ns, ns, None), budget());
        }
        let spans: Vec<_> = slowest.outliers().iter().map(|o| o.span_ns).collect();
        assert_eq!(spans, [500, 500, 499]);
    }
}
