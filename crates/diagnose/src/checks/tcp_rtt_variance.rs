//! Connections whose round-trip time varies much, and what varies: this host, the peer, or the network.
//!
//! Input: the measured connections, and the measured spans of the path through this host. Output: a finding for each
//! cause.
//!
//! A round-trip time ends when the kernel processes the acknowledgement, and the kernel of the peer sends it: readers
//! are no part of it. So of this host the spans count that end before a reader is woken, and those of transmission
//! after the send call. A peer delays acknowledgements by 40 to 200 ms when there is no second full segment to
//! acknowledge.
//!
//! Rules: RFC 6298 (mean deviation); RFC 1122, 4.2.3.2 (delayed acknowledgements); `TCP_DELACK_MIN` and
//! `TCP_DELACK_MAX` of include/net/tcp.h.

use crate::connections::{
    NOTABLE_LIMIT, add_evidence, duration_s, has_queue, is_receiving, limited_share, sentences,
    sort_by_figure, with_others,
};
use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::tcp::{TcpConnection, TcpLimit, TcpMeasurement};
use nearpath_model::{Direction, Finding, Measurement, Severity, Span, Subject};

pub(super) const CHECK: Check =
    Check::new("tcp_rtt_variance", "connections whose round-trip time varies", run)
        .of(nearpath_model::Whose::Network)
        .explained_by(&["slow_packets", "latency_tail", "ksoftirqd_starved"]);

/// A mean deviation below this is of no interest, whatever the minimum: wireless links vary as much.
const LEAST_NS: u64 = 5_000_000;
/// Segments that were acknowledged: fewer are too few samples for a mean.
const ENOUGH_SAMPLES: u64 = 20;
/// What delayed acknowledgements add to the round-trip time: half of the shortest delay, as some are not delayed, to
/// the longest and some more for timers.
const DELAYED_NS: std::ops::RangeInclusive<u64> = 20_000_000..=220_000_000;
/// The same where one segment is delayed and the next one, which is answered, is not: the smoothed time is between both.
const HALF_DELAYED_NS: std::ops::RangeInclusive<u64> = 10_000_000..=220_000_000;
/// Segments in each second below which acknowledgements are delayed: at 25 the next one comes 40 ms later.
const SPARSE_PER_S: f64 = 25.0;
/// The same where the application waits for the acknowledgement: two segments each 40 ms, and some that are not delayed.
const NAGLE_PER_S: f64 = 2.4 * SPARSE_PER_S;
/// Stages at which a packet waits for its reader, or is with it.
const OF_READER: [&str; 6] =
    ["sched_waking", "sched_switch", "skb_copy_datagram", "sock_recv", "consume_skb", "kfree_skb"];
/// Stages of a send call, which may wait for the application.
const OF_WRITER: [&str; 2] = ["sock_send", "tcp_sendmsg"];

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    let Some(measured) = context.tcp_measured(&mut outcome) else { return outcome };
    let slowest = context.measurement.and_then(slowest_span);
    let varies: Vec<(Cause, &TcpConnection)> = with_others(measured)
        .map(|c| (cause(c, measured, slowest), c))
        // Where each segment waits for an acknowledgement, the time is long and hardly varies.
        .filter(|(cause, c)| varies(c) || *cause == Cause::Nagle && has_samples(c))
        .collect();
    for wanted in
        [Cause::ThisHost, Cause::SlowReader, Cause::Nagle, Cause::DelayedAck, Cause::Network]
    {
        let of = varies.iter().filter(|(cause, _)| *cause == wanted).map(|(_, c)| *c).collect();
        outcome.findings.extend(finding(context, measured, of, wanted, slowest));
    }
    outcome
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    ThisHost,
    SlowReader,
    Nagle,
    DelayedAck,
    Network,
}

/// Whether the mean deviation is large: half of the minimum and more, and some milliseconds.
fn varies(c: &TcpConnection) -> bool {
    let (Some(deviation), Some(min)) = (c.rttvar_ns, c.min_rtt_ns) else { return false };
    deviation >= LEAST_NS && deviation >= min / 2 && has_samples(c)
}

fn has_samples(c: &TcpConnection) -> bool {
    c.interval.delivered >= ENOUGH_SAMPLES
}

/// The span of this host's path that takes longest, without what readers and writers take.
fn slowest_span(measurement: &Measurement) -> Option<&Span> {
    let is_of_kernel = |span: &&Span| match span.direction {
        Direction::Rx => !OF_READER.contains(&span.to.as_str()),
        Direction::Tx => !OF_WRITER.contains(&span.from.as_str()),
    };
    let spans = measurement.spans.iter().filter(is_of_kernel).filter(|span| span.p99_ns.is_some());
    spans.max_by_key(|span| span.p99_ns)
}

fn cause(c: &TcpConnection, measured: &TcpMeasurement, slowest: Option<&Span>) -> Cause {
    let deviation = c.rttvar_ns.unwrap_or(0);
    let is_comparable = |span: &Span| span.p99_ns.is_some_and(|ns| ns >= deviation);
    if slowest.is_some_and(is_comparable) {
        return Cause::ThisHost;
    }
    if !is_receiving(c) && limited_share(c, TcpLimit::Reader) >= NOTABLE_LIMIT {
        return Cause::SlowReader;
    }
    let seconds = duration_s(measured).unwrap_or(10.0);
    let sent = &c.interval;
    let is_sparse = (sent.segments_sent as f64) < SPARSE_PER_S * seconds;
    let is_small = c
        .mss
        .is_some_and(|mss| sent.bytes_sent < u64::from(mss / 2).saturating_mul(sent.segments_sent));
    let waits_for_ack = (sent.segments_sent as f64) < NAGLE_PER_S * seconds && is_held_by_nagle(c);
    let added = c.rtt_ns.zip(c.min_rtt_ns).map(|(rtt, min)| rtt.saturating_sub(min));
    match added {
        Some(added) if waits_for_ack && HALF_DELAYED_NS.contains(&added) => Cause::Nagle,
        Some(added) if is_sparse && is_small && DELAYED_NS.contains(&added) => Cause::DelayedAck,
        _ => Cause::Network,
    }
}

