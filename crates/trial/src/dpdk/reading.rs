//! The counters of an application on DPDK at a moment: of its ports, its workers and its vhost threads.
//!
//! Input: a root and a process. Output: counters, of which two readings make a block.

use nearpath_host::parse::parse_interrupts;
use nearpath_host::{Root, run_delay, vhost_threads, workers};
use nearpath_model::{CpuId, CpuSet, PollingPort, PollingRole, PollingWorker};
use std::collections::BTreeMap;
use std::time::Instant;

/// Counters of an application at a moment.
#[derive(Debug, Clone)]
pub struct DpdkReading {
    pub(super) at: Instant,
    pub(super) workers: Vec<WorkerReading>,
    /// Threads that move the packets of its virtio-user ports in the kernel.
    pub(super) vhost: Vec<VhostReading>,
    pub(super) imissed: Option<u64>,
    pub(super) rx_nombuf: Option<u64>,
}

#[derive(Debug, Clone)]
pub(super) struct WorkerReading {
    pub(super) lcore: u32,
    pub(super) cpus: CpuSet,
    /// Of the worker's CPUs.
    pub(super) interrupts: Option<u64>,
    pub(super) involuntary: Option<u64>,
    pub(super) waited_ns: Option<u64>,
}

#[derive(Debug, Clone)]
pub(super) struct VhostReading {
    pub(super) tid: u32,
    pub(super) cpus: Option<CpuSet>,
    pub(super) ran_ns: Option<u64>,
    pub(super) waited_ns: Option<u64>,
}

/// Reads a process and its workers without the main lcore; `None` if it has none.
pub fn read_application(root: &Root, pid: u32) -> Option<DpdkReading> {
    let process = workers::read(root).processes.into_iter().find(|process| process.pid == pid)?;
    let interrupts = interrupts_by_cpu(root);
    let sum = |of: fn(&PollingPort) -> Option<u64>| {
        process.ports.iter().map(of).sum::<Option<u64>>().filter(|_| !process.ports.is_empty())
    };
    let counts = |worker: &PollingWorker| {
        let (tid, cpus) = (worker.tid?, worker.cpus.clone()?);
        let of_cpus =
            |by_cpu: &BTreeMap<CpuId, u64>| cpus.iter().filter_map(|cpu| by_cpu.get(&cpu)).sum();
        Some(WorkerReading {
            lcore: worker.lcore,
            interrupts: interrupts.as_ref().map(of_cpus),
            involuntary: involuntary(root, pid, tid),
            waited_ns: run_delay(root, pid, tid).map(|delay| delay.ns),
            cpus,
        })
    };
    let polling = process.workers.iter().filter(|worker| worker.role != PollingRole::Main);
    let workers: Vec<WorkerReading> = polling.filter_map(counts).collect();
    let vhost = vhost_threads(root, pid).into_iter().map(|thread| VhostReading {
        tid: thread.pid,
        cpus: thread.cpus,
        ran_ns: thread.run_ns,
        waited_ns: thread.wait_ns,
    });
    let vhost = vhost.collect();
    let (imissed, rx_nombuf) = (sum(|port| port.imissed), sum(|port| port.rx_nombuf));
    let at = Instant::now();
    (!workers.is_empty()).then_some(DpdkReading { at, workers, vhost, imissed, rx_nombuf })
}

/// All interrupts by CPU, those of devices and of the architecture.
fn interrupts_by_cpu(root: &Root) -> Option<BTreeMap<CpuId, u64>> {
    let found = parse_interrupts(&root.read("/proc/interrupts").ok()?).ok()?;
    let counts =
        found.irqs.iter().map(|irq| &irq.counts).chain(found.arch.iter().map(|irq| &irq.counts));
    let mut by_cpu: BTreeMap<CpuId, u64> = BTreeMap::new();
    for (cpu, count) in counts.flatten() {
        let sum = by_cpu.entry(*cpu).or_default();
        *sum = sum.saturating_add(*count);
    }
    Some(by_cpu)
}

/// `nonvoluntary_ctxt_switches` of a thread (fs/proc/array.c): another task took its CPU.
fn involuntary(root: &Root, pid: u32, tid: u32) -> Option<u64> {
    let status = root.text(&format!("/proc/{pid}/task/{tid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"))?;
    line.trim().parse().ok()
}
