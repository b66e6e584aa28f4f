//! Layout of this host's CPUs in the maps: the shard of each CPU, and its row.

use nearpath_model::{CpuId, NodeId, Topology};
use std::collections::BTreeMap;

/// Maximum number of CPUs with separate histograms; beyond that several share one, which is as exact but
/// slower.
const SHARDS_MAX: u32 = 64;
/// Rows of the matrix of CPU pairs.
const PLACES_MAX: u32 = 128;
/// The programs' value for an unknown node or cache.
const UNKNOWN: u32 = u32::MAX;

/// What the programs know of one CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuRow {
    /// Its node.
    pub node: u32,
    /// Its last-level cache.
    pub llc: u32,
    /// Its shard: histograms and counters.
    pub shard: u32,
    /// Its row in the matrix of CPU pairs.
    pub place: u32,
}

/// The host as represented in the maps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// By CPU number, up to the highest possible CPU.
    pub cpus: Vec<CpuRow>,
    /// For each CPU the distance from its node to the farthest one, as reported by the firmware; 0 if unknown.
    pub farthest: Vec<u32>,
    /// Number of shards.
    pub shards: u32,
    /// For each row, the CPU that represents it, and that CPU's node.
    pub places: Vec<(CpuId, Option<NodeId>)>,
    /// Whether caches are known, so that crossings can be reported.
    pub knows_llcs: bool,
    /// The same for nodes.
    pub knows_nodes: bool,
}

impl Layout {
    /// Whether each CPU has its own shard and row: the programs then need not count samples that stay on their
    /// CPU, which are the remainder of its shard.
    pub fn is_by_cpu(&self) -> bool {
        self.cpus.len() == self.shards as usize && self.cpus.len() == self.places.len()
    }

    /// Lays out the possible CPUs of a host.
    pub fn new(topology: &Topology) -> Self {
        let highest = topology
            .possible
            .iter()
            .chain(topology.cpus.iter().map(|c| c.cpu))
            .map(|cpu| cpu.0)
            .max()
            .unwrap_or(0);
        let (shard_of, shards) = shards(topology, highest);
        let mut places = Vec::new();
        let mut place_of = BTreeMap::new();
        let by_cpu = highest < PLACES_MAX;
        let cpus = (0..=highest)
            .zip(shard_of)
            .map(|(number, shard)| {
                let cpu = CpuId(number);
                let (node, llc) = (topology.node_of(cpu), topology.llc_of(cpu));
                // If the cache is unknown, the row is that of the node.
                let key = match llc {
                    _ if by_cpu => (Some(number), None, None),
                    Some(llc) => (None, Some(llc), None),
                    None => (None, None, node),
                };
                let next = u32::try_from(places.len()).unwrap_or(PLACES_MAX);
                let place = *place_of.entry(key).or_insert_with(|| {
                    // More caches than rows: the last row has the rest.
                    if next >= PLACES_MAX {
                        return PLACES_MAX - 1;
                    }
                    places.push((cpu, node));
                    next
                });
                CpuRow {
                    node: node.map_or(UNKNOWN, |n| n.0),
                    llc: llc.map_or(UNKNOWN, |l| l.0),
                    shard,
                    place,
                }
            })
            .collect();
        let farthest = (0..=highest).map(|number| {
            let own = topology.node_of(CpuId(number));
            let node = topology.nodes.iter().find(|node| Some(node.node) == own);
            node.and_then(|node| node.distances.values().max().copied()).unwrap_or(0)
        });
        let online = || topology.cpus.iter().filter(|c| c.online);
        Self {
            cpus,
            farthest: farthest.collect(),
            shards,
            places,
            knows_llcs: online().next().is_some() && online().all(|c| c.llc.is_some()),
            knows_nodes: online().next().is_some() && online().all(|c| c.node.is_some()),
        }
    }
}

