//! Look-ups over workers that several checks need.
//!
//! A worker polls if it was seen to run or to want to, or, if nothing was measured, unless it is EAL's main lcore, which
//! mostly waits for commands. Workers of one process with the same problem are one finding: they were started by one
//! command, which is what changes it.

use crate::{Context, text};
use nearpath_model::{
    CpuId, CpuSet, NodeId, PollingPort, PollingProcess, PollingRole, PollingWorker, Subject,
    Workers,
};

/// Workers of which a finding says more than their names.
pub(crate) const DESCRIBED: usize = 8;

impl<'a> Context<'a> {
    /// The processes with workers; none if they were not read.
    pub(crate) fn polling_processes(&self) -> &'a [PollingProcess] {
        self.workers.map(|workers| workers.processes.as_slice()).unwrap_or_default()
    }

    /// The threads that poll, with their processes.
    pub(crate) fn pollers(&self) -> Vec<(&'a PollingProcess, &'a PollingWorker)> {
        let all = self.workers.into_iter().flat_map(Workers::all_workers);
        all.filter(|(_, worker)| polls(worker)).collect()
    }
}

/// Whether a worker polls.
pub(crate) fn polls(worker: &PollingWorker) -> bool {
    let seen = worker.interval.as_ref().and_then(|activity| activity.polls());
    seen.unwrap_or(worker.role != PollingRole::Main)
}

/// `dpdk-testpmd[70]`.
pub(crate) fn process_name(process: &PollingProcess) -> String {
    format!("{}[{}]", text::clean(&process.name), process.pid)
}

/// `dpdk-testpmd[70] lcore 3`.
pub(crate) fn name(process: &PollingProcess, worker: &PollingWorker) -> String {
    let what = if worker.role == PollingRole::Pmd { "PMD" } else { "lcore" };
    format!("{} {what} {}", process_name(process), worker.lcore)
}

/// `lcore 3`, `lcores 1-3`, `PMDs 1,3`: several workers of one process. A long list is cut.
pub(crate) fn lcores(workers: &[&PollingWorker]) -> String {
    let ids: CpuSet = workers.iter().map(|worker| CpuId(worker.lcore)).collect();
    let are_pmds = workers.iter().all(|worker| worker.role == PollingRole::Pmd);
    let what = if are_pmds { "PMD" } else { "lcore" };
    match ids.len() {
        1 => format!("{what} {ids}"),
        _ => format!("{what}s {}", ids.brief()),
    }
}

/// `dpdk-testpmd[70] lcores 1-3`.
pub(crate) fn names(process: &PollingProcess, workers: &[&PollingWorker]) -> String {
    format!("{} {}", process_name(process), lcores(workers))
}

/// Items in groups that share a key, in the order of each group's first.
pub(crate) fn grouped<K: PartialEq, T>(
    items: impl IntoIterator<Item = (K, T)>,
) -> Vec<(K, Vec<T>)> {
    let mut groups: Vec<(K, Vec<T>)> = Vec::new();
    for (key, item) in items {
        match groups.iter_mut().find(|(of, _)| *of == key) {
            Some((_, members)) => members.push(item),
            None => groups.push((key, vec![item])),
        }
    }
    groups
}

/// The CPUs of a worker, as subjects; at most 16.
pub(crate) fn cpus(worker: &PollingWorker) -> impl Iterator<Item = Subject> {
    worker.cpus.iter().flat_map(|cpus| cpus.iter().take(16)).map(Subject::Cpu)
}

/// A worker that lost this share of its time to others leaves bursts in the ring.
const AWAY_PERCENT: f64 = 5.0;

/// Whether a worker lost so much of its time that it seems to be busy: cycles go on while another task runs.
pub(crate) fn is_away(worker: &PollingWorker) -> bool {
    worker.interval.as_ref().is_some_and(|activity| {
        activity.is_disturbed == Some(true)
            && activity.lost_percent().unwrap_or(0.0) >= AWAY_PERCENT
    })
}

/// The node of a worker. Open vSwitch decides by the one that it has for a PMD thread.
pub(crate) fn node_of(worker: &PollingWorker) -> Option<NodeId> {
    match worker.role {
        PollingRole::Pmd => worker.reported_node.or(worker.node),
        _ => worker.node,
    }
}

/// The ports that a worker polls; `None` if the process does not report which.
pub(crate) fn ports_of<'a>(
    process: &'a PollingProcess,
    worker: &PollingWorker,
) -> Option<Vec<&'a PollingPort>> {
    let is_known = process.workers.iter().any(|worker| !worker.queues.is_empty());
    is_known.then(|| {
        process.ports.iter().filter(|port| worker.queues.contains_key(&port.name)).collect()
    })
}

/// Packets per second that a port received in the interval.
pub(crate) fn received_per_s(port: &PollingPort) -> Option<f64> {
    port.interval.as_ref()?.rx_packets_per_s
}

/// Its busy share in percent: in the interval, or since its counters were reset.
pub(crate) fn busy(worker: &PollingWorker) -> Option<f64> {
    match &worker.interval {
        Some(activity) => activity.busy_percent.or(activity.empty_poll_percent.map(|e| 100.0 - e)),
        None => worker.busy_percent,
    }
}
