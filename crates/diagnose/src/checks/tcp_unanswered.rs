//! Connections whose peer does not answer: a SYN, or data that is sent again and again.
//!
//! Input: the measured connections. Output: a finding for each peer, those with the most connections first. A connection whose
//! timeouts nothing interrupts stands, whatever all others do, so one among thousands is reported. What is sent while it
//! stands, and which segments are lost, tells nothing of the reason: a host that is down, a firewall that drops there or on the
//! way, a listener whose queue is full (a SYN alone). Full segments that are lost while small ones arrive are of `tcp_path_mtu`.
//!
//! Clients go away without a word all the time: where this host is the server, it is `info`.
//!
//! Rules: RFC 9293 (3.8.3); Documentation/networking/ip-sysctl.rst (`tcp_syn_retries`, `tcp_retries2`);
//! `tcp_retransmit_timer` of net/ipv4/tcp_timer.c.

use super::tcp_path_mtu;
use crate::connections::{add_evidence, is_within_host, limited_s, sentences};
use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::tcp::{TcpConnection, TcpLimit, TcpMeasurement, TcpRole, TcpState};
use nearpath_model::{Finding, Severity, Subject, Whose};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

pub(super) const CHECK: Check =
    Check::new("tcp_unanswered", "connections whose peer does not answer", run).of(Whose::Network);

/// Peers that are reported.
const PEERS: usize = 3;
/// Timeouts in a row from which a loss is no accident: of a SYN, whose first is a second, and of data.
const SYN_TIMEOUTS: u8 = 1;
const TIMEOUTS: u8 = 2;

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    let Some(measured) = context.tcp_measured(&mut outcome) else { return outcome };
    let mut by_peer: BTreeMap<(bool, IpAddr, Option<u16>), Vec<&TcpConnection>> = BTreeMap::new();
    for c in measured.connections.iter().filter(|c| is_unanswered(c, measured)) {
        // Clients have a port each.
        let port = (c.role != Some(TcpRole::Server)).then_some(c.dport);
        by_peer.entry((is_connecting(c), c.dst, port)).or_default().push(c);
    }
    let mut peers: Vec<_> = by_peer.into_iter().collect();
    peers.sort_by_key(|(_, connections)| Reverse(connections.len()));
    let found = peers.iter().take(PEERS);
    outcome.findings = found.filter_map(|(_, its)| finding(measured, its)).collect();
    outcome
}

/// Whether nothing of what it sends is answered.
pub(super) fn is_unanswered(c: &TcpConnection, measured: &TcpMeasurement) -> bool {
    let timeouts = c.unanswered_timeouts.max(c.backoff).unwrap_or(0);
    let least = if is_connecting(c) { SYN_TIMEOUTS } else { TIMEOUTS };
    !c.closed
        && timeouts >= least
        && had_no_answer(c)
        // A peer that keeps its window closed answers, though seldom.
        && (is_connecting(c) || c.send_window_bytes != Some(0))
        && c.unanswered_probes.unwrap_or(0) == 0
        // A full queue of a listener of this host: `listen_overflows`.
        && !is_within_host(c)
        && !tcp_path_mtu::is_black_hole(c, measured)
}

/// Whether nothing was answered in the interval; it may have been given up since.
pub(super) fn had_no_answer(c: &TcpConnection) -> bool {
    c.interval.bytes_acked == 0 && c.interval.segments_in == 0
}

fn is_connecting(c: &TcpConnection) -> bool {
    c.state == TcpState::SynSent
}

fn finding(measured: &TcpMeasurement, connections: &[&TcpConnection]) -> Option<Finding> {
    let first = connections.first()?;
    let (count, many) =
        (text::count(connections.len() as u64, "connection"), connections.len() > 1);
    let verb = if many { "get" } else { "gets" };
    let dst = first.dst.to_canonical();
    let is_server = first.role == Some(TcpRole::Server);
    let peer = match is_server {
        true => dst.to_string(),
        false => SocketAddr::new(dst, first.dport).to_string(),
    };
    let title = match is_connecting(first) {
        true => format!("{count} to {peer} {verb} no answer to the SYN"),
        false => format!("{count} with {peer} {verb} no answer"),
    };
    let waits =
        |c: &&TcpConnection| limited_s(c, TcpLimit::Timeouts) + limited_s(c, TcpLimit::Backlog);
    let seconds =
        connections.iter().map(waits).sum::<f64>() / measured.duration_s.max(f64::MIN_POSITIVE);
    let severity = if is_server { Severity::Info } else { severity::of_limit(seconds, true) };
    let finding = Finding::new(severity, title)
        .about(connections.iter().take(PEERS).map(|c| Subject::Port(c.sport)));
    let others =
        measured.connections.iter().filter(|c| c.dst == first.dst && c.dport == first.dport);
    let answered = others.filter(|c| c.interval.segments_in > 0).count() as u64;
    let mut finding = add_evidence(finding, sentences(connections, figures));
    finding.cost.seconds_per_second = Some(seconds);
    if answered > 0 {
        finding = finding.evidence(format!(
            "{} with the same address and port {} answered: their packets may take another path (ECMP, a bond, a load \
             balancer's backend), or a firewall has forgotten this connection.",
            text::count(answered, "connection"),
            if answered == 1 { "is" } else { "are" },
        ));
    }
    let hint = match is_connecting(first) {
        true => {
            "A host that is down, a firewall that drops (one that refuses is answered at once), or a listener whose queue is \
             full: ss -ltn there shows Recv-Q above Send-Q; nearpath measure drops there shows the others."
        }
        false => {
            "Their peer is gone, or the path loses all of it: a firewall or a load balancer that forgot the connection. It is \
             given up after net.ipv4.tcp_retries2 timeouts (about 15 minutes), or TCP_USER_TIMEOUT."
        }
    };
    Some(finding.evidence(hint))
}

fn figures(c: &TcpConnection) -> String {
    let timeouts = u64::from(c.unanswered_timeouts.max(c.backoff).unwrap_or(0));
    let parts = [
        Some(text::count(timeouts, "timeout") + " in a row"),
        c.rto_ns.map(|ns| format!("the next after {}", text::time(ns))),
        (c.send_queue_bytes > 0 && !is_connecting(c))
            .then(|| format!("{} not acknowledged", text::bytes(c.send_queue_bytes.into()))),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}
