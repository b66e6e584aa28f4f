//! `bench latency`: the counts, the distribution of the latencies and of their parts.
//!
//! Input: a report. Output: lines. A narrow terminal hides the least important columns.

use super::histogram::bars;
use super::table::{Table, left, right};
use super::txtime::{self, findings, scheduled};
use super::units::{percentage, printable, seconds};
use super::{latency, line};
use nearpath_trial::background::{BackgroundReport, Protocol};
use nearpath_trial::latency::{Arrivals, LatencyReport, Loop, Progress, Split, Summary, Transport};

/// The percentiles that have a column, each with its turn to give way.
const PERCENTILES: [(&str, &str, Option<u8>); 6] = [
    ("50", "P50", None),
    ("90", "P90", Some(3)),
    ("99", "P99", None),
    ("99.9", "P99.9", Some(5)),
    ("99.99", "P99.99", Some(6)),
    ("99.999", "P99.999", Some(7)),
];

/// The result, and where the time was spent.
pub fn latencies(report: &LatencyReport, with_histogram: bool, width: Option<usize>) -> String {
    let mut out = String::new();
    let answer = match &report.scheduled {
        Some(its) => txtime::answer(its, report.lost),
        None => answer(report),
    };
    line!(out, "{answer}");
    line!(out, "{}", title(report));
    line!(out, "{}", counts(report));
    line!(out);
    if let Some(its) = &report.scheduled {
        out.push_str(&scheduled(its));
        out.push_str(&findings(&report.findings));
        out.push_str(&rest(report));
        return out;
    }
    let (table, left_out) = table(report).render_within(width.unwrap_or(usize::MAX));
    out.push_str(&table);
    if !left_out.is_empty() {
        line!(out, "hidden columns: {} (use a wider terminal or --json)", left_out.join(", "));
    }
    if let Some(Split { not_split: 1.., .. }) = &report.split {
        let count = report.split.as_ref().map_or(0, |split| split.not_split);
        line!(out, "{count} of the answers could not be split");
    }
    out.push_str(&rest(report));
    if with_histogram {
        line!(out);
        line!(out, "round trip:");
        out.push_str(&bars(report.received, report.histogram.iter().copied()));
    }
    out
}

/// `p50 12.9µs, p99 28.5µs, max 767ms; 0 of 24933 probes lost`.
fn answer(report: &LatencyReport) -> String {
    let Some(max) = report.max_ns else {
        return format!("none of {} probes answered", report.sent);
    };
    let percentiles = [("50", "p50"), ("99", "p99")].into_iter().filter_map(|(name, shown)| {
        report.percentiles.get(name).map(|&ns| format!("{shown} {}, ", latency(ns)))
    });
    let times: String = percentiles.collect();
    format!("{times}max {}; {} of {} probes lost", latency(max), report.lost, report.sent)
}

/// The background load, and what is unknown.
fn rest(report: &LatencyReport) -> String {
    let mut out = String::new();
    for load in &report.load {
        line!(out, "{}", background(load));
    }
    for unknown in &report.unknown {
        line!(out, "unknown: {}: {}", printable(&unknown.fact), printable(&unknown.reason));
    }
    out
}

/// The background load.
pub(super) fn background(load: &BackgroundReport) -> String {
    let protocol = match load.protocol {
        Protocol::Tcp => "TCP",
        Protocol::Udp => "UDP",
    };
    let way = if load.reverse { "from" } else { "to" };
    let streams = if load.streams == 1 { "stream" } else { "streams" };
    let (count, target, port) = (load.streams, load.target, load.port);
    let mut out = format!("load: {count} {protocol} {streams} {way} {target} port {port}: ");
    if let Some(carried) = &load.carried {
        out.push_str(&format!(
            "{} sent, {} received, over {}",
            bits_per_s(carried.sent_bits_per_s),
            bits_per_s(carried.received_bits_per_s),
            seconds(carried.seconds)
        ));
        if let Some(lost) = carried.lost_percent {
            out.push_str(&format!(", {} lost", percentage(lost)));
        }
        if let Some(retransmits) = carried.retransmits {
            out.push_str(&format!(", {retransmits} retransmitted"));
        }
    }
    if let Some(failure) = &load.failure {
        let before = if load.carried.is_some() { "; " } else { "" };
        out.push_str(&format!("{before}failed: {}", printable(failure)));
    }
    out
}

pub(super) fn bits_per_s(bits: f64) -> String {
    match bits {
        1e9.. => format!("{:.2} Gbit/s", bits / 1e9),
        1e6.. => format!("{:.1} Mbit/s", bits / 1e6),
        _ => format!("{:.1} kbit/s", bits / 1e3),
    }
}

