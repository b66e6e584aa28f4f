//! TCP segments that had to be sent again, and the connections that sent them.
//!
//! Input: the counters of TCP, over the interval when there is an earlier reading, and the measured connections.
//! Output: at most one finding. Few connections may lose much of what they send without showing in the counters of
//! the host: they are then named for information, since a single bad path is nothing that this host can change.
//!
//! Rules: RFC 4022 (`tcpRetransSegs`, `tcpOutSegs`, which excludes retransmissions),
//! Documentation/networking/snmp_counter.rst (`TcpExtTCPTimeouts`, `TcpExtTCPDSACKRecv`); RFC 2883 (a duplicate that
//! the receiver reports was not necessary); RFC 8985 (tail loss probes).

use crate::connections::{add_evidence, per_second, remotes, sentences, sort_by_figure};
use crate::counters::{ratio, total};
use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::tcp::{TcpConnection, TcpMeasurement};
use nearpath_model::{Finding, Severity};

pub(super) const CHECK: Check = Check::new("tcp_retransmissions", "TCP segments sent again", run)
    .of(nearpath_model::Whose::Network);

/// Fewer are common on any path that is longer than a cable.
const FLOOR: f64 = 1e-3;
/// As are fewer than one in a second, on a host that sends little; since boot, fewer than this.
const PER_SECOND: f64 = 1.0;
const SINCE_BOOT: u64 = 100;
/// A connection is named for its own losses from this share of its segments, and so many in a second.
const OF_CONNECTION: f64 = 0.05;
const OF_CONNECTION_PER_SECOND: f64 = 10.0;
/// Share of the retransmissions from which it is worth a word that they were not necessary.
const SPURIOUS: f64 = 0.1;

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    let again = context.counter("Tcp.RetransSegs");
    let sent = context.counter("Tcp.OutSegs");
    let (Some(again), Some(sent)) = (again, sent) else {
        let why = context.why_unknown("host", "counters");
        outcome.not_checked(format!("Tcp.RetransSegs is unknown{why}"));
        return outcome;
    };
    let share = ratio(again, sent.saturating_add(again)).unwrap_or(0.0);
    let is_many = match context.earlier {
        Some(_) => context.per_second(again) >= PER_SECOND,
        None => again >= SINCE_BOOT,
    };
    if share >= FLOOR && is_many {
        outcome.findings.push(of_host(context, again, share));
    } else {
        outcome.findings.extend(context.tcp.and_then(of_connections));
    }
    outcome
}

/// The finding about all that this host sends.
fn of_host(context: &Context<'_>, again: u64, share: f64) -> Finding {
    let since = context.since();
    let title = format!("{} retransmitted {since}", text::count(again, "TCP segment"));
    let severity = severity::of_retransmissions(context, again, share);
    let mut finding = Finding::new(severity, title).share(Some(share), "segments");
    if let Some(timeouts) = context.counter("TcpExt.TCPTimeouts").filter(|count| *count > 0) {
        finding = finding.evidence(format!(
            "{} expired: each stops a connection for 200 ms or more.",
            text::count(timeouts, "retransmission timeout")
        ));
    }
    if let Some(vain) = context.counter("TcpExt.TCPDSACKRecv").filter(|count| *count > 0) {
        finding = finding.evidence(format!(
            "{vain} arrived although the first copy had, too: the path reorders or delays."
        ));
    }
    let Some(measured) = context.tcp else {
        return finding
            .evidence("nearpath measure tcp names the connections, and what limits each.");
    };
    let senders = senders(measured, |_| true);
    if senders.is_empty() {
        return finding.evidence("None of the connections that were measured sent one.");
    }
    named(finding, &senders)
}

/// The finding about connections that lose much of what they send, on a host that loses little.
fn of_connections(measured: &TcpMeasurement) -> Option<Finding> {
    let loses = |c: &TcpConnection| {
        let share = c.interval.retransmit_share().unwrap_or(0.0);
        share >= OF_CONNECTION
            && per_second(measured, c.interval.retransmits) >= OF_CONNECTION_PER_SECOND
    };
    let senders = senders(measured, loses);
    senders.first()?;
    let again = total(senders.iter().map(|c| c.interval.retransmits));
    let sent = total(senders.iter().map(|c| c.interval.segments_sent));
    let count = text::count(senders.len() as u64, "connection");
    let title = format!("{count} retransmitted {again} of {sent} TCP segments");
    let finding = Finding::new(Severity::Info, title)
        .share(ratio(again, sent), "segments of these connections");
    Some(named(finding, &senders))
}

/// The connections that retransmitted, those that did most first.
fn senders(
    measured: &TcpMeasurement,
    is_wanted: impl Fn(&TcpConnection) -> bool,
) -> Vec<&TcpConnection> {
    let wanted = |c: &&TcpConnection| c.interval.retransmits > 0 && is_wanted(c);
    let mut senders: Vec<&TcpConnection> = measured.connections.iter().filter(wanted).collect();
    sort_by_figure(&mut senders, |c| c.interval.retransmits);
    senders
}

/// Adds where the retransmissions went, and why they were sent.
fn named(mut finding: Finding, senders: &[&TcpConnection]) -> Finding {
    let of = |count: fn(&TcpConnection) -> u64| total(senders.iter().map(|c| count(c)));
    let again = of(|c| c.interval.retransmits);
    if senders.len() > 1 {
        finding = finding.evidence(format!(
            "{again} by {} connections, with {}.",
            senders.len(),
            remotes(senders)
        ));
    }
    if let Some(why) = reasons(senders) {
        finding = finding.evidence(why);
    }
    let spurious = of(|c| c.interval.spurious_retransmits);
    if let Some(share) = ratio(spurious, again).filter(|share| *share >= SPURIOUS) {
        finding = finding.evidence(format!(
            "{} of them were not necessary: the path reorders segments, or delays them for longer \
             than the timeout.",
            text::percent(share.min(1.0))
        ));
    }
    add_evidence(finding, sentences(senders, figures))
}

/// How the losses were found, if it is known.
fn reasons(senders: &[&TcpConnection]) -> Option<String> {
    let reasons = || senders.iter().filter_map(|c| c.retransmit_reasons);
    let fast = total(reasons().map(|of| of.fast));
    let timeout = total(reasons().map(|of| of.timeout));
    let probe = total(reasons().map(|of| of.probe));
    (total([fast, timeout, probe]) > 0).then(|| {
        format!(
            "Sent because of acknowledgements: {fast}; after a timeout: {timeout}; as tail loss \
             probes: {probe}."
        )
    })
}

fn figures(c: &TcpConnection) -> String {
    let counts = &c.interval;
    let share = counts
        .retransmit_share()
        .map_or_else(String::new, |share| format!(" ({})", text::percent(share.min(1.0))));
    let rtt = c.rtt_ns.map_or_else(String::new, |ns| format!(", RTT {}", text::time(ns)));
    format!("{} of {} segments{share}{rtt}", counts.retransmits, counts.segments_sent)
}
