//! What the instrument `irqs` returns for an interval: the JSON of `measure irqs --json`.
//!
//! Counts by CPU are lists with an element for each CPU number up to the highest possible CPU.

mod interval;

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
    /// How long was measured, in seconds.
    pub duration_s: f64,
    /// Queues that have an interrupt, a NAPI instance or counted packets, by NIC.
    pub queues: Vec<QueueInterrupts>,
    /// How evenly packets are spread over the queues of each NIC.
    pub nics: Vec<NicBalance>,
    /// Devices' interrupts that came and are no queue's.
    pub irqs: Vec<OtherInterrupts>,
    /// The architecture's own interrupts that came (`LOC`, `RES`, `CAL`).
    pub arch_irqs: Vec<ArchInterrupts>,
    /// Softirqs by vector (`NET_RX`), runs by CPU.
    pub softirqs: BTreeMap<String, Vec<u64>>,
    /// All CPUs that are present.
    pub cpus: Vec<CpuInterrupts>,
    /// NAPI instances of devices that were polled.
    pub napi: Vec<NapiPolls>,
    /// Runs of programs that the kernel skipped, and polls for which there was no room.
    pub events_lost: u64,
    /// What observing cost; `None` where the kernel gives no run-time statistics.
    pub cost: Option<EventCost>,
    /// What could not be observed, and why.
    pub unknown: Vec<Unknown>,
}

/// A queue and the interrupt that serves it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct QueueInterrupts {
    /// The NIC.
    pub nic: String,
    /// The queue's number; `None` for an interrupt of several queues.
    pub queue: Option<QueueId>,
    /// Which of the two queues of that number it serves.
    pub direction: Serves,
    /// The interrupt.
    pub irq: Option<IrqNumber>,
    /// Its name in `/proc/interrupts` (`eth0-TxRx-0`).
    pub name: Option<String>,
    /// Interrupts by CPU; empty without an interrupt.
    pub per_cpu: Vec<u64>,
    /// Their sum.
    pub interrupts: u64,
    /// The same for each second.
    pub interrupts_per_s: f64,
    /// Packets that the receive queue was given.
    pub rx_packets: Option<u64>,
    /// Packets that the transmit queue was given.
    pub tx_packets: Option<u64>,
    /// The NAPI instance that serves it, where it is known.
    pub napi: Option<Polls>,
}

/// What a NAPI instance was polled for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Polls {
    /// How often.
    pub polls: u64,
    /// Received packets that it delivered (what its polls returned).
    pub work: u64,
    /// Packets that it might have delivered in these polls.
    pub budget: u64,
    /// Polls that used up their budget.
    pub full_polls: u64,
}

/// Which queues of a number an interrupt serves.
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
    /// Who counted its packets by queue; `None` where nobody does.
    pub packets_from: Option<PacketSource>,
    /// Packets of the busiest receive queue divided by the mean of all: 1 is even, the number of
    /// queues is all by one. `None` without packets.
    pub rx_imbalance: Option<f64>,
    /// The same of the transmit queues.
    pub tx_imbalance: Option<f64>,
}

/// An interrupt that is no queue's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherInterrupts {
    /// The interrupt.
    pub irq: IrqNumber,
    /// Its name in `/proc/interrupts`.
    pub name: String,
    /// Interrupts by CPU.
    pub per_cpu: Vec<u64>,
}

/// An interrupt of the architecture's own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArchInterrupts {
    /// `CAL`.
    pub name: String,
    /// What it is, in the kernel's words.
    pub description: Option<String>,
    /// Interrupts by CPU.
    pub per_cpu: Vec<u64>,
}

/// What a CPU had to do with interrupts. Times are `None` where they could not be observed, counters
/// where the kernel has none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CpuInterrupts {
    /// The CPU.
    pub cpu: CpuId,
    /// Its node.
    pub node: Option<NodeId>,
    /// Whether it was online at the end.
    pub online: bool,
    /// Devices' interrupts.
    pub interrupts: u64,
    /// Time in handlers of hard interrupts: the sum of `hard_ns`.
    pub irq_ns: Option<u64>,
    /// Time in softirqs, without hard interrupts meanwhile: the sum of `soft_ns`.
    pub softirq_ns: Option<u64>,
    /// The first by kind: `device`, `timer`, `call`.
    pub hard_ns: BTreeMap<String, u64>,
    /// The second by vector (`NET_RX`); those that did not run are left out.
    pub soft_ns: BTreeMap<String, u64>,
    /// Packets that the stack took (`/proc/net/softnet_stat`, as all that follow but the last two).
    pub processed: Option<u64>,
    /// Packets dropped because the backlog was full.
    pub dropped: Option<u64>,
    /// Times that NET_RX ran out of budget or time with work left.
    pub time_squeeze: Option<u64>,
    /// Inter-processor interrupts that other CPUs sent here for RPS.
    pub received_rps: Option<u64>,
    /// Packets dropped by the flow limit.
    pub flow_limit: Option<u64>,
    /// Packets that waited in the backlog at the end.
    pub backlog: Option<u64>,
    /// Most of them at the end of any interval.
    pub backlog_max: Option<u64>,
    /// Polls of its backlog.
    pub backlog_polls: Option<Polls>,
}

/// A NAPI instance that was polled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NapiPolls {
    /// Name of its device.
    pub device: String,
    /// Inode of the network namespace that the device is in.
    pub netns: u64,
    /// Its id; `None` for instances that have none (those of transmit queues alone).
    pub napi_id: Option<u32>,
    /// The queue that it serves, where that is known.
    pub queue: Option<QueueId>,
    /// Its polls.
    #[serde(flatten)]
    pub polls: Polls,
    /// Polls by CPU.
    pub per_cpu: Vec<u64>,
}

impl CpuInterrupts {
    /// A CPU of which nothing is known.
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
    /// Both together.
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

    /// A count for each second.
    pub fn per_s(&self, count: u64) -> f64 {
        if self.duration_s > 0.0 { count as f64 / self.duration_s } else { 0.0 }
    }
}

/// The most divided by the mean; `None` when there is nothing to divide.
pub fn imbalance(packets: impl Iterator<Item = u64>) -> Option<f64> {
    let packets: Vec<u64> = packets.collect();
    let sum = packets.iter().fold(0u64, |sum, &n| sum.saturating_add(n));
    let most = packets.iter().max()?;
    (sum > 0).then(|| *most as f64 * packets.len() as f64 / sum as f64)
}
