//! How much memory was accessed, as DAMON estimates it
//! (<https://docs.kernel.org/mm/damon/design.html>): where it runs, it checks some pages of each region.

use crate::NodeId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The estimates of each running kdamond.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct AccessEstimates {
    /// The kdamonds, by thread.
    pub kdamonds: Vec<Kdamond>,
    /// Regions that did not fit in the maps.
    pub lost: u64,
}

/// A thread of DAMON, and what it monitors.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Kdamond {
    /// Its thread.
    pub pid: u32,
    /// Who controls it: `kdamonds/0` of DAMON's sysfs, or a module such as `damon_reclaim`; `None` if unknown.
    pub owner: Option<String>,
    /// `paddr` (physical memory), `vaddr` or `fvaddr` (of processes); `None` if unknown.
    pub operations: Option<String>,
    /// Time between two checks of a region.
    pub sample_us: Option<u64>,
    /// Time over which checks are counted.
    pub aggregation_us: Option<u64>,
    /// What it monitors; without one that has ended an aggregation interval, empty.
    pub targets: Vec<AccessTarget>,
}

/// Physical memory, or a process, in the last aggregation interval.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct AccessTarget {
    /// Its number in the context.
    pub target: u32,
    /// The process, as its owner named it; `None` of physical memory, or if unknown.
    pub pid: Option<u32>,
    /// Its name.
    pub comm: Option<String>,
    /// Aggregation intervals that ended while they were observed.
    pub aggregations: u64,
    /// Regions of the last one.
    pub regions: u64,
    /// All of them.
    pub all: AccessedBytes,
    /// Physical memory by node, what is on none left out; empty of a process.
    pub nodes: BTreeMap<NodeId, AccessedBytes>,
}

/// Bytes by how many checks found an access.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct AccessedBytes {
    /// In regions with an access in at least one check.
    pub accessed_bytes: u64,
    /// Part of these: in at least half of the checks; `None` if it is unknown how many there are.
    pub frequent_bytes: Option<u64>,
    /// In regions without any.
    pub idle_bytes: u64,
    /// For how long they have had none, the mean by byte; `None` without idle bytes, or without a known interval.
    pub idle_s: Option<f64>,
}
