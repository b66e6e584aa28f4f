//! Facts of a recorded time. Input: rows of tables that hold facts rather than measurements. Output: [`RecordedFacts`].

use super::file::Recorded;
use super::frame::{covered, last_batch, workers_of};
use super::rows_of::{Reading, Row, Source};
use super::table::Table;
use nearpath_model::histogram::{by_number, quantile_ns};
use nearpath_model::recorded::{
    Counted, Pictured, RECORDED_FACTS_SCHEMA, RecordedFacts, RecordedIrq, RecordedMemory,
    RecordedNode, RecordedSetting, RecordedSoftnet, RecordedVm, RecordedWorker,
};
use nearpath_model::{CpuId, NodeId};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Facts, and what could not be read of them.
#[derive(Debug)]
pub struct ReadFacts {
    /// Names of the hosts; the facts are of the first.
    pub hosts: Vec<String>,
    /// The facts.
    pub facts: RecordedFacts,
    /// What could not be read.
    pub notes: Vec<String>,
}

/// Facts between two times in microseconds since 1970, both included. Counts are of all of that time; a picture is the
/// last that was taken until `at_us`, or the first after it.
pub fn facts(source: &dyn Source, from_us: i64, at_us: i64, to_us: i64) -> ReadFacts {
    let mut reading = Reading::new(source, from_us, to_us);
    let [softnet, irqs, numa] =
        [Table::Softnet, Table::Irqs, Table::Numa].map(|table| reading.rows(table));
    // They are of one batch, which has rows of each only if something changed: those of a quiet host are zero.
    let counters = || softnet.iter().chain(&irqs).chain(&numa);
    let counted = || counters().next().map(|_| covered(counters()));
    let mut facts = RecordedFacts {
        schema: RECORDED_FACTS_SCHEMA,
        softnet: counted().map(|seconds| Counted { seconds, rows: softnet_of(&softnet) }),
        irqs: counted().map(|seconds| Counted { seconds, rows: irqs_of(&irqs) }),
        numa: counted().map(|seconds| Counted { seconds, rows: numa_of(&numa) }),
        memory: picture(reading.rows(Table::Memory), at_us, |rows| memory_of(&last_batch(rows))),
        vms: vms(&reading.rows(Table::VmBuckets)),
        workers: picture(reading.rows(Table::Workers), at_us, |rows| workers(&rows)),
        settings: picture(reading.rows(Table::Settings), at_us, |rows| {
            settings_of(&last_batch(rows))
        }),
        ..RecordedFacts::default()
    };
    (facts.from_us, facts.to_us) = reading.times.unwrap_or((from_us, to_us));
    facts.host = reading.hosts.first().cloned().unwrap_or_default();
    ReadFacts { hosts: reading.hosts, facts, notes: reading.notes }
}

/// The picture of a moment, made of the rows until it.
fn picture<T>(
    rows: Vec<Recorded>,
    at_us: i64,
    make: impl FnOnce(Vec<Recorded>) -> Vec<T>,
) -> Option<Pictured<T>> {
    let first = rows.first()?.time_us;
    let until = |at: i64| rows.iter().map(|row| row.time_us).rfind(|time| *time <= at);
    let time_us = until(at_us).unwrap_or(first);
    let rows = rows.into_iter().filter(|row| row.time_us <= time_us).collect();
    Some(Pictured { time_us, rows: make(rows) })
}

fn softnet_of(rows: &[Recorded]) -> Vec<RecordedSoftnet> {
    let mut cpus: BTreeMap<u32, RecordedSoftnet> = BTreeMap::new();
    for row in rows.iter().map(|row| Row(Table::Softnet, row)) {
        let Some(cpu) = row.number("cpu") else { continue };
        let sum = cpus.entry(cpu).or_insert_with(|| RecordedSoftnet {
            cpu: CpuId(cpu),
            node: row.number("node").map(NodeId),
            processed: 0,
            dropped: 0,
            squeezed: 0,
            received_rps: 0,
            flow_limited: 0,
        });
        for (sum, name) in [
            (&mut sum.processed, "processed"),
            (&mut sum.dropped, "dropped"),
            (&mut sum.squeezed, "squeezed"),
            (&mut sum.received_rps, "received_rps"),
            (&mut sum.flow_limited, "flow_limited"),
        ] {
            *sum = sum.saturating_add(row.count(name).unwrap_or(0));
        }
    }
    cpus.into_values().collect()
}

