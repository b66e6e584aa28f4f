//! Packets that were slow, and where the time of each went: plain data, part of a
//! [`Measurement`](crate::Measurement).

use crate::Direction;
use crate::{CpuId, NodeId};
use serde::{Deserialize, Serialize};

/// One packet whose span was long.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outlier {
    /// Receive or transmit.
    pub direction: Direction,
    /// Name of the stage before.
    pub from: String,
    /// Name of the stage after.
    pub to: String,
    /// The latency between the two.
    pub span_ns: u64,
    /// CPU of the stage before.
    pub from_cpu: CpuId,
    /// CPU of the stage after: the one that should have run the packet, of which the budget tells.
    pub cpu: CpuId,
    /// Its node.
    pub node: Option<NodeId>,
    /// `TCP 10.0.0.1:5000 > 10.0.0.2:80`, where the packet's headers could be read.
    pub flow: Option<String>,
    /// End of the span, in nanoseconds of CLOCK_MONOTONIC.
    pub at_ns: u64,
    /// Packets that the CPU's stack was given during the span.
    pub packets_meanwhile: u16,
    /// Whether what the CPU did is known for all of the span.
    pub complete: bool,
    /// Where the time went; adds up to `span_ns`, the largest share first. Behind these, on a host
    /// with several nodes, a [`ShareKind::RemoteMemoryBound`], which is no part of the sum.
    pub budget: Vec<Share>,
    /// Which packet: the same number for all outliers of one.
    #[serde(default)]
    pub packet: u64,
    /// The stages that it passed, with the slow span among them; up to that where its end was not
    /// seen.
    #[serde(default)]
    pub path: Vec<Passed>,
}

/// A stage that a packet passed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Passed {
    /// Name of the stage.
    pub stage: String,
    /// On which CPU.
    pub cpu: CpuId,
    /// Its node.
    pub node: Option<NodeId>,
    /// When, in nanoseconds of CLOCK_MONOTONIC.
    pub at_ns: u64,
}

impl Outlier {
    /// Whether the slow span ends at this stage of the path, which comes after `before`.
    pub fn ends_at(&self, before: &Passed, stage: &Passed) -> bool {
        (stage.at_ns, &stage.stage, &before.stage) == (self.at_ns, &self.to, &self.from)
    }
}

/// A part of a slow span.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// What the CPU did.
    pub share: ShareKind,
    /// For how long.
    pub ns: u64,
    /// Who it was.
    pub who: Option<Who>,
}

/// What a CPU did instead of running the packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShareKind {
    /// The work between the two stages itself, in the packet's own context.
    Own,
    /// A hard interrupt.
    Irq,
    /// A softirq: another vector than the packet waits for, or NET_RX where a task waits.
    Softirq,
    /// NET_RX worked on what was queued ahead of the packet.
    NetRxAhead,
    /// A task ran while the softirq was left to ksoftirqd, or to another thread.
    Task,
    /// A task ran, with softirqs or interrupts off: nothing else keeps them from running.
    Disabled,
    /// The CPU idled, and woke up.
    Idle,
    /// The CPU idled until an inter-processor interrupt came.
    Ipi,
    /// The reader was ready and another task ran.
    Runqueue,
    /// The reader was ready, but its cgroup had used up its CPU quota.
    Throttled,
    /// The reader waited for another CPU, from which the scheduler took it.
    Migration,
    /// The reader was blocked: in what, and what woke it.
    Asleep,
    /// A queueing discipline held the packet back: it shapes, paces or delays.
    Qdisc,
    /// The device took no packets: its ring was full, or its limit of bytes was reached (BQL).
    DeviceQueue,
    /// The NIC had the packet, and had not interrupted yet: its interrupt moderation, its bus, or interrupts were off on
    /// the CPU.
    Nic,
    /// TCP waited for data before this, which was missing.
    TcpGap,
    /// A task had the socket locked.
    SocketLocked,
    /// The sender waited for room in its socket.
    SocketFull,
    /// Open vSwitch's user space had the packet.
    Upcall,
    /// The CPU that the packet was queued for was offline, or went offline and another took it over.
    Offline,
    /// The hypervisor had the CPU.
    Stolen,
    /// What the CPU did is not known.
    Unknown,
    /// The most that the distance between nodes can have added: a bound, which is contained in the
    /// other shares and no part of the sum.
    RemoteMemoryBound,
}

impl ShareKind {
    /// Whether the packet waited for something that no CPU could have given it.
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
        )
    }

    /// Whether it is a part of the span's time, not a bound.
    pub fn is_time(self) -> bool {
        self != Self::RemoteMemoryBound
    }
}

/// Who had the CPU. Fields that do not apply are `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Who {
    /// Name of a task.
    pub comm: Option<String>,
    /// Its thread id as /proc has it; `None` of a task in another PID namespace.
    pub pid: Option<u32>,
    /// Its scheduling policy (`SCHED_FIFO`).
    pub policy: Option<String>,
    /// Its priority: 1 to 99 of a real-time policy, else the nice value.
    pub prio: Option<i32>,
    /// Number of a device's interrupt.
    pub irq: Option<u32>,
    /// Name of a softirq (`NET_RX`), or of an interrupt of the CPU itself (`local_timer`).
    pub vector: Option<String>,
    /// The task's cgroup, in which it was last seen.
    pub cgroup: Option<String>,
    /// The CPU that a reader was taken from.
    pub cpu: Option<CpuId>,
    /// In what the task blocked: `futex`, `io`, `fault`, `nanosleep`, `poll`, `pipe`, `socket`, `stopped`,
    /// `frozen`, … or the kernel function.
    #[serde(default)]
    pub on: Option<String>,
    /// What woke it: a task, a softirq or an interrupt.
    #[serde(default)]
    pub woken_by: Option<Box<Who>>,
    /// Kind of a queueing discipline.
    #[serde(default)]
    pub qdisc: Option<String>,
    /// Its device.
    #[serde(default)]
    pub device: Option<String>,
}

/// How many packets were slow, and how many of them are explained.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slow {
    /// How many were seen.
    pub seen: u64,
    /// How many more there were than could be sent up.
    pub lost: u64,
    /// How many of those seen have a complete budget.
    pub complete: u64,
    /// Sum of their spans.
    pub span_ns: u64,
    /// How many packets there were whose whole path could not be sent up.
    #[serde(default)]
    pub paths_lost: u64,
}
