//! Connections dropped because a queue of a listener was full.
//!
//! Input: the counters of TCP, over the interval when there is an earlier reading, and the measured listeners.
//! Output: at most one finding.
//!
//! A listener has two queues, and its backlog limits both: connections that are not accepted yet, and SYNs whose
//! handshake is not complete. The backlog is what the server requests in listen(2), at most `net.core.somaxconn`:
//! which of the two limits shows only at the listener itself. `net.ipv4.tcp_max_syn_backlog` limits the second queue
//! only without SYN cookies.
//!
//! Rules: Documentation/networking/snmp_counter.rst (`TcpExtListenOverflows`, `TcpExtListenDrops`,
//! `TcpExtTCPReqQFullDrop`, `TcpExtTCPReqQFullDoCookies`); `tcp_conn_request` of net/ipv4/tcp_input.c,
//! `tcp_v4_syn_recv_sock` of net/ipv4/tcp_ipv4.c, `inet_csk_reqsk_queue_is_full` of
//! include/net/inet_connection_sock.h; listen(2).

use crate::buffers;
use crate::connections::listener_name;
use crate::counters::ratio;
use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::tcp::TcpListener;
use nearpath_model::{Finding, ProposedChange, Severity, Sysctl};
use std::cmp::Reverse;

pub(super) const CHECK: Check =
    Check::new("listen_overflows", "connections dropped as a listener's queue was full", run);

/// Beyond this many waiting connections a longer queue only makes them late.
const LARGEST_QUEUE: u64 = 65_535;
/// Listeners that are named.
const NAMED: usize = 3;
/// SYN cookies in the interval that are worth a word, although nothing was lost.
const COOKIES: u64 = 100;
/// So many times more SYNs than connections are a flood: clients complete their handshakes, or try a few times.
const FLOOD: u64 = 10;
const SOMAXCONN: Sysctl = Sysctl::Somaxconn;
const SYN_BACKLOG: Sysctl = Sysctl::TcpMaxSynBacklog;

/// What was counted.
#[derive(Debug, Clone, Copy)]
struct Counts {
    /// Connections and SYNs that were dropped.
    lost: u64,
    /// Those that found the queue of accept(2) full.
    overflows: u64,
    /// SYNs that were dropped as their queue was as long as the backlog.
    syns: u64,
    /// SYNs that were answered with a cookie for the same reason, and not lost.
    cookies: u64,
}

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    let overflows = context.counter("TcpExt.ListenOverflows");
    let drops = context.counter("TcpExt.ListenDrops");
    let (Some(overflows), Some(drops)) = (overflows, drops) else {
        let why = context.why_unknown("host", "counters");
        outcome.not_checked(format!("TcpExt.ListenOverflows is unknown{why}"));
        return outcome;
    };
    let counts = Counts {
        // Each overflow is a drop as well (`tcp_listendrop`).
        lost: drops.max(overflows),
        overflows,
        syns: context.counter("TcpExt.TCPReqQFullDrop").unwrap_or(0),
        cookies: context.counter("TcpExt.TCPReqQFullDoCookies").unwrap_or(0),
    };
    let is_cookies_only = counts.cookies >= COOKIES && context.earlier.is_some();
    if counts.lost > 0 || is_cookies_only {
        outcome.findings.push(finding(context, counts));
    }
    outcome
}

fn finding(context: &Context<'_>, counts: Counts) -> Finding {
    let Counts { lost, overflows, syns, cookies } = counts;
    let taken = context.counter("Tcp.PassiveOpens");
    let since = context.since();
    let is_flood = context.earlier.is_some()
        && cookies >= COOKIES
        && cookies >= taken.unwrap_or(0).max(lost).saturating_mul(FLOOD);
    let mut finding = if is_flood {
        let title =
            format!("{} answered with a cookie {since}: a SYN flood", text::count(cookies, "SYN"));
        let severity =
            severity::of_events(context, cookies).max(severity::of_loss(context, lost, taken));
        Finding::new(severity, title).evidence(format!(
            "{} opened meanwhile: most of these SYNs are of clients that do not complete the handshake. They cost CPU \
             time, and timers that send each SYN-ACK again.",
            were(taken.unwrap_or(0), "connection")
        ))
    } else if lost > 0 {
        let title = format!("{} dropped by listeners {since}", text::count(lost, "connection"));
        let share = taken.and_then(|taken| ratio(lost, taken.saturating_add(lost)));
        Finding::new(severity::of_loss(context, lost, taken), title)
            .share(share, "connections")
            .evidence(format!("{overflows} of them found the accept queue full (ListenOverflows)."))
    } else {
        let title = format!("{} answered with a cookie {since}", text::count(cookies, "SYN"));
        Finding::new(Severity::Info, title)
    };
    if syns > 0 {
        finding = finding.evidence(format!(
            "{} dropped: as many handshakes as the backlog were incomplete, and there are no SYN \
             cookies (TCPReqQFullDrop; net.ipv4.tcp_syncookies).",
            were(syns, "SYN")
        ));
    }
    if cookies > 0 {
        finding = finding.evidence(format!(
            "{} answered with a cookie, and not lost: as many handshakes as the backlog were \
             incomplete (TCPReqQFullDoCookies).",
            were(cookies, "SYN")
        ));
    }
    let others = lost.saturating_sub(overflows).saturating_sub(syns);
    if others > 0 && syns > 0 {
        finding = finding.evidence(format!("{others} for another reason."));
    }
    if is_flood {
        finding = finding.evidence(
            "Drop them before they reach TCP, by their source or rate (nftables with synproxy, XDP, the provider).",
        );
    }
    if lost > 0 {
        finding = finding.evidence("A client tries again after 1 s or more.");
    }
    let full = full_listeners(context);
    for listener in full.iter().take(NAMED) {
        finding = finding.evidence(seen(context, listener));
    }
    if full.len() > NAMED {
        let more = text::count((full.len() - NAMED) as u64, "more listener");
        finding = finding.evidence(format!("And {more} with a full queue."));
    }
    match (full.is_empty(), context.tcp) {
        (false, _) => {}
        (true, Some(_)) => {
            finding = finding.evidence(
                "No listener was seen with a full queue: it was full for less than the time between \
                 two readings, or the server has ended.",
            );
        }
        (true, None) => {
            finding = finding.evidence(
                "nearpath measure tcp names the listener, and whether net.core.somaxconn or the \
                 server limits it.",
            );
        }
    }
    finding.changes.extend(longer_queue(context, &full, overflows.max(syns).max(cookies)));
    finding.changes.extend(longer_syn_queue(context, &full, others));
    finding
}