/// Those with most interrupts first.
fn irqs_of(rows: &[Recorded]) -> Vec<RecordedIrq> {
    let mut queues: BTreeMap<(&str, &str, u32), BTreeMap<CpuId, u64>> = BTreeMap::new();
    for row in rows.iter().map(|row| Row(Table::Irqs, row)) {
        let (Some(irq), Some(cpu)) = (row.number("irq"), row.number("cpu")) else { continue };
        let cpus = queues.entry((row.text("device"), row.text("queue"), irq)).or_default();
        let sum = cpus.entry(CpuId(cpu)).or_default();
        *sum = sum.saturating_add(row.count("interrupts").unwrap_or(0));
    }
    let of = |((device, queue, irq), cpus): ((&str, &str, u32), BTreeMap<CpuId, u64>)| {
        RecordedIrq { device: device.to_owned(), queue: queue.to_owned(), irq, cpus }
    };
    let mut irqs: Vec<RecordedIrq> = queues.into_iter().map(of).collect();
    irqs.sort_by_key(|irq| Reverse(irq.total()));
    irqs
}

fn numa_of(rows: &[Recorded]) -> Vec<RecordedNode> {
    let mut nodes: BTreeMap<NodeId, BTreeMap<String, u64>> = BTreeMap::new();
    for row in rows.iter().map(|row| Row(Table::Numa, row)) {
        let Some(node) = row.number("node") else { continue };
        let pages = nodes.entry(NodeId(node)).or_default();
        let sum = pages.entry(row.text("event").to_owned()).or_default();
        *sum = sum.saturating_add(row.count("pages").unwrap_or(0));
    }
    nodes.into_iter().map(|(node, pages)| RecordedNode { node, pages }).collect()
}

/// Those with most memory first.
fn memory_of(rows: &[Recorded]) -> Vec<RecordedMemory> {
    let mut processes: BTreeMap<u32, RecordedMemory> = BTreeMap::new();
    for row in rows.iter().map(|row| Row(Table::Memory, row)) {
        let (Some(pid), Some(node)) = (row.number("pid"), row.number("node")) else { continue };
        let process = processes.entry(pid).or_insert_with(|| RecordedMemory {
            pid,
            comm: row.text("comm").to_owned(),
            nodes: BTreeMap::new(),
        });
        process.nodes.insert(NodeId(node), row.count("bytes").unwrap_or(0));
    }
    let mut processes: Vec<RecordedMemory> = processes.into_values().collect();
    processes.sort_by_key(|process| Reverse(process.total()));
    processes
}

fn vms(rows: &[Recorded]) -> Option<Counted<RecordedVm>> {
    let of = |(vm, span): (&str, &str), buckets: &BTreeMap<u64, u64>| {
        let filled = by_number(&buckets.iter().map(|(at, n)| (*at, *n)).collect::<Vec<_>>());
        let quantile = |q: f64| Some(quantile_ns(&filled, q)?.round() as u64);
        RecordedVm {
            vm: vm.to_owned(),
            span: span.to_owned(),
            packets: buckets.values().fold(0, |sum, n| sum.saturating_add(*n)),
            p50_ns: quantile(0.5),
            p99_ns: quantile(0.99),
        }
    };
    let mut spans: BTreeMap<(&str, &str), BTreeMap<u64, u64>> = BTreeMap::new();
    for row in rows.iter().map(|row| Row(Table::VmBuckets, row)) {
        let Some(upper_ns) = row.count("upper_ns") else { continue };
        let buckets = spans.entry((row.text("vm"), row.text("span"))).or_default();
        let sum = buckets.entry(upper_ns).or_default();
        *sum = sum.saturating_add(row.count("packets").unwrap_or(0));
    }
    let rows_of = || spans.iter().map(|(key, buckets)| of(*key, buckets)).collect();
    (!rows.is_empty()).then(|| Counted { seconds: covered(rows.iter()), rows: rows_of() })
}

fn workers(rows: &[Recorded]) -> Vec<RecordedWorker> {
    let of = |worker: nearpath_model::frame::WorkerActivity| RecordedWorker {
        app: worker.app,
        pid: worker.pid,
        lcore: worker.lcore,
        busy: worker.busy,
        packets: worker.packets,
        delayed: worker.delayed,
    };
    workers_of(rows).into_iter().map(of).collect()
}

