//! Retransmission timeouts: how many, and of which connections.
//!
//! Input: the counters of TCP, over the interval when there is an earlier reading, and the measured connections.
//! Output: at most one finding. A few are common: a peer that goes away without a word costs one every other second,
//! as each doubles the next.
//!
//! Rules: RFC 6298 (the timeout is at least 200 ms in Linux, `TCP_RTO_MIN`, and doubles);
//! Documentation/networking/snmp_counter.rst (`TcpExtTCPTimeouts`); `tcp_retransmit_timer` of net/ipv4/tcp_timer.c,
//! which also counts a SYN that is not answered; RFC 8985 (tail loss probes avoid some).

use super::tcp_unanswered;
use crate::connections::{add_evidence, remotes, sentences, sort_by_figure};
use crate::counters::{ratio, total};
use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::tcp::{TcpConnection, TcpMeasurement};
use nearpath_model::{Finding, Severity};

pub(super) const CHECK: Check =
    Check::new("tcp_timeouts", "connections that waited for retransmission timeouts", run)
        .of(nearpath_model::Whose::Network);

/// Fewer are not worth a word: one connection whose peer is gone has as many in ten seconds.
const FLOOR: u64 = 10;
/// The same as a share of the segments sent.
const SHARE: f64 = 1e-4;
/// From this share of the timeouts, those that are not answered are all there is to say.
const MOST: f64 = 0.8;
/// From so many connections to one address, it is the path to it that loses packets.
const SAME_PATH: usize = 3;

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    let counted = context.counter("TcpExt.TCPTimeouts").zip(context.counter("Tcp.OutSegs"));
    let Some((timeouts, sent)) = counted else {
        let why = context.why_unknown("host", "counters");
        outcome.not_checked(format!("TcpExt.TCPTimeouts is unknown{why}"));
        return outcome;
    };
    // Tcp.OutSegs leaves out retransmissions; a timeout is one.
    let share = ratio(timeouts, sent.saturating_add(timeouts)).unwrap_or(0.0);
    if timeouts < FLOOR || share < SHARE {
        return outcome;
    }
    let since = context.since();
    let title = format!("{} expired {since}", text::count(timeouts, "retransmission timeout"));
    let severity = severity::of_timeouts(context, timeouts, share);
    let handshakes = context.tcp.and_then(|measured| measured.counters.get("TcpExtTCPSynRetrans"));
    let handshakes = handshakes.copied().unwrap_or(0);
    let is_measured =
        |measured: &TcpMeasurement| measured.connections.iter().any(|c| timeouts_of(c) > 0);
    if handshakes.saturating_mul(2) >= timeouts && !context.tcp.is_none_or(is_measured) {
        // The SYN-ACK of a handshake that is not complete belongs to no connection yet.
        outcome.findings.push(
            Finding::new(Severity::Info, title).share(Some(share), "segments").evidence(format!(
                "{} SYN-ACKs were sent again, as their clients did not complete the handshake (TCPSynRetrans): no \
                 connection that was measured waited.",
                handshakes
            )),
        );
        return outcome;
    }
    let finding = Finding::new(severity, title)
        .share(Some(share), "segments")
        .evidence("Each stops its connection for 200 ms or more, and doubles the next one.");
    outcome.findings.extend(match context.tcp {
        Some(measured) => with_connections(finding, measured),
        None => Some(finding.evidence("nearpath measure tcp names the connections.")),
    });
    outcome
}

/// Timeouts of a connection: as the kernel counts them (Linux 6.7), else the segments sent after one.
fn timeouts_of(connection: &TcpConnection) -> u64 {
    let sent_after = connection.retransmit_reasons.map_or(0, |reasons| reasons.timeout);
    connection.interval.timeouts.unwrap_or(sent_after)
}

/// Names the connections, and distinguishes peers that do not answer from losses. `None` if most are of the former:
/// `tcp_unanswered` has them.
fn with_connections(finding: Finding, measured: &TcpMeasurement) -> Option<Finding> {
    let mut stopped: Vec<&TcpConnection> =
        measured.connections.iter().filter(|c| timeouts_of(c) > 0).collect();
    sort_by_figure(&mut stopped, timeouts_of);
    if stopped.is_empty() {
        return Some(finding.evidence("None of the connections that were measured had one."));
    }
    let (unanswered, lossy): (Vec<&TcpConnection>, Vec<_>) =
        stopped.iter().partition(|c| tcp_unanswered::had_no_answer(c));
    let is_told = unanswered.iter().any(|c| tcp_unanswered::is_unanswered(c, measured));
    let of = |connections: &[&TcpConnection]| {
        total(connections.iter().map(|connection| timeouts_of(connection)))
    };
    if is_told && of(&unanswered) as f64 >= MOST * of(&stopped) as f64 {
        return None;
    }
    let mut finding = finding.evidence(format!(
        "{} by {}, with {}.",
        of(&stopped),
        text::count(stopped.len() as u64, "connection"),
        remotes(&stopped)
    ));
    if !unanswered.is_empty() {
        finding = finding.evidence(format!(
            "{} by connections whose peer did not answer at all: {}.",
            of(&unanswered),
            remotes(&unanswered)
        ));
    }
    if let Some(first) = lossy.first() {
        let same = lossy.iter().filter(|c| c.dst == first.dst).count();
        if same >= SAME_PATH {
            finding = finding.evidence(format!(
                "{same} connections with {} had timeouts while data arrived: their path loses the \
                 end of bursts.",
                first.dst.to_canonical()
            ));
        }
    }
    Some(add_evidence(finding, sentences(&stopped, figures)))
}

fn figures(c: &TcpConnection) -> String {
    let counts = &c.interval;
    let waited = counts.timeout_s.filter(|seconds| seconds.is_finite() && *seconds > 0.0);
    let parts = [
        Some(text::count(timeouts_of(c), "timeout")),
        waited.map(|seconds| format!("{} s until recovered", text::digits(seconds))),
        c.rto_ns.map(|ns| format!("RTO now {}", text::time(ns))),
        (counts.segments_sent > 0).then(|| {
            format!("{} of {} segments retransmitted", counts.retransmits, counts.segments_sent)
        }),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}
