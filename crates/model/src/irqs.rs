//! Results of the instrument `irqs` for an interval: the JSON of `measure irqs --json`.
//!
//! Counts by CPU are lists with an element for each CPU number up to the highest possible CPU.

mod interval;
mod priorities;

pub use priorities::{Priorities, PriorityField, PriorityPackets, Separation};

use crate::EventCost;
use crate::{CpuId, IrqNumber, NodeId, PacketSource, QueueId, Unknown};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of the JSON form of [`IrqMeasurement`].
pub const IRQ_MEASUREMENT_SCHEMA: u32 = 1;

/// Interrupts, softirqs and polls, by queue and by CPU.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct IrqMeasurement {
    /// [`IRQ_MEASUREMENT_SCHEMA`] of the nearpath that wrote this.
    pub schema: u32,
    /// Duration of the measurement, in seconds.
    pub duration_s: f64,
    /// Queues that have an interrupt, a NAPI instance or packet counts, by NIC.
    pub queues: Vec<QueueInterrupts>,
    /// How evenly packets are spread over the queues of each NIC.
    pub nics: Vec<NicBalance>,
    /// Interrupts of devices that occurred and do not belong to a queue.
    pub irqs: Vec<OtherInterrupts>,
    /// Interrupts of the architecture that occurred (`LOC`, `RES`, `CAL`).
    pub arch_irqs: Vec<ArchInterrupts>,
    /// Softirqs by vector (`NET_RX`), runs by CPU.
    pub softirqs: BTreeMap<String, Vec<u64>>,
    /// All present CPUs.
    pub cpus: Vec<CpuInterrupts>,
    /// NAPI instances of devices that were polled.
    pub napi: Vec<NapiPolls>,
    /// Packets by priority, if requested and observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priorities: Option<Priorities>,
    /// Runs of programs that the kernel skipped, and polls and packets that did not fit in the maps.
    pub events_lost: u64,
    /// Measurement overhead; `None` if the kernel has no run-time statistics.
    pub cost: Option<EventCost>,
    /// What could not be observed, with the reason.
    pub unknown: Vec<Unknown>,
}

/// A queue and the interrupt that serves it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct QueueInterrupts {
    /// The NIC.
    pub nic: String,
    /// The queue's number; `None` for an interrupt shared by several queues.
    pub queue: Option<QueueId>,
    /// Which of the two queues with that number it serves.
    pub direction: Serves,
    /// The interrupt.
    pub irq: Option<IrqNumber>,
    /// Its name in `/proc/interrupts` (`eth0-TxRx-0`).
    pub name: Option<String>,
    /// Interrupts by CPU; empty without an interrupt.
    pub per_cpu: Vec<u64>,
    /// Their sum.
    pub interrupts: u64,
    /// The same per second.
    pub interrupts_per_s: f64,
    /// Packets received by the receive queue.
    pub rx_packets: Option<u64>,
    /// Packets sent through the transmit queue.
    pub tx_packets: Option<u64>,
    /// The NAPI instance that serves it, if known.
    pub napi: Option<Polls>,
}

/// Polls of a NAPI instance.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Polls {
    /// Number of polls.
    pub polls: u64,
    /// Received packets that it delivered (what its polls returned).
    pub work: u64,
    /// Maximum that it could have delivered in these polls (the sum of budgets).
    pub budget: u64,
    /// Polls that used up their budget.
    pub full_polls: u64,
}

/// Which queues with a number an interrupt serves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Serves {
    /// Receive and transmit.
    #[default]
    #[serde(rename = "rx+tx")]
    Both,
    /// Receive.
    #[serde(rename = "rx")]
    Rx,
    /// Transmit.
    #[serde(rename = "tx")]
    Tx,
}

/// How evenly packets are spread over a NIC's queues.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NicBalance {
    /// The NIC.
    pub nic: String,
    /// The source of its packet counts per queue; `None` if there is none.
    pub packets_from: Option<PacketSource>,
    /// Packets of the busiest receive queue divided by the mean of all: 1 is even; equal to the number of
    /// queues if one queue receives everything. `None` without packets.
    pub rx_imbalance: Option<f64>,
    /// The same for the transmit queues.
    pub tx_imbalance: Option<f64>,
}

