//! `show workers`: one table of the threads that poll, and one of their ports.

use super::cpus::count;
use super::table::{Table, left, or_none, right};
use super::units::{bytes, digits, percentage, printable};
use super::unknown::unknown;
use super::{heading, line};
use nearpath_model::{NodeId, PollingPort, PollingProcess, PollingRole, PollingWorker, Workers};

/// The workers of a host.
pub fn workers(workers: &Workers) -> String {
    let mut out = String::new();
    let all: usize = workers.processes.iter().map(|process| process.workers.len()).sum();
    let processes = workers.processes.len();
    let plural = if processes == 1 { "process" } else { "processes" };
    heading(
        &mut out,
        &format!("{} in {processes} {plural} of DPDK or Open vSwitch", count(all, "worker")),
    );
    for process in &workers.processes {
        line!(out);
        out.push_str(&of_process(workers, process));
    }
    if !workers.unknown.is_empty() {
        line!(out);
        out.push_str(&unknown(&workers.unknown, &[]));
    }
    out
}

fn of_process(workers: &Workers, process: &PollingProcess) -> String {
    let mut out = String::new();
    let version = process.version.as_deref().map(|v| format!(", {v}")).unwrap_or_default();
    heading(&mut out, &printable(&format!("{} {}{version}", process.name, process.pid)));
    if !process.eal.is_empty() {
        line!(out, "options: {}", printable(&process.eal.join(" ")));
    }
    let heaps = process.heaps.iter().map(|(node, size)| format!("node {node} {}", bytes(*size)));
    let heaps: Vec<String> = heaps.collect();
    if !heaps.is_empty() {
        line!(out, "memory: {}", heaps.join(", "));
    }
    let pools = process.pools.iter().map(|pool| {
        let size = pool.elements.zip(pool.element_bytes).and_then(|(n, each)| n.checked_mul(each));
        let node = pool.node.map_or("any node".to_owned(), |node| format!("node {node}"));
        format!("{} {} {node}", printable(&pool.name), size.map(bytes).unwrap_or_default())
    });
    let pools: Vec<String> = pools.collect();
    if !pools.is_empty() {
        line!(out, "pools: {}", pools.join(", "));
    }
    let huge = process.hugepages.iter().flatten().filter(|(_, size)| **size > 0);
    let huge: Vec<String> =
        huge.map(|(node, size)| format!("node {node} {}", bytes(*size))).collect();
    if !huge.is_empty() {
        line!(out, "hugepages: {}", huge.join(", "));
    }
    let devices = process.devices.iter().map(|device| {
        let node = device.node.map_or("node unknown".to_owned(), |node| format!("node {node}"));
        format!("{} {node}", printable(device.name.as_deref().unwrap_or(&device.device)))
    });
    let devices: Vec<String> = devices.collect();
    if !devices.is_empty() {
        line!(out, "devices: {}", devices.join(", "));
    }
    let config = process.other_config.iter().filter(|(key, _)| {
        key.starts_with("pmd-") || key.starts_with("dpdk-") || key.contains("n-")
    });
    let config: Vec<String> =
        config.map(|(key, value)| printable(&format!("{key}={value}"))).collect();
    if !config.is_empty() {
        line!(out, "other_config: {}", config.join(" "));
    }
    out.push_str(&table(workers, process));
    if !process.ports.is_empty() {
        out.push_str(&ports(process));
    }
    out
}

