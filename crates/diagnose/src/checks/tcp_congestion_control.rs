//! Connections that losses hold back, although no queue stands in their path.
//!
//! Input: the measured connections, and which algorithms of congestion control this kernel has. Output: at most one
//! finding.
//!
//! CUBIC and Reno take each loss for a sign of a full queue, and reduce their window: on a long path with random
//! losses their rate falls with the square root of the losses and with the round-trip time (RFC 9438, 5.1). BBR
//! models the path by its rate and its shortest round-trip time instead. Where the path is short a window recovers at
//! once, and where a queue stands the losses are the path's answer: neither counts.
//!
//! Rules: RFC 9438; Documentation/networking/ip-sysctl.rst (`tcp_available_congestion_control`); net/ipv4/tcp_bbr.c.

use crate::connections::{
    add_evidence, has_queue, is_limited, is_receiving, limited_per_second, limited_share,
    sentences, sort_by_figure, with_others,
};
use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::tcp::{TcpConnection, TcpLimit, TcpMeasurement};
use nearpath_model::{Finding, ProposedChange, Sysctl};

pub(super) const CHECK: Check = Check::new(
    "tcp_congestion_control",
    "connections that losses hold back without a queue in their path",
    run,
);

/// On a shorter path a window recovers within a second.
const LEAST_RTT_NS: u64 = 10_000_000;
/// Losses, as a share of the segments and a number: fewer do not keep a window small.
const LOSSES: f64 = 1e-3;
const LEAST_LOSSES: u64 = 10;
/// Segments of a transfer in the interval; and the share of the transfers from which a change for all connections of the
/// host is more than information: a single client on a bad link is none.
const TRANSFER: u64 = 1000;
const COMMON: f64 = 0.1;
const CURRENT: Sysctl = Sysctl::TcpCongestionControl;
const AVAILABLE: &str = "net.ipv4.tcp_available_congestion_control";
const BBR: &str = "bbr";
/// Those that reduce their window by each loss.
const BY_LOSS: [&str; 3] = ["cubic", "reno", "bic"];

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    let Some(measured) = context.tcp_measured(&mut outcome) else { return outcome };
    let held: Vec<&TcpConnection> =
        with_others(measured).filter(|c| is_held_by_losses(context, c)).collect();
    outcome.findings.extend(finding(context, measured, held));
    outcome
}

fn is_held_by_losses(context: &Context<'_>, c: &TcpConnection) -> bool {
    let default = || context.host.sysctls.get(CURRENT.name()).map(|name| name.trim().to_owned());
    let algorithm = c.congestion_control.clone().or_else(default);
    is_limited(c, TcpLimit::CongestionWindow)
        && !is_receiving(c)
        && !has_queue(c)
        && c.ssthresh.is_some()
        && c.min_rtt_ns.is_some_and(|ns| ns >= LEAST_RTT_NS)
        && c.interval.retransmits >= LEAST_LOSSES
        && c.interval.retransmit_share().is_some_and(|share| share >= LOSSES)
        && algorithm.is_some_and(|name| BY_LOSS.contains(&name.as_str()))
}

fn finding(
    context: &Context<'_>,
    measured: &TcpMeasurement,
    mut held: Vec<&TcpConnection>,
) -> Option<Finding> {
    sort_by_figure(&mut held, |c| c.interval.bytes_acked);
    held.first()?;
    let waits = limited_per_second(measured, held.iter().copied(), TcpLimit::CongestionWindow);
    let current = context.host.sysctls.get(CURRENT.name()).map(|name| name.trim());
    let available = context.host.sysctls.get(AVAILABLE).map_or("", String::as_str);
    let has_bbr = available.split_ascii_whitespace().any(|name| name == BBR);
    let change = current.filter(|now| has_bbr && BY_LOSS.contains(now)).map(|now| {
        ProposedChange::new(
            CURRENT,
            Some(now.to_owned()),
            BBR,
            "BBR does not treat a single loss as congestion. It applies to all new connections of \
             this host, and takes more than its share where it meets CUBIC in a short queue.",
        )
    });
    let senders = with_others(measured).filter(|c| c.interval.segments_sent >= TRANSFER).count();
    let is_common = held.len() as f64 >= COMMON * senders as f64;
    let severity = severity::of_limit(waits, change.is_some() && is_common);
    let count = text::count(held.len() as u64, "connection");
    let title = format!("Losses keep the congestion window of {count} small");
    let mut finding = Finding::new(severity, title).evidence(
        "No queue stands in the path: the losses are no sign of congestion at this host's rate, as \
         on wireless links, faulty cables or policers.",
    );
    finding = add_evidence(finding, sentences(&held, figures));
    Some(match change {
        Some(change) => finding.change(change),
        None if current == Some(BBR) => finding.evidence(
            "bbr is the default already: these connections began earlier, or choose another \
             (TCP_CONGESTION).",
        ),
        None if has_bbr => finding,
        None => finding.evidence(
            "bbr, which does not treat a single loss as congestion, is not available here (module \
             tcp_bbr).",
        ),
    })
}

fn figures(c: &TcpConnection) -> String {
    let counts = &c.interval;
    let share = text::percent(limited_share(c, TcpLimit::CongestionWindow));
    let lost = counts.retransmit_share().map(|share| text::percent(share.min(1.0)));
    let parts = [
        Some(format!("limited {share} of the time")),
        Some(format!("{} retransmitted", lost.unwrap_or_default())),
        c.min_rtt_ns.map(|ns| format!("RTT {}", text::time(ns))),
        c.cwnd.map(|cwnd| format!("cwnd {cwnd}")),
        c.congestion_control.as_deref().map(text::clean),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}
