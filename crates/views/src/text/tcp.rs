//! `measure tcp`: what limits the connections in one line; then each connection, full backlogs, and the counters that
//! changed.

use super::nstat;
use super::table::{Table, left, right};
use super::units::{bytes, latency, percent, printable, short};
use super::unknown::unknown;
use super::{heading, line};
use nearpath_model::CpuId;
use nearpath_model::tcp::{
    TcpConnection, TcpCounts, TcpLimit, TcpListener, TcpMeasurement, TcpReset, TcpSamples,
    TcpTimes, TcpVerdict,
};
use nearpath_model::units::{bit_rate, counted, digits};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

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

fn limit(verdict: Option<&TcpVerdict>) -> [String; 2] {
    match verdict {
        Some(verdict) => [verdict.limit.words().to_owned(), percent(verdict.share)],
        None => Default::default(),
    }
}

fn connections(m: &TcpMeasurement, width: Option<usize>) -> String {
    let mut table = Table::new(&[
        left("LOCAL"),
        left("REMOTE"),
        left("PROCESS").optional().gives_way(1),
        left("STATE").optional().gives_way(3),
        right("RTT"),
        right("RTTVAR").gives_way(2),
        right("SENT"),
        right("RECEIVED"),
        right("RETRANS").optional(),
        left("LIMITED BY"),
        right("SHARE"),
        left("EVIDENCE").gives_way(0),
    ]);
    for connection in &m.connections {
        let counts = &connection.interval;
        let [limited_by, share] = limit(connection.verdict.as_ref());
        let evidence = connection.verdict.as_ref().map(|verdict| verdict.evidence.join(", "));
        table.row([
            end(connection.src, connection.sport),
            end(connection.dst, connection.dport),
            connection
                .comm
                .as_deref()
                .map_or_else(String::new, |comm| process(Some(comm), connection.pid)),
            state(connection),
            time(connection.rtt_ns),
            time(connection.rttvar_ns),
            bytes(counts.bytes_sent),
            bytes(counts.bytes_received),
            counts.retransmit_share().filter(|share| *share > 0.0).map(percent).unwrap_or_default(),
            limited_by,
            share,
            evidence.unwrap_or_default(),
        ]);
    }
    let (text, hidden) = table.render_within(width.unwrap_or(usize::MAX));
    match hidden.as_slice() {
        [] => text,
        hidden => format!("{text}(hidden in this width: {})\n", hidden.join(", ").to_lowercase()),
    }
}

/// The state, if it is not that of every connection.
fn state(connection: &TcpConnection) -> String {
    match (connection.closed, connection.state) {
        (true, _) => match connection.reset {
            Some(TcpReset::Sent) => "reset".to_owned(),
            Some(TcpReset::Received) => "reset by peer".to_owned(),
            None => "closed".to_owned(),
        },
        (false, nearpath_model::tcp::TcpState::Established) => String::new(),
        (false, state) => state.to_string(),
    }
}

fn has_samples(connection: &TcpConnection) -> bool {
    let some = |samples: &TcpSamples| samples.rtt.count + samples.read_wait.count > 0;
    connection.samples.as_ref().is_some_and(some)
}

/// What each packet showed.
fn samples(m: &TcpMeasurement, width: Option<usize>) -> String {
    let mut table = Table::new(&[
        left("LOCAL"),
        left("REMOTE"),
        right("RTT SAMPLES").gives_way(1),
        right("P50"),
        right("P99"),
        right("MAX"),
        right("WAIT TO BE READ P50").optional(),
        right("P99").optional(),
        right("MAX").optional(),
        right("READ ON CPU").optional().gives_way(2),
        right("ELSEWHERE").optional().gives_way(3),
        right("ZERO WINDOWS").optional().gives_way(4),
    ]);
    let rows = m.connections.iter().filter(|connection| has_samples(connection));
    for (connection, samples) in rows.filter_map(|one| Some((one, one.samples.as_ref()?))) {
        let of = |times: &TcpTimes| [times.p50_ns, times.p99_ns, times.max_ns].map(time);
        let [rtt50, rtt99, rtt_max] = of(&samples.rtt);
        let [wait50, wait99, wait_max] = of(&samples.read_wait);
        let elsewhere = samples.reads_on_other_cpu as f64 / samples.reads.max(1) as f64;
        let zero_windows = samples.peer_zero_windows + samples.own_zero_windows;
        let some = |is: bool, text: String| if is { text } else { String::new() };
        table.row([
            end(connection.src, connection.sport),
            end(connection.dst, connection.dport),
            short(samples.rtt.count),
            rtt50,
            rtt99,
            rtt_max,
            wait50,
            wait99,
            wait_max,
            samples.read_on_cpu.map(|cpu| cpu.0.to_string()).unwrap_or_default(),
            some(samples.reads > 0, percent(elsewhere)),
            some(zero_windows > 0, zero_windows.to_string()),
        ]);
    }
    table.render_within(width.unwrap_or(usize::MAX)).0
}

