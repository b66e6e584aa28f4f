//! Counters of the kernel by CPU.

use crate::{ArchIrq, CpuId, CpuSet, IfIndex, Irq, QueueId, Unknown};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One line of `/proc/softirqs`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SoftirqCounts {
    /// The vector: `NET_RX`.
    pub vector: String,
    /// Runs by CPU; CPUs with none are left out.
    pub counts: BTreeMap<CpuId, u64>,
}

/// One line of `/proc/net/softnet_stat` (net/core/net-procfs.c). Columns that this kernel does
/// not have are `None`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SoftnetCpu {
    /// The CPU: the index column where there is one (5.10 and later), else counted over the
    /// online CPUs.
    pub cpu: CpuId,
    /// Packets taken from the backlog or by NAPI.
    pub processed: u64,
    /// Packets dropped because the backlog was full (`net.core.netdev_max_backlog`).
    pub dropped: u64,
    /// Times that NET_RX ran out of budget or time with work left.
    pub time_squeeze: u64,
    /// Inter-processor interrupts received for RPS.
    pub received_rps: Option<u64>,
    /// Packets dropped by the flow limit.
    pub flow_limit: Option<u64>,
    /// Packets that wait in the backlog now.
    pub backlog: Option<u64>,
    /// Of these in `input_pkt_queue` (6.4 and later).
    pub input_queue: Option<u64>,
    /// Of these in `process_queue` (6.4 and later).
    pub process_queue: Option<u64>,
}

/// One CPU's line of `/proc/stat`, in ticks of `USER_HZ`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuTime {
    /// The CPU.
    pub cpu: CpuId,
    /// User.
    pub user: u64,
    /// Nice.
    pub nice: u64,
    /// System.
    pub system: u64,
    /// Idle.
    pub idle: u64,
    /// Waiting for I/O.
    pub iowait: u64,
    /// Hard interrupts.
    pub irq: u64,
    /// Soft interrupts.
    pub softirq: u64,
    /// Taken by the hypervisor for others.
    pub steal: Option<u64>,
}

/// One line of `/proc/net/dev`: what an interface has received and sent since it was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceCounts {
    /// Its name.
    pub name: String,
    /// Packets received.
    pub rx_packets: u64,
    /// Packets that were damaged.
    pub rx_errors: u64,
    /// Packets that the driver, the device (rx_missed_errors) or the stack had no room for.
    pub rx_dropped: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Packets that could not be sent.
    pub tx_errors: u64,
    /// Packets that were not sent for want of room.
    pub tx_dropped: u64,
}

/// The counters that a measurement takes the difference of, at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Counters {
    /// The CPUs that interrupts are told of: those that are online.
    pub cpus: CpuSet,
    /// Interrupts with their counts; affinities and nodes are not read.
    pub irqs: Vec<Irq>,
    /// The architecture's own interrupts.
    pub arch_irqs: Vec<ArchIrq>,
    /// `/proc/softirqs`.
    pub softirqs: Vec<SoftirqCounts>,
    /// `/proc/net/softnet_stat`.
    pub softnet: Vec<SoftnetCpu>,
    /// Packets by queue, of interfaces that count them.
    pub queue_packets: BTreeMap<IfIndex, QueuePackets>,
    /// What could not be read, and why.
    pub unknown: Vec<Unknown>,
}

/// Packets of an interface by queue, since the driver made the queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueuePackets {
    /// Who counted them.
    pub source: PacketSource,
    /// By receive queue.
    pub rx: BTreeMap<QueueId, u64>,
    /// By transmit queue.
    pub tx: BTreeMap<QueueId, u64>,
}

/// Who counts the packets of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PacketSource {
    /// The kernel's netdev family (`qstats`).
    Netdev,
    /// The driver's statistics (`ethtool -S`).
    Driver,
    /// What NAPI instances were given to deliver.
    Napi,
}
