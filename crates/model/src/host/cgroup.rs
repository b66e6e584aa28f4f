//! Cgroups that limit the CPU time of network readers.

use serde::{Deserialize, Serialize};

/// A cgroup with a CPU limit that contains a process with a receiving socket, directly or in a descendant.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cgroup {
    /// Its path, as `/proc/PID/cgroup` names it for the CPU controller: `/system.slice/nginx.service`.
    pub path: String,
    /// Those processes, ascending, including those in descendants.
    pub pids: Vec<u32>,
    /// CPU time per period, in µs (`cpu.max`, `cpu.cfs_quota_us`).
    pub quota_us: u64,
    /// The period in µs.
    pub period_us: u64,
    /// Periods in which something ran (`nr_periods` of `cpu.stat`).
    pub periods: Option<u64>,
    /// Periods in which it was throttled (`nr_throttled`).
    pub throttled_periods: Option<u64>,
    /// Throttled time, in µs (`throttled_usec`, `throttled_time`).
    pub throttled_us: Option<u64>,
}
