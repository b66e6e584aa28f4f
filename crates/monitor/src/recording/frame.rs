//! A host at a moment. Input: rows of the time before it. Output: a [`Frame`].
//!
//! What is read more rarely than the window is long (counters on a busy host, findings) is as it was at its last reading, of
//! which it must not be older than [`OLD_US`].

use super::file::Recorded;
use super::replay::{diagnosis, findings, measurement, outliers};
use super::rows_of::{Reading, Row, Source};
use super::table::Table;
use nearpath_model::frame::{
    ConnectionActivity, CpuActivity, DropActivity, Frame, QueueActivity, VmActivity, WorkerActivity,
};
use nearpath_model::histogram::{by_number, quantile_ns};
use nearpath_model::{CpuId, NodeId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Age from which a reading says nothing about the moment.
const OLD_US: i64 = 60 * 1_000_000;
/// Findings have ended if there was no diagnosis with them for so many of their intervals, and ten seconds.
const DIAGNOSES: f64 = 2.5;
/// Late packets are of so much time.
const LATE_US: i64 = 120 * 1_000_000;
const DROPS_MAX: usize = 64;
/// The span of a virtual machine that is the sum of all others.
const WHOLE: &str = "whole";

/// The host at a moment in microseconds since 1970, by what was seen in a window before it.
pub fn frame(source: &dyn Source, time_us: i64, window: Duration) -> Frame {
    let window_us = i64::try_from(window.as_micros()).unwrap_or(OLD_US);
    let from_us = time_us.saturating_sub(window_us).saturating_add(1);
    let mut reading = Reading::new(source, from_us, time_us);
    let (mut diagnosis, _) = diagnosis(&mut reading);
    let before = |reading: &mut Reading<'_>, table, age_us: i64| {
        reading.rows_between(table, time_us.saturating_sub(age_us), time_us).rows
    };
    // As at the last diagnosis: an hour is the longest time between two.
    let last = last_batch(before(&mut reading, Table::Findings, 3 * 3600 * 1_000_000));
    let is_valid = |row: &Recorded| {
        let valid_us = (row.interval_s * DIAGNOSES + 10.0) * 1e6;
        (time_us.saturating_sub(row.time_us)) as f64 <= valid_us
    };
    diagnosis.findings = findings(&last.into_iter().filter(is_valid).collect::<Vec<_>>());
    if diagnosis.measurement.as_ref().is_none_or(|m| m.observed_time_s() <= 0.0) {
        // The instrument pauses, to keep within its limit: what it saw last, with the time of that.
        let from_us = time_us.saturating_sub(OLD_US);
        diagnosis.measurement = Some(measurement(&mut Reading::new(source, from_us, time_us)).0);
    }
    if let Some(measurement) = &mut diagnosis.measurement {
        // Late packets are rare, and looked at for longer than a window.
        measurement.outliers = outliers(&before(&mut reading, Table::Outliers, LATE_US));
    }
    let observed = observed(&reading.rows(Table::Cost));
    let mut softnet = reading.rows(Table::Softnet);
    let mut irqs = reading.rows(Table::Irqs);
    if softnet.is_empty() && irqs.is_empty() {
        // Both are of one batch.
        softnet = last_batch(before(&mut reading, Table::Softnet, OLD_US));
        irqs = last_batch(before(&mut reading, Table::Irqs, OLD_US));
    }
    let counted_s = covered(softnet.iter().chain(&irqs));
    let workers = before(&mut reading, Table::Workers, OLD_US);
    let (connections, drops) = (reading.rows(Table::Tcp), reading.rows(Table::Drops));
    let seconds = |instrument: &str| observed.get(instrument).copied().unwrap_or(0.0);
    Frame {
        host: reading.hosts.first().cloned().unwrap_or_default(),
        time_us,
        window_s: window.as_secs_f64(),
        cpus: cpus(&softnet, &irqs, counted_s),
        queues: queues(&irqs, counted_s),
        connections: connections_of(&connections, seconds("tcp")),
        workers: workers_of(&workers),
        vms: vms_of(&reading.rows(Table::VmBuckets), seconds("vms")),
        drops: drops_of(&drops, seconds("drops")),
        programs_share: programs_share(&reading.rows(Table::Cost)),
        notes: reading.notes,
        diagnosis,
    }
}

/// The rows of the last reading.
pub(super) fn last_batch(mut rows: Vec<Recorded>) -> Vec<Recorded> {
    let last = rows.last().map_or(0, |row| row.time_us);
    rows.retain(|row| row.time_us == last);
    rows
}