/// One progress line, covering the time since the previous one.
pub fn latency_progress(progress: &Progress) -> String {
    let Progress { passed, sent, received, latency: seen, .. } = progress;
    let of = |name: &str| seen.percentiles.get(name).map_or("-".to_owned(), |&ns| latency(ns));
    format!(
        "{}: {sent} sent, {received} answered; since the last line {} answers, p50 {}, p99 {}, \
         longest {}",
        seconds(passed.as_secs_f64()),
        seen.count,
        of("50"),
        of("99"),
        seen.max_ns.map_or("-".to_owned(), latency)
    )
}

fn title(report: &LatencyReport) -> String {
    let transport = match report.transport {
        Transport::Udp => "UDP",
        Transport::Tcp => "TCP",
    };
    let rate = report.asked_rate_per_s.map(|rate| format!("{rate} probes/s"));
    let mode = match (report.mode, rate) {
        (Loop::Open(arrivals), rate) => {
            let arrivals = if arrivals == Arrivals::Poisson { ", Poisson" } else { "" };
            format!(
                "open loop of {}{arrivals}, from the scheduled send time",
                rate.unwrap_or_default()
            )
        }
        (Loop::Closed, Some(rate)) => {
            format!("ping-pong of at most {rate}, from the send call")
        }
        (Loop::Closed, None) => "ping-pong, from the send call".to_owned(),
    };
    let flows = match report.connections {
        1 => String::new(),
        several => format!(" over {several} connections"),
    };
    let (target, bytes) = (printable(&report.target), report.size_bytes);
    format!("round trips to {target} by {transport}, {bytes} bytes{flows}: {mode}")
}

fn counts(report: &LatencyReport) -> String {
    let mut out = format!(
        "probes: {} sent in {} ({:.0}/s), {} received, {} lost, {} late, {} reordered, {} duplicated",
        report.sent,
        seconds(report.duration_s),
        report.rate_per_s,
        report.received,
        report.lost,
        report.late,
        report.reordered,
        report.duplicated,
    );
    for (count, what) in [(report.ignored, "ignored"), (report.not_sent, "due and not sent")] {
        if count > 0 {
            out.push_str(&format!(", {count} {what}"));
        }
    }
    out
}

fn table(report: &LatencyReport) -> Table {
    let mut columns = vec![left(""), right("MIN"), right("MEAN").gives_way(2)];
    columns.push(right("STDDEV").gives_way(1));
    columns.extend(PERCENTILES.iter().map(|(_, heading, turn)| {
        let column = right(heading).optional();
        turn.map_or(column, |turn| column.gives_way(turn))
    }));
    columns.push(right("MAX"));
    let mut table = Table::new(&columns);
    let whole = Summary {
        count: report.received,
        min_ns: report.min_ns,
        mean_ns: report.mean_ns,
        stddev_ns: report.stddev_ns,
        percentiles: report.percentiles.clone(),
        max_ns: report.max_ns,
    };
    table.row(row("round trip", &whole));
    if let Some(split) = &report.split {
        for (name, part) in [
            ("  sender late", &split.sender_late),
            ("  send stack", &split.send_stack),
            ("  wire", &split.wire),
            ("  far receive", &split.far_receive),
            ("  far turn", &split.far_turn),
            ("  receive", &split.receive),
        ] {
            table.row(row(name, part));
        }
    }
    table
}

