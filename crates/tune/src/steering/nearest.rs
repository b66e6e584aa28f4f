//! The nearest workers of each CPU. Pure. Input: the topology and the affinity of each worker. Output: the nearest
//! workers of each CPU.

use nearpath_model::{Choice, Cpu, CpuId, CpuSet, LlcId, Nearness, NodeId, Topology};
use std::collections::{BTreeMap, BTreeSet};

/// The nearest workers of every possible CPU: on the same CPU, else the same core, last-level cache, node, else on
/// the node at the smallest distance. A worker that may run on several CPUs is as near as the nearest of them. A
/// CPU with unknown topology (because it is offline) is equally far from all.
pub fn nearest(topology: &Topology, workers: &[CpuSet]) -> Vec<Choice> {
    let workers: Vec<Place> = workers.iter().map(|cpus| Place::new(topology, cpus)).collect();
    let mut choices: BTreeMap<(Vec<usize>, Option<Nearness>), CpuSet> = BTreeMap::new();
    for cpu in topology.possible.union(&topology.present).iter() {
        let ranks: Vec<Rank> = workers.iter().map(|worker| worker.rank(topology, cpu)).collect();
        let Some(&best) = ranks.iter().min() else { continue };
        let equal = ranks.iter().enumerate().filter(|&(_, &rank)| rank == best);
        let nearest: Vec<usize> = equal.map(|(worker, _)| worker).collect();
        let nearness = best.nearness();
        choices.entry((nearest, nearness)).or_default().insert(cpu);
    }
    let mut choices: Vec<Choice> = choices
        .into_iter()
        .map(|((workers, nearness), cpus)| Choice { cpus, workers, nearness })
        .collect();
    choices.sort_by_key(|choice| choice.cpus.first());
    choices
}

/// Distance of a worker, nearest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Known(Nearness, u32),
    Unknown,
}

impl Rank {
    fn nearness(self) -> Option<Nearness> {
        match self {
            Self::Known(nearness, _) => Some(nearness),
            Self::Unknown => None,
        }
    }
}

/// Affinity of a worker, expanded so that a CPU is compared with all of it at once.
struct Place {
    cpus: CpuSet,
    llcs: BTreeSet<LlcId>,
    nodes: BTreeSet<NodeId>,
}

impl Place {
    fn new(topology: &Topology, cpus: &CpuSet) -> Self {
        // Offline CPUs are ignored, unless all of them are offline.
        let online = cpus.intersection(&topology.online);
        let cpus = if online.is_empty() { cpus.clone() } else { online };
        let known: Vec<&Cpu> = cpus.iter().filter_map(|cpu| topology.cpu(cpu)).collect();
        Self {
            llcs: known.iter().filter_map(|cpu| cpu.llc).collect(),
            nodes: known.iter().filter_map(|cpu| cpu.node).collect(),
            cpus,
        }
    }

