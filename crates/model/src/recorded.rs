//! Facts of a recorded time: what `nearpath show --recording` shows. Counts are increases within that time.

use crate::{CpuId, NodeId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of the JSON form of [`RecordedFacts`].
pub const RECORDED_FACTS_SCHEMA: u32 = 1;

/// What was recorded of a host between two times. A part is `None` if it has no rows of that time: its source was off,
/// or nothing changed. Counters of the kernel are one source: all have their time if one of them changed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RecordedFacts {
    /// [`RECORDED_FACTS_SCHEMA`] of the nearpath that wrote this.
    pub schema: u32,
    /// Name of the host.
    pub host: String,
    /// Start of the time, in microseconds since 1970.
    pub from_us: i64,
    /// Its end.
    pub to_us: i64,
    /// Packets and interrupts for RPS by CPU.
    pub softnet: Option<Counted<RecordedSoftnet>>,
    /// Interrupts of NICs' queues.
    pub irqs: Option<Counted<RecordedIrq>>,
    /// Pages that the nodes gave.
    #[serde(default)]
    pub numa: Option<Counted<RecordedNode>>,
    /// Memory of the largest processes by node.
    pub memory: Option<Pictured<RecordedMemory>>,
    /// Packets into virtual machines.
    #[serde(default)]
    pub vms: Option<Counted<RecordedVm>>,
    /// Threads that poll.
    pub workers: Option<Pictured<RecordedWorker>>,
    /// Changes in nearpath's journal.
    pub settings: Option<Pictured<RecordedSetting>>,
}

/// Counts of a time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Counted<T> {
    /// Length of the intervals that have rows, in seconds.
    pub seconds: f64,
    /// The counts.
    pub rows: Vec<T>,
}

/// A picture: the last one of a time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pictured<T> {
    /// When it was taken, in microseconds since 1970.
    pub time_us: i64,
    /// What was there.
    pub rows: Vec<T>,
}

/// Packets that a CPU processed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedSoftnet {
    /// The CPU.
    pub cpu: CpuId,
    /// Its node.
    pub node: Option<NodeId>,
    /// Packets from backlogs and by NAPI.
    pub processed: u64,
    /// Packets dropped as its backlog was full.
    pub dropped: u64,
    /// Times that NET_RX used up its budget or time.
    pub squeezed: u64,
    /// Interrupts received for RPS.
    pub received_rps: u64,
    /// Packets dropped by the flow limit.
    pub flow_limited: u64,
}

/// Pages that a node gave, and that were wanted of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedNode {
    /// The node.
    pub node: NodeId,
    /// Pages by counter of its `numastat`: `numa_hit`, `numa_miss`, `other_node`, …
    pub pages: BTreeMap<String, u64>,
}

/// Interrupts of a queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedIrq {
    /// The interface.
    pub device: String,
    /// Number of the queue; `rx0`, `tx0` where interrupts are separate.
    pub queue: String,
    /// Number of the interrupt.
    pub irq: u32,
    /// Interrupts by the CPU that took them.
    pub cpus: BTreeMap<CpuId, u64>,
}

impl RecordedIrq {
    /// All of its interrupts.
    pub fn total(&self) -> u64 {
        self.cpus.values().fold(0, |sum, count| sum.saturating_add(*count))
    }
}

/// Memory of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedMemory {
    /// Process id.
    pub pid: u32,
    /// Its name.
    pub comm: String,
    /// Bytes by node.
    pub nodes: BTreeMap<NodeId, u64>,
}

impl RecordedMemory {
    /// Bytes on all nodes.
    pub fn total(&self) -> u64 {
        self.nodes.values().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }
}

/// A thread that polls; shares are of the time since the picture before, and `None` without one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RecordedWorker {
    /// Name of its process.
    pub app: String,
    /// The process.
    pub pid: u32,
    /// Number of the worker.
    pub lcore: Option<u32>,
    /// Share of its cycles that it spent on packets, 0 to 1.
    pub busy: Option<f64>,
    /// Packets received per second.
    pub packets: Option<f64>,
    /// Share of the time that it could have run and did not, 0 to 1.
    pub delayed: Option<f64>,
}

/// A change in nearpath's journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedSetting {
    /// Number in the journal.
    pub id: u64,
    /// What was changed.
    pub target: String,
    /// `applied`, `drifted`, `lost`, `undone`; `None` if it could not be seen.
    pub state: Option<String>,
}

/// Packets into a virtual machine, of one span.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedVm {
    /// Its name, or that of its program.
    pub vm: String,
    /// The span, as in `measure vm --json`.
    pub span: String,
    /// Packets.
    pub packets: u64,
    /// Median; `None` if there are too few packets, like all percentiles.
    pub p50_ns: Option<u64>,
    /// 99th percentile.
    pub p99_ns: Option<u64>,
}
