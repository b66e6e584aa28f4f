//! The lists: one for each tab that has rows. Names of the host are untrusted, and escaped.

use super::bars::{longest, rate, time};
use super::grid::{Cell, Grid};
use super::view::Tab;
use crate::text::{path_name, printable, share_name};
use nearpath_model::frame::Frame;
use nearpath_model::{Direction, Measurement, Outlier, PathKind, PathLatency, Severity, units};
use std::cmp::Reverse;

/// CPUs of a queue that are named.
const CPUS: usize = 4;

/// The list of a tab; `None` of the overview.
pub(super) fn of(tab: Tab, frame: &Frame) -> Option<Grid> {
    Some(match tab {
        Tab::Overview => return None,
        Tab::Path => path(frame),
        Tab::Late => late_packets(frame),
        Tab::Cpus => cpus(frame),
        Tab::Queues => queues(frame),
        Tab::Connections => connections(frame),
        Tab::Workers => workers(frame),
        Tab::Findings => findings(frame),
        Tab::Vms => vms(frame),
    })
}

fn figure(per_second: f64) -> Cell {
    Cell::number(per_second, rate(per_second))
}

fn latency(ns: Option<u64>) -> Cell {
    Cell::number(ns.map_or(-1.0, |ns| ns as f64), time(ns))
}

fn share(share: Option<f64>) -> Cell {
    let text = share.map_or_else(|| "-".to_owned(), units::percent);
    Cell::number(share.unwrap_or(-1.0), text)
}

/// Packets per second that a count of the measurement is.
pub(super) fn packets_per_second(m: &Measurement, count: u64) -> f64 {
    let seconds = m.observed_time_s();
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}

/// Packets per second of a kind of path: those that are watched, in the whole time.
pub(super) fn paths_per_second(m: &Measurement, path: &PathLatency) -> f64 {
    match &m.watch {
        Some(watch) if path.kind == PathKind::Watch && watch.watched_s > 0.0 => {
            path.count as f64 / watch.watched_s
        }
        _ => packets_per_second(m, path.count),
    }
}

fn path(frame: &Frame) -> Grid {
    let mut rows = Vec::new();
    if let Some(m) = &frame.diagnosis.measurement {
        for path in m.paths.iter().filter(|path| path.count > 0) {
            rows.push(vec![
                figure(paths_per_second(m, path)),
                latency(path.p50_ns),
                latency(path.p99_ns),
                latency(path.p999_ns),
                latency(longest(path.max_ns, &path.buckets)),
                share(path.other_cpu),
                share(path.other_node),
                Cell::text(format!("{}, end to end", path_name(path.kind))),
            ]);
        }
        for span in m.spans.iter().filter(|span| span.count > 0) {
            let way = if span.direction == Direction::Rx { "rx" } else { "tx" };
            rows.push(vec![
                figure(packets_per_second(m, span.count)),
                latency(span.p50_ns),
                latency(span.p99_ns),
                latency(span.p999_ns),
                latency(longest(span.max_ns, &span.buckets)),
                share(span.other_cpu),
                share(span.other_node),
                Cell::text(format!("{way} {} → {}", printable(&span.from), printable(&span.to))),
            ]);
        }
    }
    let columns =
        vec!["PACKETS/S", "P50", "P99", "P99.9", "MAX", "OTHER CPU", "NODE", "PATH OR SPAN"];
    Grid { columns, rows, sorted_by: 2, empty: no_packets(frame) }
}

/// Why there are no latencies.
pub(super) fn no_packets(frame: &Frame) -> &'static str {
    match &frame.diagnosis.measurement {
        Some(m) if m.duration_s > 0.0 && m.observed_time_s() > 0.0 => "no packets observed",
        Some(m) if m.duration_s > 0.0 => {
            "paused: more of a CPU was used than --max-overhead allows"
        }
        _ => "stages not observed, or not yet",
    }
}

/// Slow packets, the slowest first.
pub(super) fn late(frame: &Frame) -> Vec<&Outlier> {
    let measurement = frame.diagnosis.measurement.as_ref();
    let mut late: Vec<&Outlier> = measurement.into_iter().flat_map(|m| &m.outliers).collect();
    late.sort_by_key(|outlier| Reverse(outlier.span_ns));
    late
}

fn late_packets(frame: &Frame) -> Grid {
    let row = |outlier: &&Outlier| {
        let cause = outlier.budget.iter().find(|share| share.share.is_time());
        vec![
            latency(Some(outlier.span_ns)),
            Cell::text(format!("{} → {}", printable(&outlier.from), printable(&outlier.to))),
            Cell::number(f64::from(outlier.cpu.0), outlier.cpu.to_string()),
            Cell::text(cause.map(|share| printable(&share_name(share))).unwrap_or_default()),
            Cell::text(outlier.flow.as_deref().map(printable).unwrap_or_default()),
        ]
    };
    Grid {
        columns: vec!["SPAN", "WHERE", "CPU", "MOSTLY WAITED FOR", "PACKET"],
        rows: late(frame).iter().map(row).collect(),
        sorted_by: 0,
        empty: "no late packets in the last minutes",
    }
}