/// An interrupt that does not belong to a queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherInterrupts {
    /// The interrupt.
    pub irq: IrqNumber,
    /// Its name in `/proc/interrupts`.
    pub name: String,
    /// Interrupts by CPU.
    pub per_cpu: Vec<u64>,
}

/// An interrupt of the architecture.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArchInterrupts {
    /// `CAL`.
    pub name: String,
    /// The kernel's description.
    pub description: Option<String>,
    /// Interrupts by CPU.
    pub per_cpu: Vec<u64>,
}

/// Interrupt work of a CPU. Times are `None` if they could not be observed, counters if the kernel lacks them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CpuInterrupts {
    /// The CPU.
    pub cpu: CpuId,
    /// Its node.
    pub node: Option<NodeId>,
    /// Whether it was online at the end.
    pub online: bool,
    /// Interrupts of devices.
    pub interrupts: u64,
    /// Time in handlers of hard interrupts: the sum of `hard_ns`.
    pub irq_ns: Option<u64>,
    /// Time in softirqs, excluding hard interrupts during them: the sum of `soft_ns`.
    pub softirq_ns: Option<u64>,
    /// Time in hard interrupts by kind: `device`, `timer`, `call`.
    pub hard_ns: BTreeMap<String, u64>,
    /// Time in softirqs by vector (`NET_RX`); those that did not run are omitted.
    pub soft_ns: BTreeMap<String, u64>,
    /// Packets processed by the stack (`/proc/net/softnet_stat`, like all that follow except the last two).
    pub processed: Option<u64>,
    /// Packets dropped because the backlog was full.
    pub dropped: Option<u64>,
    /// Times that NET_RX stopped because its budget or time was used up.
    pub time_squeeze: Option<u64>,
    /// Inter-processor interrupts sent here by other CPUs for RPS.
    pub received_rps: Option<u64>,
    /// Packets dropped by the flow limit.
    pub flow_limit: Option<u64>,
    /// Packets in the backlog at the end.
    pub backlog: Option<u64>,
    /// Maximum of that at the end of any interval.
    pub backlog_max: Option<u64>,
    /// Polls of its backlog.
    pub backlog_polls: Option<Polls>,
}

/// A NAPI instance that was polled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NapiPolls {
    /// Name of its device.
    pub device: String,
    /// Inode of the network namespace of the device.
    pub netns: u64,
    /// Its id; `None` for instances without one (of transmit queues only).
    pub napi_id: Option<u32>,
    /// The queue that it serves, if known.
    pub queue: Option<QueueId>,
    /// Its polls.
    #[serde(flatten)]
    pub polls: Polls,
    /// Polls by CPU.
    pub per_cpu: Vec<u64>,
}

impl CpuInterrupts {
    /// A CPU without any data.
    pub fn new(cpu: CpuId) -> Self {
        Self {
            cpu,
            node: None,
            online: false,
            interrupts: 0,
            irq_ns: None,
            softirq_ns: None,
            hard_ns: BTreeMap::new(),
            soft_ns: BTreeMap::new(),
            processed: None,
            dropped: None,
            time_squeeze: None,
            received_rps: None,
            flow_limit: None,
            backlog: None,
            backlog_max: None,
            backlog_polls: None,
        }
    }
}

impl Polls {
    /// Sum of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            polls: self.polls + other.polls,
            work: self.work + other.work,
            budget: self.budget + other.budget,
            full_polls: self.full_polls + other.full_polls,
        }
    }
}

impl IrqMeasurement {
    /// Runs of a softirq on a CPU.
    pub fn softirq(&self, vector: &str, cpu: CpuId) -> u64 {
        let runs = self.softirqs.get(vector).and_then(|runs| runs.get(cpu.0 as usize));
        runs.copied().unwrap_or(0)
    }

    /// A count per second.
    pub fn per_s(&self, count: u64) -> f64 {
        if self.duration_s > 0.0 { count as f64 / self.duration_s } else { 0.0 }
    }
}

/// The maximum divided by the mean; `None` if there is nothing to divide.
pub fn imbalance(packets: impl Iterator<Item = u64>) -> Option<f64> {
    let packets: Vec<u64> = packets.collect();
    let sum = packets.iter().fold(0u64, |sum, &n| sum.saturating_add(n));
    let most = packets.iter().max()?;
    (sum > 0).then(|| *most as f64 * packets.len() as f64 / sum as f64)
}
