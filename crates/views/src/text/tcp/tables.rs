//! Tables of connections and groups: what they transferred, what limited them, and what each packet showed.

use super::super::table::{Table, left, right};
use super::super::units::{bytes, latency, percent, short};
use super::{end, process, time};
use nearpath_model::tcp::{
    TcpConnection, TcpMeasurement, TcpReset, TcpSamples, TcpState, TcpTimes, TcpVerdict,
};

fn limit(verdict: Option<&TcpVerdict>) -> [String; 2] {
    match verdict {
        Some(verdict) => [verdict.limit.words().to_owned(), percent(verdict.share)],
        None => Default::default(),
    }
}

/// The connections.
pub(super) fn connections(m: &TcpMeasurement, width: Option<usize>) -> String {
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
        (false, TcpState::Established) => String::new(),
        (false, state) => state.to_string(),
    }
}

/// Whether its packets were observed.
pub(super) fn has_samples(connection: &TcpConnection) -> bool {
    let some = |samples: &TcpSamples| samples.rtt.count + samples.read_wait.count > 0;
    connection.samples.as_ref().is_some_and(some)
}

/// What each packet showed.
pub(super) fn samples(m: &TcpMeasurement, width: Option<usize>) -> String {
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

/// The groups.
pub(super) fn groups(m: &TcpMeasurement, width: Option<usize>) -> String {
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
