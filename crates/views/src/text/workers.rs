//! `show workers`: one table of the threads that poll, and one of their ports.

use super::cpus::count;
use super::table::{Table, left, or_none, right};
use super::units::{bytes, digits, printable};
use super::unknown::unknown;
use super::{heading, line};
use nearpath_model::{PollingProcess, PollingRole, PollingWorker, Workers};

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
        out.push_str(&of_process(process));
    }
    if !workers.unknown.is_empty() {
        line!(out);
        out.push_str(&unknown(&workers.unknown, &[]));
    }
    out
}

fn of_process(process: &PollingProcess) -> String {
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
    out.push_str(&table(process));
    if !process.ports.is_empty() {
        out.push_str(&ports(process));
    }
    out
}

fn table(process: &PollingProcess) -> String {
    let mut table = Table::new(&[
        right("LCORE"),
        right("TID"),
        left("CPU"),
        left("SIBLINGS").optional(),
        right("NODE"),
        left("ROLE"),
        left("PORT:QUEUES").optional(),
        right("BUSY").optional(),
    ]);
    for worker in &process.workers {
        let role = match worker.role {
            PollingRole::Main => "main",
            PollingRole::Worker => "worker",
            PollingRole::Pmd => "pmd",
        };
        table.row([
            worker.lcore.to_string(),
            or_none(worker.tid),
            worker.cpus.as_ref().map(|cpus| cpus.brief()).unwrap_or_default(),
            worker.siblings.brief(),
            or_none(worker.node),
            role.to_owned(),
            queues(worker),
            worker.busy_percent.map(|share| format!("{}%", digits(share))).unwrap_or_default(),
        ]);
    }
    table.render()
}

fn queues(worker: &PollingWorker) -> String {
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
        ]);
    }
    table.render()
}