/// Seconds of all intervals that have a row.
pub(super) fn covered<'a>(rows: impl Iterator<Item = &'a Recorded>) -> f64 {
    let intervals: BTreeMap<i64, f64> = rows.map(|row| (row.time_us, row.interval_s)).collect();
    intervals.into_values().sum()
}

fn per_second(count: Option<u64>, seconds: f64) -> f64 {
    if seconds > 0.0 { count.unwrap_or(0) as f64 / seconds } else { 0.0 }
}

/// Seconds that each instrument observed.
fn observed(rows: &[Recorded]) -> BTreeMap<String, f64> {
    let mut seconds = BTreeMap::new();
    for row in rows.iter().map(|row| Row(Table::Cost, row)) {
        *seconds.entry(row.text("instrument").to_owned()).or_default() +=
            row.real("observed_s").unwrap_or(0.0);
    }
    seconds
}

fn programs_share(rows: &[Recorded]) -> Option<f64> {
    let mut shares: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
    for row in rows.iter().map(|row| Row(Table::Cost, row)) {
        let (cpu_s, seconds) = shares.entry(row.text("instrument")).or_default();
        *cpu_s += row.real("cpu_s").unwrap_or(0.0);
        *seconds += row.1.interval_s;
    }
    let of = |(cpu_s, seconds): (f64, f64)| if seconds > 0.0 { cpu_s / seconds } else { 0.0 };
    (!shares.is_empty()).then(|| shares.into_values().map(of).sum())
}

fn cpus(softnet: &[Recorded], irqs: &[Recorded], seconds: f64) -> Vec<CpuActivity> {
    let mut cpus: BTreeMap<CpuId, CpuActivity> = BTreeMap::new();
    for row in softnet.iter().map(|row| Row(Table::Softnet, row)) {
        let Some(cpu) = row.number("cpu").map(CpuId) else { continue };
        let sum = cpus.entry(cpu).or_insert_with(|| CpuActivity::idle(cpu));
        sum.node = row.number("node").map(NodeId);
        sum.processed += per_second(row.count("processed"), seconds);
        sum.dropped += per_second(row.count("dropped"), seconds);
        sum.squeezed += per_second(row.count("squeezed"), seconds);
        sum.received_rps += per_second(row.count("received_rps"), seconds);
    }
    for row in irqs.iter().map(|row| Row(Table::Irqs, row)) {
        let Some(cpu) = row.number("cpu").map(CpuId) else { continue };
        let sum = cpus.entry(cpu).or_insert_with(|| CpuActivity::idle(cpu));
        sum.interrupts += per_second(row.count("interrupts"), seconds);
    }
    cpus.into_values().collect()
}

fn queues(irqs: &[Recorded], seconds: f64) -> Vec<QueueActivity> {
    let mut queues: BTreeMap<(&str, &str, u32), BTreeMap<CpuId, f64>> = BTreeMap::new();
    for row in irqs.iter().map(|row| Row(Table::Irqs, row)) {
        let (Some(irq), Some(cpu)) = (row.number("irq"), row.number("cpu")) else { continue };
        let cpus = queues.entry((row.text("device"), row.text("queue"), irq)).or_default();
        *cpus.entry(CpuId(cpu)).or_default() += per_second(row.count("interrupts"), seconds);
    }
    let queue = |((device, queue, irq), cpus): ((&str, &str, u32), BTreeMap<CpuId, f64>)| {
        let mut cpus: Vec<(CpuId, f64)> = cpus.into_iter().collect();
        cpus.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        QueueActivity { device: device.to_owned(), queue: queue.to_owned(), irq, cpus }
    };
    queues.into_iter().map(queue).collect()
}

fn connections_of(rows: &[Recorded], seconds: f64) -> Vec<ConnectionActivity> {
    let mut found: BTreeMap<(&str, &str), ConnectionActivity> = BTreeMap::new();
    for row in rows.iter().map(|row| Row(Table::Tcp, row)) {
        let key = (row.text("local"), row.text("peer"));
        let sum = found.entry(key).or_insert_with(|| ConnectionActivity {
            local: key.0.to_owned(),
            peer: key.1.to_owned(),
            comm: row.text("comm").to_owned(),
            rtt_ns: None,
            rttvar_ns: None,
            bytes_out: 0.0,
            bytes_in: 0.0,
            retransmitted: 0.0,
        });
        // Of the last reading.
        sum.rtt_ns = row.count("rtt_ns").or(sum.rtt_ns);
        sum.rttvar_ns = row.count("rttvar_ns").or(sum.rttvar_ns);
        sum.bytes_out += per_second(row.count("bytes_out"), seconds);
        sum.bytes_in += per_second(row.count("bytes_in"), seconds);
        sum.retransmitted += per_second(row.count("retransmitted"), seconds);
    }
    found.into_values().collect()
}

