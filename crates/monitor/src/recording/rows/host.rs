//! Pictures: memory, workers, changes of the journal, findings.

use crate::collect::{name_of, subject};
use crate::recording::batch::{Batch, Cell};
use crate::recording::table::Table;
use nearpath_model::memory::{MemoryMeasurement, NodeBytes};
use nearpath_model::{ChangeStatus, Diagnosis, Workers};
use std::cmp::Reverse;

/// Processes that have rows: those with the most memory.
const PROCESSES_MAX: usize = 64;

/// Where the memory of the largest processes is.
pub fn memory(memory: &MemoryMeasurement) -> Batch {
    let mut batch = Batch::now(0.0);
    let mut processes: Vec<_> = memory.processes.iter().collect();
    let total = |nodes: &std::collections::BTreeMap<_, NodeBytes>| -> u64 {
        nodes.values().map(NodeBytes::total).sum()
    };
    processes.sort_by_key(|process| Reverse(total(&process.nodes)));
    for process in processes.into_iter().take(PROCESSES_MAX) {
        for (node, bytes) in &process.nodes {
            let comm = Cell::from(&process.comm);
            batch.push(
                Table::Memory,
                [process.pid.into(), comm, node.0.into(), bytes.total().into()],
            );
        }
    }
    batch
}

/// Threads that poll, and their ports.
pub fn workers(workers: &Workers) -> Batch {
    let mut batch = Batch::now(0.0);
    for process in &workers.processes {
        for worker in &process.workers {
            batch.push(
                Table::Workers,
                [
                    Cell::from(&process.name),
                    process.pid.into(),
                    worker.lcore.into(),
                    worker.tid.into(),
                    worker.counts.busy_cycles.into(),
                    worker.counts.total_cycles.into(),
                    worker.counts.polls.into(),
                    worker.counts.empty_polls.into(),
                    worker.counts.packets.into(),
                    worker.counts.run_ns.into(),
                    worker.counts.delay_ns.into(),
                ],
            );
        }
        for port in &process.ports {
            batch.push(
                Table::Ports,
                [
                    Cell::from(&process.name),
                    process.pid.into(),
                    Cell::from(&port.name),
                    port.rx_packets.into(),
                    port.imissed.into(),
                    port.rx_nombuf.into(),
                ],
            );
        }
    }
    batch
}

/// The changes of the journal.
pub fn settings(changes: &[ChangeStatus]) -> Batch {
    let mut batch = Batch::now(0.0);
    for change in changes {
        let target = change.entry.change.target.to_string();
        let state = change.state.map(|state| name_of(&state));
        batch.push(
            Table::Settings,
            [change.entry.id.into(), target.as_str().into(), state.as_ref().into()],
        );
    }
    batch
}

/// What is wrong, from an interval of this length.
pub fn findings(diagnosis: &Diagnosis, interval_s: f64) -> Batch {
    let mut batch = Batch::now(interval_s);
    for finding in &diagnosis.findings {
        batch.push(
            Table::Findings,
            [
                Cell::from(&finding.check),
                name_of(&finding.severity).as_str().into(),
                subject(finding).as_str().into(),
                Cell::from(&finding.title),
                finding.cost.seconds_per_second.into(),
                finding.cost.share_percent.into(),
                Cell::document(finding),
            ],
        );
    }
    // That there was a diagnosis, also if it found nothing.
    batch.push(Table::Cost, ["findings".into(), interval_s.into(), 0.0.into(), 0_u32.into()]);
    batch
}
