//! Accesses to memory, as samples of a PMU: where loads found their data, by node and region, and cache lines that
//! several cores write and read.
//!
//! Shares are of samples, not of all accesses. PEBS samples only loads that take longer than a threshold.

use crate::NodeId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Where a load found its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoadSource {
    /// The first cache.
    L1,
    /// A line that was on its way already.
    FillBuffer,
    /// The second.
    L2,
    /// The third, or another core's on the same node.
    L3,
    /// Memory of the CPU's node.
    LocalMemory,
    /// A cache of another node.
    RemoteCache,
    /// Memory of another node.
    RemoteMemory,
    /// Uncached, a device, CXL or persistent memory.
    Other,
    /// The PMU does not say.
    Unknown,
}

impl LoadSource {
    /// Whether the data came from another node.
    pub fn is_remote(self) -> bool {
        matches!(self, Self::RemoteCache | Self::RemoteMemory)
    }

    /// Whether the data came from memory, of which node whatever.
    pub fn is_memory(self) -> bool {
        matches!(self, Self::LocalMemory | Self::RemoteMemory)
    }
}

/// The samples of an interval.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadSamples {
    /// The PMU that took them: `cpu`, `ibs_op`.
    pub pmu: String,
    /// Sampled loads.
    pub loads: u64,
    /// Sampled stores.
    pub stores: u64,
    /// Samples that found no room.
    pub lost: u64,
    /// How often the kernel paused sampling, as it took too much of a CPU.
    pub throttled: u64,
    /// Samples of processes beyond the limit.
    pub not_counted: u64,
    /// By process, most remote loads first.
    pub processes: Vec<ProcessLoads>,
    /// Lines that were modified in another core's cache when they were read, most such loads first.
    pub shared_lines: Vec<SharedLine>,
}

/// The sampled loads of a process.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessLoads {
    /// The process; 0 is the kernel's idle task.
    pub pid: u32,
    /// Its name, if it still runs.
    pub comm: Option<String>,
    /// Its sampled loads.
    pub loads: u64,
    /// By where they found their data.
    pub sources: BTreeMap<LoadSource, u64>,
    /// Share of them whose data came from another node; `None` if no source is known.
    pub remote_share: Option<f64>,
    /// By the node that the memory is on, whatever cache had the data.
    pub nodes: BTreeMap<NodeId, u64>,
    /// By region, most loads first.
    pub regions: Vec<RegionLoads>,
}

/// The sampled loads of a region of a process's memory.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RegionLoads {
    /// `[heap]`, `[stack]`, a file, `anonymous`, `kernel`, or `unknown`.
    pub name: String,
    /// Loads.
    pub loads: u64,
    /// Of them with data from another node.
    pub remote: u64,
    /// By the node that the memory is on.
    pub nodes: BTreeMap<NodeId, u64>,
}

/// A cache line that one core modifies and another reads.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedLine {
    /// Its address.
    pub address: u64,
    /// The process that read it.
    pub pid: u32,
    /// The region that it is in.
    pub region: String,
    /// Loads that found it modified in another core's cache (HITM).
    pub hitm: u64,
    /// Of them in a cache of another node.
    pub remote_hitm: u64,
    /// Whether readers and writers use different bytes of it: false sharing. `None` if no store of it was sampled.
    pub is_false: Option<bool>,
    /// The functions that read it, most samples first.
    pub readers: Vec<CodeOfLine>,
    /// Those that write to it.
    pub writers: Vec<CodeOfLine>,
}

/// A function that uses a line.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CodeOfLine {
    /// `function`, or `file+0x1234` where a file has no symbols.
    pub function: String,
    /// Samples.
    pub samples: u64,
    /// The bytes of the line that it used: offsets of the first ones.
    pub offsets: Vec<u8>,
    /// The CPUs that it ran on, as a cpulist.
    pub cpus: String,
}