fn drops_of(rows: &[Recorded], seconds: f64) -> Vec<DropActivity> {
    let mut found: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for row in rows.iter().map(|row| Row(Table::Drops, row)) {
        let reason = Some(row.text("reason")).filter(|reason| !reason.is_empty());
        let key = (reason.unwrap_or(row.text("function")), row.text("device"));
        let sum = found.entry(key).or_default();
        *sum = sum.saturating_add(row.count("packets").unwrap_or(0));
    }
    let drop = |((reason, device), packets): ((&str, &str), u64)| DropActivity {
        reason: reason.to_owned(),
        device: device.to_owned(),
        packets: per_second(Some(packets), seconds),
    };
    let mut drops: Vec<DropActivity> = found.into_iter().map(drop).collect();
    drops.sort_by_key(|drop| Reverse((drop.packets * 1e3) as u64));
    drops.truncate(DROPS_MAX);
    drops
}

fn vms_of(rows: &[Recorded], seconds: f64) -> Vec<VmActivity> {
    let mut vms: BTreeMap<&str, BTreeMap<&str, BTreeMap<u64, u64>>> = BTreeMap::new();
    for row in rows.iter().map(|row| Row(Table::VmBuckets, row)) {
        let Some(upper_ns) = row.count("upper_ns") else { continue };
        let spans = vms.entry(row.text("vm")).or_default();
        let sum = spans.entry(row.text("span")).or_default().entry(upper_ns).or_default();
        *sum = sum.saturating_add(row.count("packets").unwrap_or(0));
    }
    let vm = |(vm, spans): (&str, BTreeMap<&str, BTreeMap<u64, u64>>)| {
        let quantile = |buckets: &BTreeMap<u64, u64>, q: f64| {
            let buckets: Vec<(u64, u64)> = buckets.iter().map(|(at, n)| (*at, *n)).collect();
            Some(quantile_ns(&by_number(&buckets), q)?.round() as u64)
        };
        let whole = spans.get(WHOLE);
        let packets = whole.map(|of| of.values().fold(0u64, |sum, n| sum.saturating_add(*n)));
        let parts = spans.iter().filter(|(span, _)| **span != WHOLE);
        let p99 = parts.filter_map(|(span, of)| Some((*span, quantile(of, 0.99)?)));
        VmActivity {
            vm: vm.to_owned(),
            packets: per_second(packets, seconds),
            p50_ns: whole.and_then(|of| quantile(of, 0.5)),
            p99_ns: whole.and_then(|of| quantile(of, 0.99)),
            slowest: p99.max_by_key(|(_, ns)| *ns).map(|(span, ns)| (span.to_owned(), ns)),
        }
    };
    vms.into_iter().map(vm).collect()
}

/// Threads that poll, by their last two pictures.
pub(super) fn workers_of(rows: &[Recorded]) -> Vec<WorkerActivity> {
    let times: BTreeSet<i64> = rows.iter().map(|row| row.time_us).collect();
    let mut times = times.into_iter().rev();
    let (Some(now), before) = (times.next(), times.next()) else { return Vec::new() };
    let at = |time: i64| {
        let rows = rows.iter().filter(move |row| row.time_us == time);
        rows.map(|row| Row(Table::Workers, row))
    };
    let key = |row: &Row<'_>| (row.number("pid"), row.number("lcore"), row.number("tid"));
    let seconds = before.map(|before| (now.saturating_sub(before)) as f64 / 1e6);
    let mut workers = Vec::new();
    for row in at(now) {
        let earlier = before.and_then(|before| at(before).find(|b| key(b) == key(&row)));
        // A counter that was reset has no increase.
        let more = |name: &str| -> Option<f64> {
            let more = row.count(name)?.checked_sub(earlier.as_ref()?.count(name)?)?;
            Some(more as f64)
        };
        let share = |part: Option<f64>, all: Option<f64>| {
            part.zip(all.filter(|all| *all > 0.0)).map(|(part, all)| part / all)
        };
        let delay = share(more("delay_ns"), seconds.map(|seconds| seconds * 1e9));
        workers.push(WorkerActivity {
            app: row.text("app").to_owned(),
            pid: row.number("pid").unwrap_or(0),
            lcore: row.number("lcore"),
            busy: share(more("busy_cycles"), more("total_cycles")),
            empty_polls: share(more("empty_polls"), more("polls")),
            packets: share(more("packets"), seconds),
            delayed: delay,
        });
    }
    workers
}
