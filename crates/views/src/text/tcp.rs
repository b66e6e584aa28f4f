//! `measure tcp`: what limits the connections in one line; then each connection, full backlogs, and the counters that
//! changed.

mod figures;
mod tables;

use super::nstat;
use super::units::{latency, percent, printable, short};
use super::unknown::unknown;
use super::{heading, line};
use figures::{buffers, figures};
use nearpath_model::tcp::{TcpCounts, TcpLimit, TcpListener, TcpMeasurement};
use nearpath_model::units::{counted, digits};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use tables::{connections, groups, has_samples, samples};

/// The whole measurement; with `verbose` all figures of each connection.
pub fn tcp(m: &TcpMeasurement, verbose: bool, width: Option<usize>) -> String {
    let mut out = String::new();
    line!(out, "{}", in_a_line(m));
    for listener in m.listeners.iter().filter(|listener| listener.verdict.is_some()) {
        line!(out, "{}", full(listener));
    }
    line!(out);
    header(&mut out, m);
    if !m.connections.is_empty() {
        line!(out);
        out.push_str(&connections(m, width));
    }
    if m.sampling.is_some() && m.connections.iter().any(has_samples) {
        line!(out);
        out.push_str(&samples(m, width));
    }
    if verbose {
        for part in [figures(m), buffers(m)] {
            line!(out);
            out.push_str(&part);
        }
    }
    if let Some(first) = m.groups.first() {
        line!(out);
        heading(&mut out, &format!("by {}", format!("{:?}", first.per).to_lowercase()));
        out.push_str(&groups(m, width));
    }
    nstat::counters(&mut out, &m.counters, verbose);
    if !m.unknown.is_empty() {
        line!(out);
        out.push_str(&unknown(&m.unknown, &[]));
    }
    out
}

/// `8 connections: 3 limited by path rate, 1 by receive window; 1.2% of 45k segments retransmitted`.
pub(super) fn in_a_line(m: &TcpMeasurement) -> String {
    let mut limits: BTreeMap<TcpLimit, u64> = BTreeMap::new();
    for verdict in m.connections.iter().filter_map(|connection| connection.verdict.as_ref()) {
        *limits.entry(verdict.limit).or_default() += 1;
    }
    let mut limits: Vec<(TcpLimit, u64)> = limits.into_iter().collect();
    limits.sort_by_key(|&(limit, count)| (std::cmp::Reverse(count), limit));
    let named: Vec<String> =
        limits.iter().map(|(limit, count)| format!("{} ({count})", limit.words())).collect();
    let mut answer = counted(m.total, "TCP connection");
    if m.total > m.connections.len() as u64 {
        answer.push_str(&format!(", {} listed", m.connections.len()));
    }
    if !named.is_empty() {
        answer.push_str(&format!(", limited by: {}", named.join(", ")));
    }
    let mut counts = TcpCounts::default();
    m.connections.iter().for_each(|connection| counts.add(&connection.interval));
    if let Some(share) = counts.retransmit_share() {
        let sent = short(counts.segments_sent);
        answer.push_str(&format!("; {} of {sent} segments retransmitted", percent(share)));
    }
    answer
}

fn full(listener: &TcpListener) -> String {
    let process = process(listener.comm.as_deref(), listener.pid);
    let share = percent(listener.full_share);
    format!(
        "backlog of {} ({process}) full in {share} of readings: up to {} of {} connections not accepted",
        SocketAddr::new(listener.src, listener.sport),
        listener.backlog_max_seen,
        listener.backlog_limit
    )
}

fn header(out: &mut String, m: &TcpMeasurement) {
    let filter = if m.filter.is_empty() { "all connections of the namespace" } else { &m.filter };
    let cost = &m.cost;
    line!(*out, "measured for {}s: {}", digits(m.duration_s), printable(filter));
    line!(*out, "cost: {} readings, {} of one CPU", cost.dumps, percent(cost.cpu_percent / 100.0));
    if let Some(programs) = cost.programs {
        line!(
            *out,
            "      {:.0}ns per state change or retransmission, {} of one CPU",
            programs.ns_per_event,
            percent(programs.cpu_percent / 100.0)
        );
    }
    sampling(out, m);
    if m.events_lost > 0 {
        line!(*out, "lost: {} events", m.events_lost);
    }
}

/// How each packet was observed.
fn sampling(out: &mut String, m: &TcpMeasurement) {
    let Some(sampling) = m.sampling else { return };
    if let Some(cost) = m.cost.sampling {
        line!(
            *out,
            "      {:.0}ns per segment or read, {} of one CPU while observed",
            cost.ns_per_event,
            percent(cost.cpu_percent / 100.0)
        );
    }
    let share = sampling.observed_s / m.duration_s;
    if share < 0.99 {
        line!(
            *out,
            "packets observed for {}s, {} of the time: overhead limit",
            digits(sampling.observed_s),
            percent(share)
        );
    }
    let lost = [
        (sampling.collided, "of connections without room"),
        (sampling.unmarked, "of which the wait was not measured"),
    ];
    for (count, what) in lost.into_iter().filter(|(count, _)| *count > 0) {
        line!(*out, "not observed: {} {what}", counted(count, "segment"));
    }
}

fn process(comm: Option<&str>, pid: Option<u32>) -> String {
    match (comm, pid) {
        (Some(comm), Some(pid)) => format!("{}/{pid}", printable(comm)),
        _ => "no process".to_owned(),
    }
}