fn settings_of(rows: &[Recorded]) -> Vec<RecordedSetting> {
    let of = |row: Row<'_>| {
        Some(RecordedSetting {
            id: row.count("id")?,
            target: row.text("target").to_owned(),
            state: Some(row.text("state")).filter(|state| !state.is_empty()).map(str::to_owned),
        })
    };
    rows.iter().filter_map(|row| of(Row(Table::Settings, row))).collect()
}

#[cfg(test)]
mod tests {
    use super::super::batch::{Batch, Cell};
    use super::super::frame::frame;
    use super::super::history::History;
    use super::super::replay::replay;
    use super::super::table::{Column, Kind, TABLES};
    use super::*;
    use std::time::Duration;

    fn at(time_us: i64) -> Batch {
        Batch { time_us, interval_s: 10.0, ..Batch::default() }
    }

    fn softnet(time_us: i64, cpu: u32, packets: u64) -> Batch {
        let mut batch = at(time_us);
        let [none, zero] = [Cell::Null, Cell::from(0_u32)];
        let (squeezed, rps) = (zero.clone(), zero.clone());
        let row = [cpu.into(), none, packets.into(), zero.clone(), squeezed, rps, zero];
        batch.push(Table::Softnet, row);
        batch
    }

    fn setting(time_us: i64, state: &str) -> Batch {
        let mut batch = at(time_us);
        batch.push(Table::Settings, [1_u32.into(), "rps of eth0".into(), state.into()]);
        batch
    }

    #[test]
    fn counts_are_summed_up_and_pictures_are_of_the_moment() {
        let mut history = History::new("h");
        for (time, packets, state) in [(10, 100, "applied"), (20, 7, "drifted"), (30, 1, "undone")]
        {
            history.add(softnet(time, 3, packets));
            history.add(setting(time, state));
        }
        let read = facts(&history, 10, 25, 29);
        let softnet = read.facts.softnet.unwrap();
        assert_eq!((softnet.seconds, softnet.rows[0].processed), (20.0, 107));
        let settings = read.facts.settings.unwrap();
        assert_eq!((settings.time_us, settings.rows.len()), (20, 1));
        assert_eq!(settings.rows[0].state.as_deref(), Some("drifted"));
        assert_eq!((read.facts.from_us, read.facts.to_us), (10, 20));
        // Without one before the moment, the first after it.
        let settings = facts(&history, 15, 16, 40).facts.settings.unwrap();
        assert_eq!((settings.time_us, settings.rows[0].state.as_deref()), (20, Some("drifted")));
        let nothing = facts(&history, 31, 35, 40);
        assert!(nothing.hosts.is_empty() && nothing.facts.settings.is_none());
    }

    /// A host without traffic has no packets; it is not a host of which nothing is known.
    #[test]
    fn counters_of_a_quiet_host_are_zero() {
        let mut history = History::new("h");
        for time in [10, 20] {
            let mut batch = at(time);
            batch.push(Table::Numa, [1_u32.into(), Cell::from("numa_hit"), 5_u32.into()]);
            history.add(batch);
        }
        let read = facts(&history, 0, 30, 30);
        let (softnet, numa) = (read.facts.softnet.unwrap(), read.facts.numa.unwrap());
        assert_eq!((softnet.seconds, softnet.rows.len(), read.hosts.len()), (20.0, 0, 1));
        assert_eq!((numa.rows.len(), numa.rows[0].pages["numa_hit"]), (1, 10));
    }

    /// A recording may come from anywhere: the largest values, and unknown ones, in every table.
    #[test]
    fn rows_of_any_content_are_read() {
        let mut history = History::new("h");
        for cell in [Cell::Count(i64::MAX), Cell::Count(-1), Cell::Null] {
            for time_us in [i64::MIN, 0, 20, i64::MAX] {
                let mut batch = Batch { time_us, interval_s: f64::MAX, ..Batch::default() };
                for spec in TABLES {
                    let of = |column: &Column| match column.kind {
                        Kind::Count => cell.clone(),
                        Kind::Real => Cell::Real(f64::MAX),
                        Kind::Text => Cell::Text("receive\u{1b}[2J".to_owned()),
                    };
                    let row: Vec<Cell> = spec.columns.iter().map(of).collect();
                    batch.rows.insert(spec.name.to_owned(), vec![row; 3]);
                }
                history.add(batch);
            }
        }
        for (from, to) in [(i64::MIN, i64::MAX), (0, 20), (20, 0), (i64::MAX, i64::MAX)] {
            facts(&history, from, to, to);
            replay(&history, from, to);
            frame(&history, to, Duration::MAX);
        }
    }
}
