//! Slow packets, and where the time of each went: plain data, part of a [`Measurement`](crate::Measurement).

use crate::Direction;
use crate::{CpuId, NodeId};
use serde::{Deserialize, Serialize};

/// One packet whose span was long.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outlier {
    /// Receive or transmit.
    pub direction: Direction,
    /// Name of the first stage.
    pub from: String,
    /// Name of the second stage.
    pub to: String,
    /// The latency between the two.
    pub span_ns: u64,
    /// CPU of the first stage.
    pub from_cpu: CpuId,
    /// CPU of the second stage: the one that should have processed the packet, which the budget is about.
    pub cpu: CpuId,
    /// Its node.
    pub node: Option<NodeId>,
    /// `TCP 10.0.0.1:5000 > 10.0.0.2:80`, if the packet's headers could be read.
    pub flow: Option<String>,
    /// End of the span, in nanoseconds of CLOCK_MONOTONIC.
    pub at_ns: u64,
    /// Packets that the CPU's stack received during the span.
    pub packets_meanwhile: u16,
    /// Whether the activity of the CPU is known for the whole span.
    pub complete: bool,
    /// Where the time went; adds up to `span_ns`, the largest share first. On a host with several nodes they
    /// are followed by a [`ShareKind::RemoteMemoryBound`], which is not part of the sum.
    pub budget: Vec<Share>,
    /// Identifies the packet: the same number for all outliers of one packet.
    #[serde(default)]
    pub packet: u64,
    /// The stages that it passed, including the slow span; up to the span if its end was not seen.
    #[serde(default)]
    pub path: Vec<Passed>,
}

/// A stage that a packet passed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Passed {
    /// Name of the stage.
    pub stage: String,
    /// The CPU.
    pub cpu: CpuId,
    /// Its node.
    pub node: Option<NodeId>,
    /// When, in nanoseconds of CLOCK_MONOTONIC.
    pub at_ns: u64,
}

impl Outlier {
    /// Whether the slow span ends at this stage of the path, which follows `before`.
    pub fn ends_at(&self, before: &Passed, stage: &Passed) -> bool {
        (stage.at_ns, &stage.stage, &before.stage) == (self.at_ns, &self.to, &self.from)
    }
}

/// A part of a slow span.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// What the CPU did.
    pub share: ShareKind,
    /// Duration.
    pub ns: u64,
    /// What caused it.
    pub who: Option<Culprit>,
}

impl Share {
    /// Adds it to the share of the same kind and cause, if there is one.
    pub fn add_to(self, shares: &mut Vec<Self>) {
        let is_same = |other: &&mut Self| (other.share, &other.who) == (self.share, &self.who);
        match shares.iter_mut().find(is_same) {
            Some(same) => same.ns = same.ns.saturating_add(self.ns),
            None => shares.push(self),
        }
    }
}

/// What a CPU did instead of processing the packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShareKind {
    /// The work between the two stages, in the packet's own context.
    Own,
    /// A hard interrupt.
    Irq,
    /// A softirq: of another vector than the one the packet waits for, or NET_RX if a task waits.
    Softirq,
    /// NET_RX processed packets queued ahead of this one.
    NetRxAhead,
    /// A task ran while the softirq was deferred to ksoftirqd, or to another thread.
    Task,
    /// A task ran with softirqs or interrupts disabled: nothing else prevents them from running.
    Disabled,
    /// The CPU was idle, and woke up.
    Idle,
    /// The CPU was idle until an inter-processor interrupt arrived.
    Ipi,
    /// The reader was runnable and another task ran.
    Runqueue,
    /// The reader was runnable, but its cgroup had used up its CPU quota.
    Throttled,
    /// The reader waited for another CPU, from which the scheduler migrated it.
    Migration,
    /// The reader was blocked: where, and what woke it.
    Asleep,
    /// A queueing discipline held the packet: it shapes, paces or delays.
    Qdisc,
    /// The device's queue was stopped: its ring was full, or its byte limit was reached (BQL).
    DeviceQueue,
    /// The NIC had the packet, and had not interrupted yet: interrupt moderation, its bus, or interrupts
    /// disabled on the CPU.
    Nic,
    /// TCP waited for missing data before this.
    TcpGap,
    /// A task held the socket lock.
    SocketLocked,
    /// The sender waited for room in its socket.
    SocketFull,
    /// Open vSwitch's user space had the packet.
    Upcall,
    /// The packet left the run that processed it, and another one passed it on: it was in a queue that is not known, of a
    /// firewall's program (NFQUEUE), for reassembly, decryption or another CPU. The task that passed it on, if one did.
    Held,
    /// The CPU that the packet was queued for was offline, or went offline and another one took over its queue.
    Offline,
    /// The hypervisor ran something else on the CPU.
    Stolen,
    /// The activity of the CPU is unknown.
    Unknown,
    /// Upper bound of what the distance between nodes can have added: included in the other shares and not part
    /// of the sum.
    RemoteMemoryBound,
}

impl ShareKind {
    /// Whether the packet waited for something other than a CPU.
    pub fn is_elsewhere(self) -> bool {
        matches!(
            self,
            Self::Asleep
                | Self::Qdisc
                | Self::DeviceQueue
                | Self::Nic
                | Self::TcpGap
                | Self::SocketLocked
                | Self::SocketFull
                | Self::Held
        )
    }

    /// Whether it is part of the span's time, not a bound.
    pub fn is_time(self) -> bool {
        self != Self::RemoteMemoryBound
    }
}

/// What had the CPU. Fields that do not apply are `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Culprit {
    /// Name of a task.
    pub comm: Option<String>,
    /// Its thread id in /proc; `None` for a task in another PID namespace.
    pub pid: Option<u32>,
    /// Its scheduling policy (`SCHED_FIFO`).
    pub policy: Option<String>,
    /// Its priority: 1 to 99 for a real-time policy, else the nice value.
    pub prio: Option<i32>,
    /// Number of a device's interrupt.
    pub irq: Option<u32>,
    /// Name of a softirq (`NET_RX`), or of an interrupt of the CPU itself (`local_timer`).
    pub vector: Option<String>,
    /// Whether the kernel refuses to move it to other CPUs (`PF_NO_SETAFFINITY`), like per-CPU workers; `None` if
    /// unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound: Option<bool>,
    /// Whether it is a thread of the nearpath that measured.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub nearpath: bool,
    /// The last known cgroup of the task.
    pub cgroup: Option<String>,
    /// The CPU that a reader was migrated from.
    pub cpu: Option<CpuId>,
    /// What the task blocked on: `futex`, `io`, `fault`, `nanosleep`, `poll`, `pipe`, `socket`, `stopped`,
    /// `frozen`, … or the kernel function.
    #[serde(default)]
    pub on: Option<String>,
    /// What woke it: a task, a softirq or an interrupt.
    #[serde(default)]
    pub woken_by: Option<Box<Culprit>>,
    /// Kind of a queueing discipline.
    #[serde(default)]
    pub qdisc: Option<String>,
    /// Its device.
    #[serde(default)]
    pub device: Option<String>,
}

/// Number of slow packets, and of those that are explained.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slow {
    /// Number observed.
    pub seen: u64,
    /// Number that could not be sent to user space.
    pub lost: u64,
    /// Number of those observed with a complete budget.
    pub complete: u64,
    /// Sum of their spans.
    pub span_ns: u64,
    /// Number of packets whose whole path could not be sent to user space.
    #[serde(default)]
    pub paths_lost: u64,
}