fn end(address: IpAddr, port: u16) -> String {
    SocketAddr::new(address, port).to_string()
}

fn time(ns: Option<u64>) -> String {
    ns.map(latency).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_model::CpuId;
    use nearpath_model::tcp::{
        TcpConnection, TcpReset, TcpSamples, TcpSampling, TcpTimes, TcpVerdict,
    };
    use std::net::Ipv4Addr;

    fn measurement() -> TcpMeasurement {
        let at = |last, port| (IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)), port);
        let mut bulk = TcpConnection::between(at(1, 5201), at(2, 40_000));
        bulk.observed_s = 10.0;
        (bulk.comm, bulk.pid) = (Some("iperf3\u{1b}[2J".to_owned()), Some(77));
        (bulk.rtt_ns, bulk.rttvar_ns, bulk.min_rtt_ns) =
            (Some(52_000_000), Some(1_200_000), Some(2_000_000));
        (bulk.interval.bytes_sent, bulk.interval.bytes_acked) = (12_100_000, 12_000_000);
        (bulk.interval.segments_sent, bulk.interval.retransmits) = (8_000, 80);
        bulk.delivery_rate_bps = Some(9_600_000);
        bulk.limits.insert(TcpLimit::Path, 9.7);
        bulk.classify();
        let mut idle = TcpConnection::between(at(1, 22), at(9, 50_000));
        idle.observed_s = 10.0;
        idle.limits.insert(TcpLimit::Application, 10.0);
        idle.classify();
        let (src, sport) = at(1, 80);
        TcpMeasurement {
            duration_s: 10.0,
            total: 2,
            connections: vec![bulk, idle],
            listeners: vec![TcpListener {
                src,
                sport,
                pid: Some(5),
                comm: Some("web".to_owned()),
                backlog: 129,
                backlog_max_seen: 129,
                backlog_limit: 128,
                full_share: 0.5,
                drops: Some(3),
                verdict: Some(TcpVerdict {
                    limit: TcpLimit::Backlog,
                    share: 0.5,
                    evidence: vec![],
                }),
            }],
            counters: BTreeMap::from([
                ("TcpRetransSegs".to_owned(), 80),
                ("TcpExtTCPHPAcks".to_owned(), 9_000),
            ]),
            ..TcpMeasurement::default()
        }
    }

    #[test]
    fn the_first_line_names_the_limits() {
        let text = tcp(&measurement(), false, Some(200));
        let mut lines = text.lines();
        assert_eq!(
            lines.next(),
            Some(
                "2 TCP connections, limited by: nothing to send (1), path rate (1); \
                 1.0% of 8.00k segments retransmitted"
            )
        );
        assert_eq!(
            lines.next(),
            Some(
                "backlog of 10.0.0.1:80 (web/5) full in 50.0% of readings: \
                 up to 129 of 128 connections not accepted"
            )
        );
        assert!(text.contains("delivers 9.60 Mbit/s, 50.0ms of RTT in queues, 80 retransmits"));
        assert!(!text.contains('\u{1b}') || !text.contains("\u{1b}[2J"));
        assert!(text.contains("segments retransmitted") && !text.contains("TCPHPAcks"), "{text}");
        assert!(tcp(&measurement(), true, None).contains("TCPHPAcks"));
    }

    #[test]
    fn a_narrow_terminal_hides_columns_and_names_them() {
        let text = tcp(&measurement(), false, Some(100));
        assert!(text.contains("(hidden in this width: evidence"), "{text}");
        let table = text.lines().skip_while(|line| !line.starts_with("LOCAL")).take(3);
        assert!(table.clone().all(|line| line.chars().count() <= 100), "{text}");
        assert_eq!(table.count(), 3);
    }

    #[test]
    fn what_packets_showed_is_a_table_of_its_own() {
        let mut m = measurement();
        assert!(!tcp(&m, true, None).contains("RTT SAMPLES"));
        m.sampling = Some(TcpSampling { observed_s: 2.5, observed: 900, collided: 7, unmarked: 1 });
        let times = |ns: u64| TcpTimes::new(vec![(ns, 500)], Some(ns));
        m.connections[0].samples = Some(TcpSamples {
            rtt: times(2_000_000),
            read_wait: times(8_000),
            read_on_cpu: Some(CpuId(3)),
            reads: 10,
            reads_on_other_cpu: 4,
            own_zero_windows: 2,
            ..TcpSamples::default()
        });
        m.connections[1].closed = true;
        m.connections[1].reset = Some(TcpReset::Received);
        let text = tcp(&m, false, None);
        assert!(text.contains("packets observed for 2.50s, 25.0% of the time: overhead limit"));
        assert!(text.contains("not observed: 7 segments of connections without room"), "{text}");
        assert!(text.contains("not observed: 1 segment of which"), "{text}");
        let row = text.lines().skip_while(|line| !line.contains("RTT SAMPLES")).nth(1).unwrap();
        let words: Vec<&str> = row.split_ascii_whitespace().skip(2).collect();
        assert_eq!(words[0], "500", "{row}");
        assert_eq!(words[3], "2.00ms", "{row}");
        assert_eq!(words[6..], ["8.00µs", "3", "40.0%", "2"], "{row}");
        assert!(text.contains("reset by peer"), "{text}");
    }
}
