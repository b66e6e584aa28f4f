//! Why packets were late within a guest: its own recording beside the waits of its vCPUs in the host.

use crate::Direction;
use serde::{Deserialize, Serialize};

/// Waits of the vCPUs of a virtual machine: times that their threads were ready to run without running.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VcpuPauses {
    /// Shorter ones are not kept.
    pub shortest_ns: u64,
    /// Those that were kept, in the order of their ends.
    pub kept: Vec<VcpuPause>,
}

/// A wait of a vCPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VcpuPause {
    /// The vCPU's number.
    pub vcpu: u32,
    /// When it was ready to run, in nanoseconds of the host's `CLOCK_MONOTONIC`.
    pub start_ns: u64,
    /// When it ran.
    pub end_ns: u64,
    /// Whether it waited for its cgroup's quota (`cpu.max`).
    pub throttled: bool,
    /// The task that had the CPU for longest meanwhile; `swapper/N`: it was idle. `None` if unknown.
    pub behind: Option<String>,
}

/// The late spans of a guest, as it has recorded them, with what its vCPUs waited for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestLate {
    /// Late spans in the guest's recording while the host measured.
    pub spans: Vec<GuestSpan>,
    /// Those before or after that.
    pub outside: u64,
    /// What the vCPUs waited for during all of them, each wait once, most first.
    pub waited: Vec<GuestWait>,
}

impl GuestLate {
    /// Late spans that were so for the host: a vCPU was without a CPU for most of them.
    pub fn by_host(&self) -> usize {
        self.spans.iter().filter(|span| span.is_by_host()).count()
    }
}

/// A late span of a guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestSpan {
    /// Receive or transmit.
    pub direction: Direction,
    /// The stage where it began, in the guest.
    pub from: String,
    /// The stage where it ended.
    pub to: String,
    /// `TCP 10.0.0.1:5000 > 10.0.0.2:80`, if known.
    pub flow: Option<String>,
    /// Its number in the guest's recording.
    pub packet: u64,
    /// How long it took.
    pub span_ns: u64,
    /// When it ended, in nanoseconds of the host's `CLOCK_MONOTONIC`.
    pub host_at_ns: u64,
    /// The vCPU that should have processed the packet.
    pub vcpu: u32,
    /// What the guest itself knows to be stolen of it.
    pub stolen_ns: u64,
    /// What it waited for meanwhile, and what the vCPUs did that should have handed the packet over, most first. No two
    /// are at the same time.
    pub waited: Vec<GuestWait>,
}

impl GuestSpan {
    /// How long its vCPU, or one that should have handed the packet over, was without a CPU.
    pub fn waited_ns(&self) -> u64 {
        self.waited.iter().fold(0, |sum, wait| sum.saturating_add(wait.ns))
    }

    /// Whether that was most of it.
    pub fn is_by_host(&self) -> bool {
        self.waited_ns() > self.span_ns / 2
    }
}

/// What a vCPU waited for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestWait {
    /// The vCPU's number.
    #[serde(default)]
    pub vcpu: u32,
    /// How long.
    pub ns: u64,
    /// Whether for its cgroup's quota.
    pub throttled: bool,
    /// The task that had the CPU, if it was for a CPU and is known.
    pub behind: Option<String>,
}