/// The shard of each CPU up to the highest, and the number of shards. CPUs that share a shard are on one node,
/// so that no counter is written from two nodes, and under as few caches as possible.
fn shards(topology: &Topology, highest: u32) -> (Vec<u32>, u32) {
    if highest < SHARDS_MAX {
        return ((0..=highest).collect(), highest + 1);
    }
    let mut nodes: BTreeMap<Option<NodeId>, Vec<u32>> = BTreeMap::new();
    for number in 0..=highest {
        nodes.entry(topology.node_of(CpuId(number))).or_default().push(number);
    }
    let count = u32::try_from(nodes.len()).unwrap_or(SHARDS_MAX).min(SHARDS_MAX);
    let mut shard_of = vec![0; highest as usize + 1];
    let mut next = 0;
    for mut cpus in nodes.into_values() {
        cpus.sort_by_key(|&number| (topology.llc_of(CpuId(number)), number));
        let all = u32::try_from(cpus.len()).unwrap_or(1);
        // One per node, and a proportional share of the rest.
        let others = (SHARDS_MAX - count) * (all - 1) / (highest + 1 - count).max(1);
        let own = (1 + others).min(all);
        let first = next.min(SHARDS_MAX - own);
        for (at, number) in (0..all).zip(cpus) {
            if let Some(shard) = shard_of.get_mut(number as usize) {
                *shard = first + at * own / all;
            }
        }
        next = first + own;
    }
    (shard_of, next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_model::{Cpu, CpuSet, LlcId};

    fn topology(cpus: u32, per_llc: u32) -> Topology {
        let cpu = |number: u32| Cpu {
            cpu: CpuId(number),
            online: true,
            core: Some(number),
            package: Some(0),
            die: None,
            cluster: None,
            llc: Some(LlcId(number / per_llc)),
            node: Some(NodeId(number / per_llc / 4)),
            siblings: CpuSet::new(),
            kind: None,
            capacity: None,
        };
        Topology {
            possible: (0..cpus).map(CpuId).collect(),
            cpus: (0..cpus).map(cpu).collect(),
            ..Topology::default()
        }
    }

    #[test]
    fn a_small_host_has_a_place_for_each_cpu() {
        let layout = Layout::new(&topology(8, 4));
        assert_eq!((layout.shards, layout.places.len()), (8, 8));
        assert!(layout.is_by_cpu());
        assert_eq!(layout.cpus[5], CpuRow { node: 0, llc: 1, shard: 5, place: 5 });
    }

    #[test]
    fn a_large_host_has_a_place_for_each_cache() {
        let layout = Layout::new(&topology(1024, 16));
        assert_eq!((layout.shards, layout.places.len()), (64, 64));
        assert!(!layout.is_by_cpu());
        assert_eq!(layout.cpus[1023], CpuRow { node: 15, llc: 63, shard: 63, place: 63 });
        assert_eq!(layout.places[63], (CpuId(1008), Some(NodeId(15))));
    }

    #[test]
    fn where_caches_are_unknown_nodes_are_the_places() {
        let mut host = topology(1024, 16);
        host.cpus.iter_mut().for_each(|cpu| cpu.llc = None);
        let layout = Layout::new(&host);
        assert_eq!(layout.places.len(), 16);
        assert_eq!(layout.places[15], (CpuId(960), Some(NodeId(15))));
        assert!(!layout.knows_llcs);
    }

    #[test]
    fn no_shard_is_written_from_two_nodes() {
        // Numbers alternate between nodes, as on many servers; and one node is much smaller than the others.
        let mut host = topology(300, 8);
        for cpu in &mut host.cpus {
            cpu.node = Some(NodeId(if cpu.cpu.0 < 10 { 7 } else { cpu.cpu.0 % 4 }));
            cpu.llc = cpu.node.map(|node| LlcId(node.0));
        }
        let layout = Layout::new(&host);
        assert!(layout.shards <= SHARDS_MAX && layout.shards > SHARDS_MAX - 8, "{}", layout.shards);
        let mut nodes = BTreeMap::new();
        for row in &layout.cpus {
            assert!(row.shard < layout.shards);
            assert_eq!(*nodes.entry(row.shard).or_insert(row.node), row.node, "{row:?}");
        }
        assert_eq!(nodes.len(), layout.shards as usize, "all are used");
        let many = Layout::new(&topology(1024, 2));
        assert!(many.cpus.iter().all(|row| row.shard < many.shards));
    }

    #[test]
    fn a_host_without_facts_has_one_cpu() {
        let layout = Layout::new(&Topology::default());
        assert_eq!((layout.cpus.len(), layout.places.len()), (1, 1));
        assert!(!layout.knows_llcs && !layout.knows_nodes);
    }
}
