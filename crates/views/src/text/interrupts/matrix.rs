//! The matrix of queues and CPUs: a column for each CPU that took an interrupt, as long as there is
//! room for them; else each queue with the CPUs that took most.

use super::{ROWS, name};
use crate::text::units::{digits, printable};
use nearpath_model::irqs::{IrqMeasurement, QueueInterrupts};
use std::cmp::Reverse;

/// Columns of CPUs where there is no terminal that bounds them.
const CPUS: usize = 32;
/// CPUs that are named for a queue where there are too many for columns.
const NAMED: usize = 4;

/// The busy queues, the busiest first.
pub(super) fn matrix(
    m: &IrqMeasurement,
    busy: &[&QueueInterrupts],
    width: Option<usize>,
) -> String {
    let taken = |cpu: &usize| busy.iter().any(|queue| of_cpu(queue, *cpu) > 0);
    let highest = busy.iter().map(|queue| queue.per_cpu.len()).max().unwrap_or(0);
    let cpus: Vec<usize> = (0..highest).filter(taken).collect();
    let shown = || busy.iter().take(ROWS);
    let with_columns = || {
        let mut rows = vec![start(["NIC", "QUEUE", "IRQ", "PER-S"])];
        rows[0].extend(cpus.iter().map(|cpu| format!("cpu#{cpu}")));
        rows.extend(shown().map(|queue| {
            let counts = cpus.iter().map(|cpu| of_cpu(queue, *cpu).to_string());
            cells(m, queue).into_iter().chain(counts).collect()
        }));
        aligned(&rows, None)
    };
    let with_names = || {
        let mut rows = vec![start(["NIC", "QUEUE", "IRQ", "PER-S"])];
        rows[0].push("TAKEN-BY".to_owned());
        rows.extend(shown().map(|queue| {
            cells(m, queue).into_iter().chain([taken_by(&queue.per_cpu)]).collect::<Vec<_>>()
        }));
        aligned(&rows, Some(4))
    };
    if cpus.len() > CPUS {
        return with_names();
    }
    let wide = with_columns();
    match width {
        Some(width) if wide.lines().any(|line| line.chars().count() > width) => with_names(),
        _ => wide,
    }
}

fn of_cpu(queue: &QueueInterrupts, cpu: usize) -> u64 {
    queue.per_cpu.get(cpu).copied().unwrap_or(0)
}

fn start(headings: [&str; 4]) -> Vec<String> {
    headings.map(str::to_owned).to_vec()
}

fn cells(m: &IrqMeasurement, queue: &QueueInterrupts) -> Vec<String> {
    let irq = queue.irq.map_or_else(String::new, |irq| irq.to_string());
    vec![printable(&queue.nic), printable(&name(queue)), irq, digits(m.per_s(queue.interrupts))]
}

/// `cpu 0: 642031, cpu 4: 12, 3 more`, the CPU with most first.
pub(super) fn taken_by(per_cpu: &[u64]) -> String {
    let counts = per_cpu.iter().enumerate().filter(|(_, count)| **count > 0);
    let mut counts: Vec<(usize, u64)> = counts.map(|(cpu, count)| (cpu, *count)).collect();
    counts.sort_by_key(|(cpu, count)| (Reverse(*count), *cpu));
    let named = counts.iter().take(NAMED).map(|(cpu, count)| format!("cpu {cpu}: {count}"));
    let mut parts: Vec<String> = named.collect();
    if counts.len() > NAMED {
        parts.push(format!("{} more", counts.len() - NAMED));
    }
    parts.join(", ")
}

/// Rows under their first one: the first two columns are words, and so is `words`; all others are
/// numbers.
pub(super) fn aligned(rows: &[Vec<String>], words: Option<usize>) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width_of = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width_of).collect();
    let mut out = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            if column < 2 || Some(column) == words {
                format!("{cell:<width$}")
            } else {
                format!("{cell:>width$}")
            }
        });
        out.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        out.push('\n');
    }
    out
}