/// The figures of sending.
fn figures(m: &TcpMeasurement) -> String {
    let mut table = Table::new(&[
        left("LOCAL"),
        left("REMOTE"),
        right("MIN-RTT"),
        right("RTO"),
        right("CWND"),
        right("SSTHRESH"),
        right("IRQ CPU").optional(),
        right("CPU").optional(),
        right("ACCEPTED AFTER").optional(),
        right("IN-FLIGHT"),
        right("LOST"),
        right("REORDERING"),
        right("MSS"),
        right("PMTU"),
        right("DELIVERY"),
        right("PACING"),
        right("BUSY"),
        right("RWND-LIM"),
        right("SNDBUF-LIM"),
        right("TIMEOUTS").optional(),
        right("SPURIOUS").optional(),
        right("ECN-MARKED").optional(),
    ]);
    let number = |value: Option<u32>| value.map(|value| value.to_string()).unwrap_or_default();
    let rate = |value: Option<u64>| value.map(bit_rate).unwrap_or_default();
    let share = |value: Option<f64>| value.map(percent).unwrap_or_default();
    let some = |count: u64| if count > 0 { count.to_string() } else { String::new() };
    let cpu = |cpu: Option<CpuId>| cpu.map(|cpu| cpu.0.to_string()).unwrap_or_default();
    for c in &m.connections {
        table.row([
            end(c.src, c.sport),
            end(c.dst, c.dport),
            time(c.min_rtt_ns),
            time(c.rto_ns),
            number(c.cwnd),
            number(c.ssthresh),
            cpu(c.arrived_on_cpu),
            cpu(c.processed_on_cpu),
            time(c.accept_wait_ns),
            number(c.in_flight),
            number(c.lost),
            number(c.reordering),
            number(c.mss),
            number(c.pmtu),
            rate(c.delivery_rate_bps),
            rate(c.pacing_rate_bps),
            share(c.busy_share),
            share(c.rwnd_limited_share),
            share(c.sndbuf_limited_share),
            some(c.interval.timeouts.unwrap_or(0)),
            some(c.interval.spurious_retransmits),
            some(c.interval.ecn_marked),
        ]);
    }
    table.render()
}

/// The figures of queues, buffers and windows.
fn buffers(m: &TcpMeasurement) -> String {
    let mut table = Table::new(&[
        left("LOCAL"),
        left("REMOTE"),
        right("SEND-Q"),
        right("UNSENT"),
        right("SNDBUF"),
        right("SEND-WINDOW"),
        right("RECV-Q"),
        right("RCVBUF"),
        right("RECV-WINDOW"),
        right("OUT-OF-ORDER").optional(),
        left("CC"),
        left("OPTIONS"),
        left("ULP").optional(),
        left("CGROUP").optional(),
    ]);
    let size = |value: Option<u32>| value.map(|value| bytes(value.into())).unwrap_or_default();
    for c in &m.connections {
        let out_of_order = c.interval.out_of_order;
        table.row([
            end(c.src, c.sport),
            end(c.dst, c.dport),
            size(Some(c.send_queue_bytes)),
            size(c.unsent_bytes),
            size(c.send_buffer_bytes),
            size(c.send_window_bytes),
            size(Some(c.receive_queue_bytes)),
            size(c.receive_buffer_bytes),
            size(c.receive_window_bytes),
            if out_of_order > 0 { out_of_order.to_string() } else { String::new() },
            c.congestion_control.clone().unwrap_or_default(),
            options(c),
            c.ulp.clone().unwrap_or_default(),
            c.cgroup.clone().unwrap_or_default(),
        ]);
    }
    table.render()
}

/// As in ss(8): `ts sack wscale:7,7 ecn`.
fn options(connection: &TcpConnection) -> String {
    let Some(options) = connection.options else { return String::new() };
    let words = [
        options.timestamps.then(|| "ts".to_owned()),
        options.sack.then(|| "sack".to_owned()),
        options.window_scale.map(|(send, receive)| format!("wscale:{send},{receive}")),
        options.ecn.then(|| "ecn".to_owned()),
    ];
    words.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

fn groups(m: &TcpMeasurement, width: Option<usize>) -> String {
    let mut table = Table::new(&[
        left("GROUP"),
        right("CONNECTIONS"),
        right("MIN RTT").gives_way(0),
        right("MEDIAN RTT"),
        right("MAX RTT").gives_way(1),
        right("SAMPLES P50").optional(),
        right("P99").optional(),
        right("SENT"),
        right("RECEIVED"),
        right("RETRANS").optional(),
        left("LIMITED BY"),
        right("SHARE"),
    ]);
    for group in &m.groups {
        let [least, median, most] = match group.rtt_ns {
            Some((least, median, most)) => [least, median, most].map(latency),
            None => Default::default(),
        };
        let samples = |of: fn(&TcpTimes) -> Option<u64>| {
            time(group.samples.as_ref().and_then(|samples| of(&samples.rtt)))
        };
        let retransmits = group.counts.retransmit_share().filter(|share| *share > 0.0);
        let [limited_by, share] = limit(group.verdict.as_ref());
        table.row([
            group.name.clone(),
            group.connections.to_string(),
            least,
            median,
            most,
            samples(|times| times.p50_ns),
            samples(|times| times.p99_ns),
            bytes(group.counts.bytes_sent),
            bytes(group.counts.bytes_received),
            retransmits.map(percent).unwrap_or_default(),
            limited_by,
            share,
        ]);
    }
    table.render_within(width.unwrap_or(usize::MAX)).0
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_model::tcp::TcpSampling;
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
