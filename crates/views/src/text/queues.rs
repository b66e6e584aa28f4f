//! `show queues`: a row for each queue with its NAPI instance, interrupt, and steering. A receive
//! and a transmit queue that share an interrupt are one row; queues that differ in nothing but
//! their number are one row.

use super::irqs::node_list;
use super::line;
use super::table::{NONE, Table, left, or_none, right};
use super::units::ranges;
use super::unknown::{none_of, unknown};
use crate::queues::{QueueRow, queue_rows};
use nearpath_model::{CpuSet, Direction, Host, QueueId};

/// Queues with what serves and steers them.
pub fn queues(host: &Host) -> String {
    let rows = queue_rows(host);
    let mut table = Table::new(&[
        left("NIC"),
        left("QUEUE"),
        left("DIR"),
        right("NAPI").optional(),
        right("IRQ"),
        left("AFFINITY"),
        left("EFFECTIVE"),
        left("IRQ-NODE"),
        right("NIC-NODE"),
        left("RPS"),
        right("RFS"),
        left("XPS"),
        left("XPS-RXQS").optional(),
    ]);
    for run in lines(&rows).chunk_by(|a, b| a.columns == b.columns) {
        if let [first, ..] = run {
            let mut cells = first.columns.clone();
            cells.insert(1, ranges(run.iter().map(|line| line.queue.0)));
            table.row(cells);
        }
    }
    let mut out = table.render();
    if rows.is_empty() {
        line!(out, "{}", none_of(host, "queues", "nics"));
    }
    let unknown = unknown(&host.unknown, &["nic", "nics", "queue", "queues"]);
    if !unknown.is_empty() {
        line!(out);
        out.push_str(&unknown);
    }
    out
}

/// A line of the table: the queue's number and all other cells.
struct Line {
    queue: QueueId,
    columns: Vec<String>,
}

fn lines(rows: &[QueueRow]) -> Vec<Line> {
    let mut lines = Vec::new();
    for of_nic in rows.chunk_by(|a, b| a.nic == b.nic) {
        let (rx, tx): (Vec<&QueueRow>, Vec<&QueueRow>) =
            of_nic.iter().partition(|row| row.direction == Direction::Rx);
        let partner = |row: &QueueRow, of: &[&QueueRow]| {
            let same = |other: &&&QueueRow| {
                other.queue == row.queue && other.irq == row.irq && other.napi_id == row.napi_id
            };
            of.iter().find(same).copied().cloned()
        };
        for row in &rx {
            let tx_row = partner(row, &tx);
            lines.push(line_of(row, Some(row), tx_row.as_ref()));
        }
        for row in tx.iter().filter(|row| partner(row, &rx).is_none()) {
            lines.push(line_of(row, None, Some(row)));
        }
    }
    lines
}

fn line_of(row: &QueueRow, rx: Option<&QueueRow>, tx: Option<&QueueRow>) -> Line {
    let direction = match (rx, tx) {
        (Some(_), Some(_)) => "rx+tx",
        (Some(_), None) => "rx",
        _ => "tx",
    };
    let rxqs = tx.and_then(|tx| tx.xps_rxqs.as_ref()).filter(|rxqs| !rxqs.is_empty());
    let columns = vec![
        row.nic.clone(),
        direction.to_owned(),
        or_none(row.napi_id),
        or_none(row.irq),
        or_none(row.affinity.as_ref()),
        or_none(row.effective_affinity.as_ref()),
        node_list(row.irq_nodes.clone()),
        or_none(row.nic_node),
        cpus_or_off(rx.and_then(|rx| rx.rps_cpus.as_ref())),
        number_or_off(rx.and_then(|rx| rx.rps_flow_cnt)),
        cpus_or_off(tx.and_then(|tx| tx.xps_cpus.as_ref())),
        rxqs.map_or_else(String::new, |rxqs| ranges(rxqs.iter().map(|queue| queue.0))),
    ];
    Line { queue: row.queue, columns }
}

fn cpus_or_off(cpus: Option<&CpuSet>) -> String {
    match cpus {
        None => NONE.to_owned(),
        Some(cpus) if cpus.is_empty() => "off".to_owned(),
        Some(cpus) => cpus.to_string(),
    }
}

fn number_or_off(number: Option<u32>) -> String {
    if number == Some(0) { "off".to_owned() } else { or_none(number) }
}
