//! The matrix of priorities, queues and CPUs, and for each priority whether it has a CPU to itself.

use super::ROWS;
use super::matrix::{aligned, taken_by};
use crate::text::cpus::count;
use crate::text::units::printable;
use crate::text::{heading, line};
use nearpath_model::irqs::{Priorities, PriorityField, PriorityPackets, Separation};
use std::cmp::Reverse;

/// Columns of CPUs where there is no terminal that bounds them.
const CPUS: usize = 32;

/// The whole section.
pub(super) fn section(m: &Priorities, width: Option<usize>) -> String {
    let mut out = String::new();
    let by = match m.by {
        PriorityField::Pcp => "VLAN priority",
        PriorityField::Dscp => "DSCP",
    };
    heading(&mut out, &format!("received packets by {by}, queue and CPU"));
    if m.rows.is_empty() {
        line!(out, "none");
        return out;
    }
    for separation in m.separations() {
        line!(out, "{}", printable(&verdict(m.by, &separation)));
    }
    let mut rows: Vec<&PriorityPackets> = m.rows.iter().collect();
    rows.sort_by_key(|row| (&row.nic, row.priority.is_none(), row.priority, Reverse(row.packets)));
    let all = rows.len();
    rows.truncate(ROWS);
    out.push_str(&matrix(m.by, &rows, width));
    if all > ROWS {
        line!(out, "not shown: {}", count(all - ROWS, "row"));
    }
    out
}

/// `eth0 PCP 3: 10000 packets, all on CPU 3, no others there`.
fn verdict(by: PriorityField, separation: &Separation<'_>) -> String {
    let Separation { nic, priority, packets, cpu, elsewhere, others_there } = separation;
    let place = match elsewhere {
        0 => format!("all on CPU {cpu}"),
        some => format!("{} on CPU {cpu}, {some} elsewhere", packets - some),
    };
    let others = match others_there {
        0 => "no others there".to_owned(),
        some => format!("{} there", count_others(*some)),
    };
    let packets = count(usize::try_from(*packets).unwrap_or(usize::MAX), "packet");
    format!("{nic} {}: {packets}, {place}, {others}", name(by, Some(*priority)))
}

fn count_others(n: u64) -> String {
    if n == 1 { "1 other".to_owned() } else { format!("{n} others") }
}

fn name(by: PriorityField, priority: Option<u8>) -> String {
    match (by, priority) {
        (PriorityField::Pcp, Some(pcp)) => format!("PCP {pcp}"),
        (PriorityField::Pcp, None) => "untagged".to_owned(),
        (PriorityField::Dscp, Some(dscp)) => format!("DSCP {dscp}"),
        (PriorityField::Dscp, None) => "not IP".to_owned(),
    }
}

fn matrix(by: PriorityField, rows: &[&PriorityPackets], width: Option<usize>) -> String {
    let of_cpu = |row: &PriorityPackets, cpu: usize| row.per_cpu.get(cpu).copied().unwrap_or(0);
    let highest = rows.iter().map(|row| row.per_cpu.len()).max().unwrap_or(0);
    let cpus: Vec<usize> =
        (0..highest).filter(|&cpu| rows.iter().any(|row| of_cpu(row, cpu) > 0)).collect();
    let table = |last: Vec<String>, cells: &dyn Fn(&PriorityPackets) -> Vec<String>| {
        let first = ["NIC", "PRIORITY", "QUEUE", "PACKETS"].map(str::to_owned).to_vec();
        let mut table = vec![[first, last].concat()];
        table.extend(rows.iter().map(|row| {
            let queue = row.queue.map_or_else(|| "-".to_owned(), |queue| queue.to_string());
            let nic = printable(&row.nic);
            let first = vec![nic, name(by, row.priority), queue, row.packets.to_string()];
            [first, cells(row)].concat()
        }));
        table
    };
    let with_names = || {
        let cells = |row: &PriorityPackets| vec![taken_by(&row.per_cpu)];
        aligned(&table(vec!["RECEIVED-BY".to_owned()], &cells), Some(4))
    };
    if cpus.len() > CPUS {
        return with_names();
    }
    let columns = cpus.iter().map(|cpu| format!("cpu#{cpu}")).collect();
    let cells =
        |row: &PriorityPackets| cpus.iter().map(|cpu| of_cpu(row, *cpu).to_string()).collect();
    let wide = aligned(&table(columns, &cells), None);
    match width {
        Some(width) if wide.lines().any(|line| line.chars().count() > width) => with_names(),
        _ => wide,
    }
}