    fn rank(&self, topology: &Topology, cpu: CpuId) -> Rank {
        if self.cpus.contains(cpu) {
            return Rank::Known(Nearness::SameCpu, 0);
        }
        let Some(cpu) = topology.cpu(cpu) else { return Rank::Unknown };
        if !cpu.siblings.intersection(&self.cpus).is_empty() {
            return Rank::Known(Nearness::SameCore, 0);
        }
        if cpu.llc.is_some_and(|llc| self.llcs.contains(&llc)) {
            return Rank::Known(Nearness::SameLlc, 0);
        }
        let Some(node) = cpu.node.filter(|_| !self.nodes.is_empty()) else { return Rank::Unknown };
        if self.nodes.contains(&node) {
            return Rank::Known(Nearness::SameNode, 0);
        }
        let distances = topology.node(node).map(|node| &node.distances);
        let distance = |to| distances.and_then(|known| known.get(to)).copied().unwrap_or(u32::MAX);
        Rank::Known(Nearness::OtherNode, self.nodes.iter().map(distance).min().unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_model::Node;
    use proptest::prelude::*;

    /// CPUs in cores of two, LLCs of four, nodes of eight; the last `offline` CPUs are offline.
    fn topology(cpus: u32, offline: u32) -> Topology {
        let all: CpuSet = (0..cpus).map(CpuId).collect();
        let online: CpuSet = (0..cpus - offline).map(CpuId).collect();
        let cpu = |n: u32| {
            let known = online.contains(CpuId(n));
            Cpu {
                cpu: CpuId(n),
                online: known,
                core: None,
                package: None,
                die: None,
                cluster: None,
                llc: known.then_some(LlcId(n / 4)),
                node: known.then_some(NodeId(n / 8)),
                siblings: if known {
                    [CpuId(n), CpuId(n ^ 1)].into_iter().collect()
                } else {
                    CpuSet::new()
                },
                kind: None,
                capacity: None,
            }
        };
        let nodes = cpus.div_ceil(8);
        let node = |n: u32| Node {
            node: NodeId(n),
            cpus: CpuSet::new(),
            memory_bytes: None,
            free_bytes: None,
            distances: (0..nodes).map(|to| (NodeId(to), 10 + 5 * n.abs_diff(to))).collect(),
            hugepages: BTreeMap::new(),
            numastat: BTreeMap::new(),
        };
        Topology {
            possible: all.clone(),
            present: all,
            online: online.clone(),
            cpus: (0..cpus).map(cpu).collect(),
            llcs: Vec::new(),
            nodes: (0..nodes).map(node).collect(),
        }
    }

    fn lists(workers: &[&str]) -> Vec<CpuSet> {
        workers.iter().map(|list| CpuSet::from_list(list).unwrap()).collect()
    }

    /// `cpus -> workers`
    fn shown(topology: &Topology, workers: &[&str]) -> Vec<String> {
        let choices = nearest(topology, &lists(workers));
        choices.iter().map(|c| format!("{} -> {:?} {:?}", c.cpus, c.workers, c.nearness)).collect()
    }

    #[test]
    fn one_worker_on_each_cpu() {
        let shown = shown(&topology(2, 0), &["1", "0"]);
        assert_eq!(shown, ["0 -> [1] Some(SameCpu)", "1 -> [0] Some(SameCpu)"]);
    }

    #[test]
    fn core_then_cache_then_node_then_distance() {
        let shown = shown(&topology(24, 0), &["0", "2", "8"]);
        assert_eq!(
            shown,
            [
                "0 -> [0] Some(SameCpu)",
                "1 -> [0] Some(SameCore)",
                "2 -> [1] Some(SameCpu)",
                "3 -> [1] Some(SameCore)",
                "4-7 -> [0, 1] Some(SameNode)",
                "8 -> [2] Some(SameCpu)",
                "9 -> [2] Some(SameCore)",
                "10-11 -> [2] Some(SameLlc)",
                "12-15 -> [2] Some(SameNode)",
                "16-23 -> [2] Some(OtherNode)",
            ]
        );
    }

    #[test]
    fn an_offline_cpu_is_equally_far_from_all() {
        let shown = shown(&topology(8, 1), &["0", "4"]);
        assert_eq!(shown.last().unwrap(), "7 -> [0, 1] None");
    }

    fn worker() -> impl Strategy<Value = CpuSet> {
        prop::collection::vec(0u32..24, 1..6).prop_map(|cpus| cpus.into_iter().map(CpuId).collect())
    }

    proptest! {
        #[test]
        fn every_cpu_has_workers_and_none_is_nearer(
            workers in prop::collection::vec(worker(), 1..9),
            offline in 0u32..8,
        ) {
            let topology = topology(24, offline);
            let choices = nearest(&topology, &workers);
            let mut seen = CpuSet::new();
            for choice in &choices {
                prop_assert!(choice.cpus.intersection(&seen).is_empty());
                seen = seen.union(&choice.cpus);
                prop_assert!(!choice.workers.is_empty());
                for cpu in choice.cpus.iter() {
                    // The nearest of a worker's CPUs by the topology's own measure.
                    let far = |worker: &CpuSet| {
                        let online = worker.intersection(&topology.online);
                        let runs = if online.is_empty() { worker } else { &online };
                        runs.iter().map(|c| topology.nearness(cpu, c).map_or(9, |n| n as u32)).min()
                    };
                    let chosen = far(&workers[choice.workers[0]]);
                    for (i, worker) in workers.iter().enumerate() {
                        if choice.workers.contains(&i) {
                            prop_assert_eq!(far(worker), chosen);
                        } else {
                            prop_assert!(far(worker) >= chosen);
                            // On other nodes the NUMA distance decides.
                            let other = far(worker) == chosen;
                            prop_assert!(!other || choice.nearness == Some(Nearness::OtherNode));
                        }
                    }
                }
            }
            prop_assert_eq!(seen, topology.possible.clone());
        }

        #[test]
        fn the_order_of_the_group_does_not_matter(
            workers in prop::collection::vec(worker(), 1..9),
        ) {
            let topology = topology(24, 0);
            let reversed: Vec<CpuSet> = workers.iter().rev().cloned().collect();
            let turned = |choice: Choice| {
                let mut named: Vec<usize> =
                    choice.workers.iter().map(|i| workers.len() - 1 - i).collect();
                named.sort_unstable();
                (choice.cpus, named)
            };
            let there = nearest(&topology, &workers).into_iter().map(|c| (c.cpus, c.workers));
            let back = nearest(&topology, &reversed).into_iter().map(turned);
            prop_assert_eq!(there.collect::<Vec<_>>(), back.collect::<Vec<_>>());
        }
    }
}
