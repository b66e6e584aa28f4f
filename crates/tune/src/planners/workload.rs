//! The processes that a host is tuned for, with their threads; read before planning, as planners do not access the host.

use crate::TuneError;
use nearpath_host::{Root, thread_cpus};
use nearpath_model::{CpuSet, Thread};

/// Maximum number of threads read per process.
const MAX_THREADS: usize = 65_536;

/// A process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload {
    /// Its process id.
    pub pid: u32,
    /// `comm`.
    pub comm: String,
    /// The systemd service that it was requested by.
    pub service: Option<String>,
    /// Its threads, ascending.
    pub threads: Vec<Worker>,
}

/// A thread of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Worker {
    /// The thread.
    pub thread: Thread,
    /// The CPUs that it may run on.
    pub cpus: CpuSet,
}

/// Reads processes; threads that exit meanwhile are skipped.
///
/// # Errors
/// There is no such process.
pub fn workloads(root: &Root, pids: &[u32]) -> Result<Vec<Workload>, TuneError> {
    pids.iter().map(|&pid| workload(root, pid)).collect()
}

fn workload(root: &Root, pid: u32) -> Result<Workload, TuneError> {
    let names = root.list(&format!("/proc/{pid}/task"))?;
    let mut tids: Vec<u32> = names.iter().filter_map(|entry| entry.name.parse().ok()).collect();
    tids.sort_unstable();
    tids.truncate(MAX_THREADS);
    let worker = |tid: u32| {
        let cpus = thread_cpus(root, pid, tid)?;
        Some(Worker { thread: crate::threads::find_thread(root, pid, tid)?, cpus })
    };
    let threads = tids.into_iter().filter_map(worker).collect();
    let comm = root.text(&format!("/proc/{pid}/comm"))?;
    Ok(Workload { pid, comm, service: None, threads })
}