/// Whether less than a segment is unsent although both windows have room: Nagle's algorithm holds it until what is in
/// flight is acknowledged (`tcp_nagle_check` of net/ipv4/tcp_output.c).
fn is_held_by_nagle(c: &TcpConnection) -> bool {
    let (Some(unsent), Some(in_flight), Some(mss)) = (c.unsent_bytes, c.in_flight, c.mss) else {
        return false;
    };
    let has_room = c.cwnd.is_some_and(|cwnd| cwnd > 2 * in_flight)
        && c.send_window_bytes.is_none_or(|window| window >= mss.saturating_mul(2));
    (1..mss).contains(&unsent) && (1..=2).contains(&in_flight) && has_room
}

/// How long segments waited in each second for acknowledgements that were delayed, summed over connections.
fn delayed_per_second(measured: &TcpMeasurement, connections: &[&TcpConnection]) -> f64 {
    let waited = |c: &&TcpConnection| {
        let added = c.rtt_ns.zip(c.min_rtt_ns).map_or(0, |(rtt, min)| rtt.saturating_sub(min));
        added as f64 / 1e9 * c.interval.segments_sent as f64
    };
    let seconds: f64 = connections.iter().map(waited).sum();
    seconds / duration_s(measured).unwrap_or(10.0)
}

fn finding(
    context: &Context<'_>,
    measured: &TcpMeasurement,
    mut varying: Vec<&TcpConnection>,
    cause: Cause,
    slowest: Option<&Span>,
) -> Option<Finding> {
    sort_by_figure(&mut varying, |c| c.rttvar_ns.unwrap_or(0));
    varying.first()?;
    let count = text::count(varying.len() as u64, "connection");
    let title = |why: &str| format!("RTT of {count} varies: {why}");
    let finding = match cause {
        Cause::ThisHost => of_this_host(context, slowest?, title("this host delays packets")),
        Cause::SlowReader => Finding::new(Severity::Info, title("the peer reads slowly")).evidence(
            "The peer closes its window while its application does not read: what is sent waits for it.",
        ),
        Cause::Nagle => {
            let seconds = delayed_per_second(measured, &varying);
            let severity = severity::of_limit(seconds, true);
            let title = format!("Small writes of {count} wait for delayed ACKs (Nagle)");
            let mut finding = Finding::new(severity, title).evidence(
                "Less than a segment is unsent until the last one is acknowledged, and the peer delays that by 40 ms or \
                 more: the application writes a request in pieces, and then waits for the answer.",
            ).evidence(
                "Let it write a request at once (writev, MSG_MORE), or set TCP_NODELAY; or let the peer acknowledge at \
                 once (ip route change ... quickack 1 on the peer).",
            );
            finding.cost.seconds_per_second = Some(seconds);
            finding
        }
        Cause::DelayedAck => {
            Finding::new(Severity::Info, title("the peer delays ACKs")).evidence(
                "Small segments, few in each second: the peer waits 40 to 200 ms for more to \
                 acknowledge. Nothing is slow, unless the application waits for the acknowledgement \
                 (write, write, read without TCP_NODELAY).",
            )
        }
        Cause::Network => {
            let queued = varying.iter().filter(|c| has_queue(c)).count() as u64;
            let finding = Finding::new(Severity::Info, title("the network"));
            let finding = match context.measurement {
                Some(_) => finding.evidence(
                    "No stage of this host's path is as late, and the segments are neither small nor \
                     few: what varies is between the hosts.",
                ),
                None => finding.evidence(
                    "What varies is between the hosts, or on this one: its path was not measured.",
                ),
            };
            match queued {
                0 => finding,
                _ => finding.evidence(format!(
                    "A queue fills and drains on the path of {}: its round-trip time is twice the \
                     minimum and more.",
                    text::count(queued, "connection")
                )),
            }
        }
    };
    Some(add_evidence(finding, sentences(&varying, figures)))
}

/// The finding about this host is as severe as the span's tail, at most a warning: its own checks name the cause.
fn of_this_host(context: &Context<'_>, span: &Span, title: String) -> Finding {
    let observed = context.measurement.map_or(0.0, Measurement::observed_time_s);
    let late = severity::late_of(span) as f64;
    let severity = severity::of_tail(late, span.count, observed).min(Severity::Warning);
    let (from, to) = (text::clean(&span.from), text::clean(&span.to));
    Finding::new(severity, title).about([Subject::Span(from.clone(), to.clone())]).evidence(
        format!(
            "{from} -> {to} takes {} at the 99th percentile, as much as the round-trip times vary.",
            text::time(span.p99_ns.unwrap_or(0))
        ),
    )
}

fn figures(c: &TcpConnection) -> String {
    let time = |what: &str, ns: Option<u64>| Some(format!("{what} {}", text::time(ns?)));
    let parts = [
        time("RTT", c.rtt_ns),
        time("mean deviation", c.rttvar_ns),
        time("minimum", c.min_rtt_ns),
        // Measured for each packet (`measure tcp --detail full`), it shows the tail.
        time("99% below", c.samples.as_ref().and_then(|samples| samples.rtt.p99_ns)),
        Some(format!("{} sent", text::count(c.interval.segments_sent, "segment"))),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}
