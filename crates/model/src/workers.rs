//! Workers: threads that poll (DPDK's lcores, Open vSwitch's PMD threads), with their processes and ports.

use crate::{CpuSet, NodeId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of [`Workers`].
pub const WORKERS_SCHEMA: u32 = 1;

/// The processes that poll, with their workers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Workers {
    /// The version of this document.
    pub schema: u32,
    /// By process id.
    pub processes: Vec<PollingProcess>,
    /// Facts that could not be read.
    pub unknown: Vec<crate::Unknown>,
}

/// A process with workers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PollingProcess {
    /// Its process id.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// DPDK's or Open vSwitch's version, as the process reports it.
    pub version: Option<String>,
    /// EAL's options, as the process reports them.
    pub eal: Vec<String>,
    /// Memory of DPDK's heaps in bytes, by node as DPDK sees it.
    pub heaps: BTreeMap<NodeId, u64>,
    /// Its ports.
    pub ports: Vec<PollingPort>,
    /// Its workers, by lcore id.
    pub workers: Vec<PollingWorker>,
}

/// A port of a process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PollingPort {
    /// DPDK's number, or `None` in Open vSwitch.
    pub port: Option<u32>,
    /// Its name: a PCI address, a virtual device, or the interface's name in Open vSwitch.
    pub name: String,
    /// Its NUMA node, of a PCI function as the kernel has it. DPDK reports 0 for a node that is unknown.
    pub node: Option<NodeId>,
    /// Receive queues.
    pub rx_queues: Option<u32>,
    /// Transmit queues.
    pub tx_queues: Option<u32>,
    /// Packets received, a total.
    pub rx_packets: Option<u64>,
    /// Packets that the NIC dropped as its queue was full, a total.
    pub imissed: Option<u64>,
    /// Packets dropped as no buffer was free, a total.
    pub rx_nombuf: Option<u64>,
}

/// The role of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PollingRole {
    /// EAL's main lcore.
    Main,
    /// Another lcore.
    Worker,
    /// A PMD thread of Open vSwitch.
    Pmd,
}

/// A worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PollingWorker {
    /// Its lcore id; in Open vSwitch the number of its core.
    pub lcore: u32,
    /// Its thread.
    pub tid: Option<u32>,
    /// The CPUs on which it may run; more than one if it floats.
    pub cpus: Option<CpuSet>,
    /// The other CPUs of its core.
    pub siblings: CpuSet,
    /// The node of its CPUs, if it is one.
    pub node: Option<NodeId>,
    /// Its role.
    pub role: PollingRole,
    /// Its receive queues by port, where the process reports them.
    pub queues: BTreeMap<String, Vec<u32>>,
    /// Share of its cycles spent on packets since its counters were reset, in percent.
    pub busy_percent: Option<f64>,
}