fn row(name: &str, summary: &Summary) -> Vec<String> {
    let whole = |ns: Option<u64>| ns.map(latency).unwrap_or_default();
    let rounded = |ns: Option<f64>| whole(ns.map(|ns| ns.round() as u64));
    let mut cells = vec![name.to_owned(), whole(summary.min_ns)];
    cells.extend([rounded(summary.mean_ns), rounded(summary.stddev_ns)]);
    let percentile = |name: &str| whole(summary.percentiles.get(name).copied());
    cells.extend(PERCENTILES.iter().map(|(name, ..)| percentile(name)));
    cells.push(whole(summary.max_ns));
    cells
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn summary(ns: u64) -> serde_json::Value {
        json!({"count": 1000, "min_ns": ns, "mean_ns": ns, "stddev_ns": 10.0, "max_ns": ns,
            "percentiles": {"50": ns, "90": ns, "99": ns, "99.9": ns}})
    }

    fn report() -> LatencyReport {
        let split = json!({"sender_late": summary(1_000), "send_stack": summary(2_000),
            "wire": summary(3_000), "far_receive": summary(4_000), "far_turn": summary(500),
            "receive": summary(5_000), "not_split": 2});
        serde_json::from_value(json!({"schema": 1, "target": "10.0.0.2:6327", "transport": "udp",
            "mode": {"open": "poisson"}, "size_bytes": 64, "connections": 2, "asked_rate_per_s": 100,
            "duration_s": 10.0, "sent": 1001, "received": 1000, "lost": 1, "late": 0, "reordered": 3,
            "duplicated": 0, "ignored": 0, "not_sent": 4, "rate_per_s": 100.1, "min_ns": 15_000,
            "mean_ns": 15_500.0, "stddev_ns": 100.0, "max_ns": 20_000_000, "histogram": [[15_999, 999],
            [20_000_000, 1]], "percentiles": {"50": 15_400, "99": 16_000}, "split": split,
            "unknown": []}))
        .unwrap()
    }

    #[test]
    fn parts_are_listed_under_the_total() {
        let text = latencies(&report(), true, None);
        let lines: Vec<&str> = text.lines().collect();
        let expected = "\
p50 15.4µs, p99 16.0µs, max 20.0ms; 1 of 1001 probes lost
round trips to 10.0.0.2:6327 by UDP, 64 bytes over 2 connections: open loop of 100 probes/s, Poisson, from the scheduled send time
probes: 1001 sent in 10.0s (100/s), 1000 received, 1 lost, 0 late, 3 reordered, 0 duplicated, 4 due and not sent
";
        assert_eq!(lines[..3].join("\n") + "\n", expected);
        assert!(lines[4].trim_start().starts_with("MIN"), "{text}");
        assert!(!lines[4].contains("P99.99"), "{text}");
        let words: Vec<&str> = lines[5].split_whitespace().collect();
        assert_eq!(words[..4], ["round", "trip", "15.0µs", "15.5µs"]);
        assert!(lines[5].ends_with("20.0ms") && lines[11].trim_start().starts_with("receive"));
        assert_eq!(lines[12], "2 of the answers could not be split");
        assert!(text.contains("    8-15us       :    999 |"), "{text}");
    }

    #[test]
    fn a_narrow_terminal_keeps_median_p99_and_maximum() {
        let text = latencies(&report(), false, Some(60));
        assert!(text.contains("hidden columns: STDDEV"), "{text}");
        let heading = text.lines().nth(4).unwrap();
        assert!(["P50", "P99", "MAX"].iter().all(|column| heading.contains(column)), "{text}");
    }

    #[test]
    fn a_missing_split_has_a_reason() {
        let mut none = report();
        none.split = None;
        let (subject, fact) = ("path".to_owned(), "split".to_owned());
        none.unknown.push(nearpath_model::Unknown { subject, fact, reason: "no stamps".into() });
        let text = latencies(&none, false, None);
        assert!(text.ends_with("unknown: split: no stamps\n"), "{text}");
        assert!(!text.contains("wire"));
    }

    #[test]
    fn load_and_its_failure_are_reported() {
        let mut loaded = report();
        loaded.load = serde_json::from_value(json!([
            {"protocol": "udp", "target": "10.0.0.2", "port": 5202, "streams": 3, "reverse": false,
             "asked_bits_per_s": 500_000_000u64, "failure": null, "carried": {"seconds": 4.0,
             "sent_bits_per_s": 1.5e9, "received_bits_per_s": 1.2e9, "retransmits": null,
             "lost_percent": 20.0}},
            {"protocol": "tcp", "target": "10.0.0.2", "port": 5201, "streams": 1, "reverse": true,
             "asked_bits_per_s": null, "failure": "the server is busy", "carried": null}]))
        .unwrap();
        let text = latencies(&loaded, false, None);
        let loads: Vec<&str> = text.lines().filter(|line| line.starts_with("load:")).collect();
        assert_eq!(
            loads,
            [
                "load: 3 UDP streams to 10.0.0.2 port 5202: 1.50 Gbit/s sent, 1.20 Gbit/s received, over 4.00s, 20.0% lost",
                "load: 1 TCP stream from 10.0.0.2 port 5201: failed: the server is busy"
            ]
        );
    }

    #[test]
    fn progress_is_one_line() {
        let latency = serde_json::from_value(summary(20_000)).unwrap();
        let passed = std::time::Duration::from_millis(1500);
        let line = latency_progress(&Progress {
            passed,
            sent: 9,
            received: 8,
            latency,
            histogram: Vec::new(),
        });
        assert_eq!(
            line,
            "1.50s: 9 sent, 8 answered; since the last line 1000 answers, p50 20.0µs, p99 20.0µs, \
             longest 20.0µs"
        );
    }
}
