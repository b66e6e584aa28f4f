//! Which core each worker gets: near its NIC, one worker a core, never the first core of the host.
//!
//! Rules: DPVS's guide to worker tuning ("How to choose CPU cores for DPVS Workers"). The first core is the one of the
//! lowest online CPU: it serves what is bound to no CPU, and the kernel takes CPU 0 out of `isolcpus` and `nohz_full`.

use nearpath_model::{Cpu, CpuId, CpuSet, NodeId, Topology};
use std::collections::{BTreeMap, BTreeSet};

/// A core with its online CPUs.
#[derive(Debug, Clone)]
pub(super) struct Core {
    pub cpus: Vec<CpuId>,
    pub node: Option<NodeId>,
    is_used: bool,
}

/// The cores of a host, by their lowest CPU.
#[derive(Debug, Clone)]
pub(super) struct Cores<'a> {
    cores: Vec<Core>,
    /// Indexes of the cores of each node.
    by_node: BTreeMap<NodeId, Vec<usize>>,
    topology: &'a Topology,
    /// Cores of other nodes may be taken.
    pub is_remote_allowed: bool,
    /// The master has the first core, as too few are free beside it.
    pub is_first_allowed: bool,
}

/// Who takes a core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taker {
    Master,
    Worker,
}

impl<'a> Cores<'a> {
    pub(super) fn new(topology: &'a Topology) -> Self {
        let mut by_first: BTreeMap<CpuId, Core> = BTreeMap::new();
        // EAL cannot name CPUs from 1,024 on.
        let nameable = |cpu: &&Cpu| cpu.online && cpu.cpu.0 < nearpath_model::eal::MAX_CPU;
        for cpu in topology.cpus.iter().filter(nameable) {
            // The lowest online sibling names the core; without siblings each CPU is one.
            let online = cpu.siblings.intersection(&topology.online);
            let first = online.first().unwrap_or(cpu.cpu).min(cpu.cpu);
            let core = by_first.entry(first).or_insert_with(|| Core {
                cpus: Vec::new(),
                node: cpu.node,
                is_used: false,
            });
            core.cpus.push(cpu.cpu);
        }
        let cores: Vec<Core> = by_first.into_values().collect();
        let mut by_node: BTreeMap<NodeId, Vec<usize>> = BTreeMap::new();
        for (at, node) in cores.iter().enumerate().filter_map(|(at, core)| Some((at, core.node?))) {
            by_node.entry(node).or_default().push(at);
        }
        Self { cores, by_node, topology, is_remote_allowed: false, is_first_allowed: false }
    }

    /// Makes cores with one of these CPUs no longer free.
    pub(super) fn reserve(&mut self, cpus: &BTreeSet<CpuId>) {
        for core in &mut self.cores {
            core.is_used |= core.cpus.iter().any(|cpu| cpus.contains(cpu));
        }
    }

    /// Takes the free core that is nearest to a node; the lowest of several.
    pub(super) fn take(&mut self, node: Option<NodeId>, taker: Taker) -> Option<Core> {
        let is_free = |at: usize| at > 0 && self.cores.get(at).is_some_and(|core| !core.is_used);
        let local = match node {
            Some(node) => self.local(node).iter().copied().find(|at| is_free(*at)),
            None => (0..self.cores.len()).find(|at| is_free(*at)),
        };
        let at = local.or_else(|| {
            let mut free =
                (0..self.cores.len()).filter(|at| self.is_remote_allowed && is_free(*at));
            let distance = |at: usize| {
                let core = self.cores.get(at);
                core.map_or(u32::MAX, |core| self.distance(node, core.node))
            };
            free.next().map(|first| {
                free.fold((distance(first), first), |best, at| best.min((distance(at), at))).1
            })
        });
        // The master leaves the others to workers.
        let is_first_free = self.cores.first().is_some_and(|core| !core.is_used);
        let is_first = self.is_first_allowed && taker == Taker::Master && is_first_free;
        let at = if is_first { 0 } else { at? };
        let core = self.cores.get_mut(at)?;
        core.is_used = true;
        Some(core.clone())
    }

    /// The CPUs of the first core.
    pub(super) fn first(&self) -> CpuSet {
        self.cores.first().map(|core| core.cpus.iter().copied().collect()).unwrap_or_default()
    }

    fn local(&self, node: NodeId) -> &[usize] {
        self.by_node.get(&node).map_or(&[], Vec::as_slice)
    }

    /// From a NIC's node to a core's; the farthest if unknown.
    fn distance(&self, from: Option<NodeId>, to: Option<NodeId>) -> u32 {
        let node = self.topology.nodes.iter().find(|node| Some(node.node) == from);
        let known = node.and_then(|node| node.distances.get(&to?).copied());
        known.unwrap_or(u32::MAX)
    }
}
