//! CPUs, caches and nodes.
//!
//! ```text
//! package 0                                   package 1
//! ├─ node 0 (memory, distances)               ├─ node 2
//! │  ├─ llc 0 (L3, 8 MiB)                     │  └─ …
//! │  │  ├─ core 0: cpu 0, cpu 48 (SMT)        └─ node 3
//! │  │  └─ core 1: cpu 1, cpu 49
//! │  └─ llc 1
//! └─ node 1
//! ```
//! A node may hold several LLCs, or an LLC several nodes (sub-NUMA clustering); a node may have no CPU (memory
//! only) and a CPU no node. So each CPU refers to its cache and node, and nothing is nested.

use crate::{CpuId, CpuSet, LlcId, NodeId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// CPUs, caches and nodes of a host.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Topology {
    /// CPUs that can exist in this boot.
    pub possible: CpuSet,
    /// CPUs that are plugged in.
    pub present: CpuSet,
    /// CPUs that are online.
    pub online: CpuSet,
    /// All present CPUs, ascending; offline ones with `online: false`.
    pub cpus: Vec<Cpu>,
    /// Last-level caches, ascending by id.
    pub llcs: Vec<Llc>,
    /// NUMA nodes, ascending; empty if the kernel has no NUMA.
    pub nodes: Vec<Node>,
}

/// One logical CPU. Ids are the kernel's; -1 and absent files are `None`. If core or package ids are not
/// unique, or packages can be distinguished only by their CPU lists, cores or packages get the number of their
/// lowest CPU, and a note says so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cpu {
    /// Its number.
    pub cpu: CpuId,
    /// Whether it is online.
    pub online: bool,
    /// `topology/core_id`, unique within the package (on some kernels within the die).
    pub core: Option<u32>,
    /// `topology/physical_package_id`.
    pub package: Option<u32>,
    /// `topology/die_id`, unique within the package.
    pub die: Option<u32>,
    /// `topology/cluster_id`.
    pub cluster: Option<u32>,
    /// Its last-level cache, unique on the host.
    pub llc: Option<LlcId>,
    /// Its NUMA node.
    pub node: Option<NodeId>,
    /// The CPUs of the same core, including itself; empty if unknown.
    pub siblings: CpuSet,
    /// On a hybrid machine the kind of core: `core` or `atom`, as named by the kernel's PMU
    /// (`/sys/devices/cpu_core`); else `None`.
    pub kind: Option<String>,
    /// `cpu_capacity`, if the architecture has it (1024 is the largest core).
    pub capacity: Option<u32>,
}

/// A last-level cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Llc {
    /// The kernel's cache id if unique on the host, else numbered by the lowest CPU.
    pub llc: LlcId,
    /// Cache level, usually 3.
    pub level: Option<u32>,
    /// Size in bytes.
    pub size_bytes: Option<u64>,
    /// The online CPUs that share it.
    pub cpus: CpuSet,
}

/// A NUMA node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Its number.
    pub node: NodeId,
    /// Its CPUs; empty for a node with memory only.
    pub cpus: CpuSet,
    /// MemTotal of its `meminfo`, in bytes.
    pub memory_bytes: Option<u64>,
    /// MemFree of its `meminfo`, in bytes.
    pub free_bytes: Option<u64>,
    /// Distance to each online node as reported by the firmware (10 is local); empty if unknown.
    pub distances: BTreeMap<NodeId, u32>,
    /// Hugepages by page size in bytes.
    pub hugepages: BTreeMap<u64, Hugepages>,
    /// The node's `numastat` (numa_hit, numa_miss, numa_foreign, interleave_hit, local_node,
    /// other_node), in pages.
    pub numastat: BTreeMap<String, u64>,
}

/// Hugepages of one size on one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hugepages {
    /// `nr_hugepages`.
    pub total: u64,
    /// `free_hugepages`.
    pub free: u64,
    /// `surplus_hugepages`.
    pub surplus: u64,
}

/// Distance between two CPUs, nearest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Nearness {
    /// The same logical CPU.
    SameCpu,
    /// SMT siblings.
    SameCore,
    /// The same last-level cache.
    SameLlc,
    /// The same node, another cache.
    SameNode,
    /// Another node.
    OtherNode,
}

impl Topology {
    /// The CPU with that number.
    pub fn cpu(&self, cpu: CpuId) -> Option<&Cpu> {
        self.cpus.binary_search_by_key(&cpu, |c| c.cpu).ok().map(|i| &self.cpus[i])
    }

    /// The node with that number.
    pub fn node(&self, node: NodeId) -> Option<&Node> {
        self.nodes.iter().find(|n| n.node == node)
    }

    /// Whether a node has none of the CPUs that are online, while others have: a node of memory only (CXL, persistent
    /// memory).
    pub fn is_cpuless(&self, node: NodeId) -> bool {
        let has = |node: &Node| !node.cpus.intersection(&self.online).is_empty();
        self.node(node).is_some_and(|node| !has(node)) && self.nodes.iter().any(has)
    }

    /// The node that a CPU is on.
    pub fn node_of(&self, cpu: CpuId) -> Option<NodeId> {
        self.cpu(cpu)?.node
    }

    /// The last-level cache of a CPU.
    pub fn llc_of(&self, cpu: CpuId) -> Option<LlcId> {
        self.cpu(cpu)?.llc
    }

    /// The nodes of the CPUs, ascending.
    pub fn nodes_of(&self, cpus: &CpuSet) -> Vec<NodeId> {
        let mut nodes: Vec<_> = cpus.iter().filter_map(|cpu| self.node_of(cpu)).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }

    /// Distance between two CPUs; `None` if unknown.
    pub fn nearness(&self, a: CpuId, b: CpuId) -> Option<Nearness> {
        if a == b {
            return Some(Nearness::SameCpu);
        }
        let (a, b) = (self.cpu(a)?, self.cpu(b)?);
        if a.siblings.contains(b.cpu) {
            return Some(Nearness::SameCore);
        }
        if let (Some(a), Some(b)) = (a.llc, b.llc)
            && a == b
        {
            return Some(Nearness::SameLlc);
        }
        match (a.node, b.node) {
            (Some(a), Some(b)) if a == b => Some(Nearness::SameNode),
            (Some(_), Some(_)) => Some(Nearness::OtherNode),
            _ => None,
        }
    }
}