fn table(workers: &Workers, process: &PollingProcess) -> String {
    let mut table = Table::new(&[
        right("LCORE"),
        right("TID"),
        left("CPU"),
        left("SIBLINGS").optional(),
        right("NODE"),
        left("ROLE"),
        left("PORT:QUEUES").optional(),
        left("PORT-NODE").optional(),
        left("MEMORY-NODE").optional(),
        right("BUSY").optional(),
        right("EMPTY-POLLS").optional(),
        right("IMISSED/s").optional(),
        left("WHO-ELSE-RAN").optional(),
    ]);
    for worker in &process.workers {
        let activity = worker.interval.as_ref();
        let busy = activity.map_or(worker.busy_percent, |of| of.busy_percent);
        let empty = match activity {
            Some(of) => of.empty_poll_percent,
            None => empty_polls(worker),
        };
        let missed =
            ports_of(process, worker).filter_map(|port| port.interval.as_ref()?.imissed_per_s);
        let missed: Vec<f64> = missed.collect();
        table.row([
            worker.lcore.to_string(),
            or_none(worker.tid),
            worker.cpus.as_ref().map(|cpus| cpus.brief()).unwrap_or_default(),
            worker.siblings.brief(),
            or_none(worker.node),
            worker.role.name().to_owned(),
            queues(worker),
            nodes(ports_of(process, worker).map(|port| port.node)),
            memory_nodes(process),
            busy.map(percentage).unwrap_or_default(),
            empty.map(percentage).unwrap_or_default(),
            if missed.is_empty() { String::new() } else { digits(missed.iter().sum()) },
            who_else_ran(workers, worker),
        ]);
    }
    table.render()
}

/// The ports that a worker polls; all of the process if that is not known.
fn ports_of<'a>(
    process: &'a PollingProcess,
    worker: &'a PollingWorker,
) -> impl Iterator<Item = &'a PollingPort> {
    let is_known = process.workers.iter().any(|worker| !worker.queues.is_empty());
    process.ports.iter().filter(move |port| {
        worker.queues.contains_key(&port.name) || (!is_known && worker.role != PollingRole::Main)
    })
}

/// Nodes of several things, each once; unknown ones as `?`.
fn nodes(of: impl Iterator<Item = Option<NodeId>>) -> String {
    let nodes: std::collections::BTreeSet<Option<NodeId>> = of.collect();
    let names = nodes.into_iter().map(|node| node.map_or("?".to_owned(), |node| node.to_string()));
    names.collect::<Vec<_>>().join("+")
}

/// Nodes of the process's memory: hugepages by the kernel, or else the heaps as DPDK has them.
fn memory_nodes(process: &PollingProcess) -> String {
    let huge = process.hugepages.as_ref().filter(|nodes| nodes.values().any(|bytes| *bytes > 0));
    let by_node = huge.unwrap_or(&process.heaps).iter().filter(|(_, bytes)| **bytes > 0);
    nodes(by_node.map(|(node, _)| Some(*node)))
}

fn empty_polls(worker: &PollingWorker) -> Option<f64> {
    let (polls, empty) = (worker.counts.polls?, worker.counts.empty_polls?);
    (polls > 0).then(|| (empty as f64 * 100.0 / polls as f64).min(100.0))
}

fn who_else_ran(workers: &Workers, worker: &PollingWorker) -> String {
    let others = workers.others_of(worker);
    let Some((_, task)) = others.first() else { return String::new() };
    let share = task.ran_ns as f64 / 1e7 / workers.duration_s.unwrap_or(f64::INFINITY);
    let more = if others.len() > 1 { format!(" +{}", others.len() - 1) } else { String::new() };
    format!("{}[{}] {}{more}", task.comm, task.tid, percentage(share.min(100.0)))
}

pub(super) fn queues(worker: &PollingWorker) -> String {
    let one = |(port, ids): (&String, &Vec<u32>)| {
        let ids = ids.iter().map(u32::to_string).collect::<Vec<_>>().join("+");
        format!("{port}:{ids}")
    };
    worker.queues.iter().map(one).collect::<Vec<_>>().join(" ")
}

fn ports(process: &PollingProcess) -> String {
    let mut table = Table::new(&[
        right("PORT"),
        left("NAME"),
        right("NODE"),
        right("RXQ"),
        right("TXQ"),
        right("RX PACKETS"),
        right("IMISSED"),
        right("NO BUFFER"),
        left("AFFINITY").optional(),
    ]);
    for port in &process.ports {
        table.row([
            or_none(port.port),
            port.name.clone(),
            or_none(port.node),
            or_none(port.rx_queues),
            or_none(port.tx_queues),
            or_none(port.rx_packets),
            or_none(port.imissed),
            or_none(port.rx_nombuf),
            port.rxq_affinity.clone().unwrap_or_default(),
        ]);
    }
    table.render()
}
