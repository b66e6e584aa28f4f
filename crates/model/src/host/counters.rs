//! Kernel counters per CPU.

use crate::{ArchIrq, CpuId, CpuSet, IfIndex, Irq, QueueId, Unknown};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One line of `/proc/softirqs`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SoftirqCounts {
    /// The vector: `NET_RX`.
    pub vector: String,
    /// Runs by CPU; CPUs without runs are omitted.
    pub counts: BTreeMap<CpuId, u64>,
}

/// One line of `/proc/net/softnet_stat` (net/core/net-procfs.c). Columns that this kernel does
/// not have are `None`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SoftnetCpu {
    /// The CPU: the index column if present (since 5.10), else its position among the online CPUs.
    pub cpu: CpuId,
    /// Packets taken from the backlog or by NAPI.
    pub processed: u64,
    /// Packets dropped because the backlog was full (`net.core.netdev_max_backlog`).
    pub dropped: u64,
    /// Times that NET_RX stopped because its budget or time was used up.
    pub time_squeeze: u64,
    /// Inter-processor interrupts received for RPS.
    pub received_rps: Option<u64>,
    /// Packets dropped by the flow limit.
    pub flow_limit: Option<u64>,
    /// Packets now in the backlog.
    pub backlog: Option<u64>,
    /// Of these in `input_pkt_queue` (since 6.4).
    pub input_queue: Option<u64>,
    /// Of these in `process_queue` (since 6.4).
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
    /// Stolen by the hypervisor.
    pub steal: Option<u64>,
}

impl CpuTime {
    /// All of it, in ticks.
    pub fn total(&self) -> u64 {
        let busy = [self.user, self.nice, self.system, self.irq, self.softirq];
        let rest = [self.idle, self.iowait, self.steal.unwrap_or(0)];
        busy.into_iter().chain(rest).fold(0, u64::saturating_add)
    }
}

/// One line of `/proc/net/dev`: what an interface has received and sent since it was created.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceCounts {
    /// Its name.
    pub name: String,
    /// Packets received.
    pub rx_packets: u64,
    /// Damaged packets received.
    pub rx_errors: u64,
    /// Packets dropped by the driver, the device (rx_missed_errors) or the stack.
    pub rx_dropped: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Packets that could not be sent.
    pub tx_errors: u64,
    /// Packets dropped on transmit.
    pub tx_dropped: u64,
}

/// Counters at one moment; a measurement takes the difference of two.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Counters {
    /// The CPUs with interrupt counts: those that are online.
    pub cpus: CpuSet,
    /// Interrupts with their counts; affinities and nodes are not read.
    pub irqs: Vec<Irq>,
    /// The interrupts of the architecture.
    pub arch_irqs: Vec<ArchIrq>,
    /// `/proc/softirqs`.
    pub softirqs: Vec<SoftirqCounts>,
    /// `/proc/net/softnet_stat`.
    pub softnet: Vec<SoftnetCpu>,
    /// Packets by queue, for interfaces that count them.
    pub queue_packets: BTreeMap<IfIndex, QueuePackets>,
    /// What could not be read, with the reason.
    pub unknown: Vec<Unknown>,
}

/// Packets of an interface by queue, since the driver created the queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueuePackets {
    /// The source of the counts.
    pub source: PacketSource,
    /// By receive queue.
    pub rx: BTreeMap<QueueId, u64>,
    /// By transmit queue.
    pub tx: BTreeMap<QueueId, u64>,
}

/// The source of a queue's packet counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PacketSource {
    /// The kernel's netdev family (`qstats`).
    Netdev,
    /// The driver's statistics (`ethtool -S`).
    Driver,
    /// Packets delivered by its NAPI instances.
    Napi,
}