fn cpus(frame: &Frame) -> Grid {
    let row = |cpu: &nearpath_model::frame::CpuActivity| {
        let node = cpu.node.map_or_else(|| "-".to_owned(), |node| node.to_string());
        vec![
            Cell::number(f64::from(cpu.cpu.0), cpu.cpu.to_string()),
            Cell::number(cpu.node.map_or(-1.0, |node| f64::from(node.0)), node),
            figure(cpu.processed),
            figure(cpu.interrupts),
            figure(cpu.received_rps),
            figure(cpu.squeezed),
            figure(cpu.dropped),
            Cell::text(""),
        ]
    };
    Grid {
        columns: vec!["CPU", "NODE", "PACKETS/S", "IRQS/S", "RPS/S", "SQUEEZED/S", "DROPPED/S", ""],
        rows: frame.cpus.iter().map(row).collect(),
        sorted_by: 2,
        empty: "no counters read yet",
    }
}

fn queues(frame: &Frame) -> Grid {
    let row = |queue: &nearpath_model::frame::QueueActivity| {
        let named = queue.cpus.iter().take(CPUS);
        let mut cpus: Vec<String> =
            named.map(|(cpu, per_second)| format!("{cpu}: {}/s", rate(*per_second))).collect();
        if queue.cpus.len() > CPUS {
            cpus.push(format!("{} others", queue.cpus.len() - CPUS));
        }
        vec![
            Cell::text(printable(&queue.device)),
            Cell::text(printable(&queue.queue)),
            Cell::number(f64::from(queue.irq), queue.irq.to_string()),
            figure(queue.interrupts()),
            Cell::text(cpus.join(", ")),
        ]
    };
    Grid {
        columns: vec!["DEVICE", "QUEUE", "IRQ", "IRQS/S", "CPU: INTERRUPTS"],
        rows: frame.queues.iter().map(row).collect(),
        sorted_by: 3,
        empty: "no queue interrupted",
    }
}

fn connections(frame: &Frame) -> Grid {
    let row = |tcp: &nearpath_model::frame::ConnectionActivity| {
        vec![
            latency(tcp.rtt_ns),
            latency(tcp.rttvar_ns),
            figure(tcp.bytes_out * 8.0),
            figure(tcp.bytes_in * 8.0),
            figure(tcp.retransmitted),
            Cell::text(printable(&tcp.comm)),
            Cell::text(format!("{} > {}", printable(&tcp.local), printable(&tcp.peer))),
        ]
    };
    let mut rows: Vec<_> = frame.connections.iter().collect();
    rows.sort_by(|a, b| (b.bytes_in + b.bytes_out).total_cmp(&(a.bytes_in + a.bytes_out)));
    Grid {
        columns: vec!["RTT", "VAR", "OUT BIT/S", "IN BIT/S", "RETRANS/S", "PROCESS", "CONNECTION"],
        rows: rows.into_iter().map(row).collect(),
        sorted_by: 0,
        empty: "no TCP connection with traffic",
    }
}

fn workers(frame: &Frame) -> Grid {
    let row = |worker: &nearpath_model::frame::WorkerActivity| {
        let lcore = worker.lcore.map_or_else(|| "-".to_owned(), |lcore| lcore.to_string());
        vec![
            share(worker.busy),
            share(worker.empty_polls),
            worker.packets.map_or_else(|| Cell::number(-1.0, "-".to_owned()), figure),
            share(worker.delayed),
            Cell::number(worker.lcore.map_or(-1.0, f64::from), lcore),
            Cell::text(format!("{}/{}", printable(&worker.app), worker.pid)),
        ]
    };
    Grid {
        columns: vec!["BUSY", "EMPTY POLLS", "PACKETS/S", "DELAYED", "LCORE", "PROCESS"],
        rows: frame.workers.iter().map(row).collect(),
        sorted_by: 0,
        empty: "no threads that poll",
    }
}

fn vms(frame: &Frame) -> Grid {
    let row = |vm: &nearpath_model::frame::VmActivity| {
        let slowest = vm.slowest.as_ref();
        let span = slowest.map_or_else(|| "-".to_owned(), |(span, _)| span.replace('_', " "));
        vec![
            figure(vm.packets),
            latency(vm.p50_ns),
            latency(vm.p99_ns),
            latency(slowest.map(|(_, ns)| *ns)),
            Cell::text(printable(&span)),
            Cell::text(printable(&vm.vm)),
        ]
    };
    Grid {
        columns: vec!["PACKETS/S", "P50", "P99", "P99 OF", "SLOWEST SPAN", "VM"],
        rows: frame.vms.iter().map(row).collect(),
        sorted_by: 2,
        empty: "no packets into virtual machines",
    }
}

/// A severity in a word, and for sorting.
pub(super) fn severity(severity: Severity) -> (&'static str, f64) {
    match severity {
        Severity::Critical => ("critical", 2.0),
        Severity::Warning => ("warning", 1.0),
        Severity::Info => ("info", 0.0),
    }
}

fn findings(frame: &Frame) -> Grid {
    let row = |finding: &nearpath_model::Finding| {
        let (name, rank) = severity(finding.severity);
        let cost = finding.cost.seconds_per_second;
        vec![
            Cell::number(rank, name.to_owned()),
            Cell::number(cost.unwrap_or(-1.0), cost.map_or_else(|| "-".to_owned(), units::seconds)),
            Cell::text(printable(&finding.title)),
        ]
    };
    Grid {
        columns: vec!["SEVERITY", "WAIT/S", "FINDING"],
        rows: frame.diagnosis.findings.iter().map(row).collect(),
        sorted_by: 1,
        empty: "nothing found that makes packets late",
    }
}
