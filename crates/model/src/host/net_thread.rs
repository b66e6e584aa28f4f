//! Threads of the network path that run kernel code.

use crate::CpuSet;
use serde::{Deserialize, Serialize};

/// A thread of the network path: of the kernel, or a vhost worker in the process that uses it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetThread {
    /// Its id.
    pub pid: u32,
    /// The process that it is a thread of; `None` for a kernel thread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<u32>,
    /// Its name: `ksoftirqd/3`, `napi/eth0-8194`, `vhost-4711`.
    pub comm: String,
    /// The CPUs that it may run on.
    pub cpus: Option<CpuSet>,
    /// Time on a CPU in ns (`schedstat`).
    pub run_ns: Option<u64>,
    /// Time that it was runnable but not running, in ns (`schedstat`).
    pub wait_ns: Option<u64>,
}