/// `1 SYN was`, `4 SYNs were`.
fn were(count: u64, what: &str) -> String {
    format!("{} {}", text::count(count, what), if count == 1 { "was" } else { "were" })
}

/// The measured listeners that were full or dropped connections, those that dropped most first.
fn full_listeners<'a>(context: &Context<'a>) -> Vec<&'a TcpListener> {
    let listeners = context.tcp.map_or(&[] as &[_], |measured| measured.listeners.as_slice());
    let is_full = |l: &&TcpListener| l.full_share > 0.0 || l.drops.is_some_and(|drops| drops > 0);
    let mut full: Vec<&TcpListener> = listeners.iter().filter(is_full).collect();
    full.sort_by_key(|l| (Reverse((l.drops, l.backlog_max_seen)), l.src, l.sport, l.pid));
    full
}

/// A listener with its queue, and what limits it.
fn seen(context: &Context<'_>, listener: &TcpListener) -> String {
    let TcpListener { backlog_max_seen, backlog_limit, full_share, drops, .. } = listener;
    let name = listener_name(listener);
    let drops = drops.filter(|drops| *drops > 0).map(|drops| format!(", {drops} dropped"));
    let full = match *full_share > 0.0 {
        true => format!(", full in {} of the readings", text::percent(full_share.min(1.0))),
        false => String::new(),
    };
    let limit = u64::from(*backlog_limit);
    let who = match context.sysctl(SOMAXCONN.name()) {
        Some(now) if limit == now => format!("{SOMAXCONN} limits it"),
        Some(now) if limit < now => {
            format!("the server limits it in listen(2), {SOMAXCONN} is {now}")
        }
        Some(now) => format!("it began when {SOMAXCONN} was larger than {now}"),
        None => format!("{SOMAXCONN} is unknown"),
    };
    format!(
        "{name}: up to {backlog_max_seen} connections in a queue of {limit}{full}{}; {who}.",
        drops.unwrap_or_default()
    )
}

/// A larger `somaxconn`, if it limits a listener that was full.
fn longer_queue(
    context: &Context<'_>,
    full: &[&TcpListener],
    counted: u64,
) -> Option<ProposedChange> {
    let (now, after) = buffers::raised(context, SOMAXCONN, LARGEST_QUEUE)?;
    let is_limit = full.iter().any(|listener| u64::from(listener.backlog_limit) == now);
    (counted > 0 && is_limit).then(|| {
        ProposedChange::new(
            SOMAXCONN,
            Some(now.to_string()),
            after.to_string(),
            "A longer queue absorbs bursts. It takes effect when the server calls listen(2) again; a \
             server that is always too slow only makes clients wait longer.",
        )
    })
}

/// A larger `tcp_max_syn_backlog`, if that may be what SYNs were dropped for: without SYN cookies its last quarter is
/// kept for known peers, and the backlog of the listener allows more.
fn longer_syn_queue(
    context: &Context<'_>,
    full: &[&TcpListener],
    others: u64,
) -> Option<ProposedChange> {
    let (now, after) = buffers::raised(context, SYN_BACKLOG, LARGEST_QUEUE)?;
    let has_cookies = context.sysctl("net.ipv4.tcp_syncookies")? > 0;
    let reaches = |l: &&TcpListener| u64::from(l.backlog_limit) >= now - now / 4;
    (others > 0 && !has_cookies && full.iter().any(reaches)).then(|| {
        ProposedChange::new(
            SYN_BACKLOG,
            Some(now.to_string()),
            after.to_string(),
            "Without SYN cookies it limits incomplete handshakes before the backlog does.",
        )
    })
}
