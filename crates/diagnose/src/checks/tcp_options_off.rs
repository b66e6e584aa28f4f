//! TCP options that are off, on connections for which they matter.
//!
//! Input: the sysctls of this host, and the measured connections. Output: a finding for each option: whether this host
//! has it off, or the peers do not take it, and which connections suffer.
//!
//! Both ends must offer an option in the handshake (RFC 7323, RFC 2018). Window scaling matters where more than 64
//! KiB are in flight, since the window has 16 bits; selective acknowledgements where segments are lost, since without
//! them a sender learns of one loss per round-trip time; timestamps for the receiver's estimate of the round-trip
//! time, and against old duplicates.
//!
//! Rules: RFC 7323, RFC 2018; Documentation/networking/ip-sysctl.rst (`tcp_window_scaling`, `tcp_sack`,
//! `tcp_timestamps`); `cookie_timestamp_decode` of net/ipv4/syncookies.c: with SYN cookies, options survive in
//! timestamps only.

use crate::connections::{
    add_evidence, bytes_in_flight, has_queue, is_limited, is_receiving, lacks_scaling, remotes,
    sentences, sort_by_figure, with_others,
};
use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::tcp::{TcpConnection, TcpLimit, TcpMeasurement};
use nearpath_model::{Finding, ProposedChange, Severity, Sysctl};

pub(super) const CHECK: Check = Check::new(
    "tcp_options_off",
    "window scaling, selective acknowledgements or timestamps that are off",
    run,
);

/// The largest window without scaling.
const LARGEST_WINDOW: u64 = 65_535;
/// From this part of it in flight, the window is what limits.
const FULL: f64 = 0.8;
/// Losses of a connection from which selective acknowledgements matter: a share of its segments, and a number.
const LOSSES: f64 = 1e-3;
const LEAST_LOSSES: u64 = 10;

/// An option.
struct Kind {
    sysctl: Sysctl,
    name: &'static str,
    /// What is lost without it.
    cost: &'static str,
    /// Whether a connection goes without it although it matters to it.
    lacks: fn(&TcpConnection) -> bool,
}

const KINDS: [Kind; 3] = [
    Kind {
        sysctl: Sysctl::TcpWindowScaling,
        name: "window scaling",
        cost: "Without it at most 64 KiB are in flight, whatever the buffers.",
        lacks: |c| lacks_scaling(c) && fills_window(c),
    },
    Kind {
        sysctl: Sysctl::TcpSack,
        name: "SACK",
        cost: "Without them a sender repairs one loss per round-trip time, or waits for a timeout.",
        lacks: |c| c.options.is_some_and(|options| !options.sack) && loses(c),
    },
    Kind {
        sysctl: Sysctl::TcpTimestamps,
        name: "timestamps",
        cost: "Without them a receiver can hardly measure the round-trip time, which sizes its buffer.",
        lacks: |_| false,
    },
];

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    let is_known = KINDS.iter().any(|kind| context.sysctl(kind.sysctl.name()).is_some());
    if !is_known && context.tcp.is_none() {
        let why = context.why_unknown("sysctl", "net.ipv4");
        outcome.not_checked(format!("the sysctls of TCP are unknown{why}"));
        return outcome;
    }
    outcome.findings.extend(KINDS.iter().filter_map(|kind| finding(context, kind)));
    outcome
}

/// Whether a connection fills the window that it can have without scaling.
fn fills_window(c: &TcpConnection) -> bool {
    let in_flight = bytes_in_flight(c).unwrap_or(0);
    is_limited(c, TcpLimit::ReceiveWindow)
        && in_flight as f64 >= FULL * LARGEST_WINDOW as f64
        && !has_queue(c)
}

/// Whether a connection loses segments that it sends.
fn loses(c: &TcpConnection) -> bool {
    !is_receiving(c)
        && c.interval.retransmits >= LEAST_LOSSES
        && c.interval.retransmit_share().is_some_and(|share| share >= LOSSES)
}

fn finding(context: &Context<'_>, kind: &Kind) -> Option<Finding> {
    let is_off_here = context.sysctl(kind.sysctl.name()) == Some(0);
    let lacking = context.tcp.map(|measured| lacking(measured, kind)).unwrap_or_default();
    let title = match (is_off_here, lacking.len() as u64) {
        (false, 0) => return None,
        (true, 0) => format!("{} off on this host", is_or_are(kind.name)),
        (true, count) => format!(
            "{} off on this host, which limits {}",
            is_or_are(kind.name),
            text::count(count, "connection")
        ),
        (false, count) => {
            let count = text::count(count, "connection");
            format!("{count} without {}, which its peer lacks", kind.name)
        }
    };
    // What the peer does not take is not changed here; without a connection that suffers there is no harm.
    let suffers = !lacking.is_empty() && is_off_here;
    let severity = if suffers { severity_of(context.tcp, &lacking) } else { Severity::Info };
    let mut finding = Finding::new(severity, title).evidence(kind.cost);
    if is_off_here {
        finding =
            finding.evidence(format!("{} is 0: no connection of this host has it.", kind.sysctl));
    } else {
        let sysctl = match context.sysctl(kind.sysctl.name()) {
            Some(_) => format!("{} is on", kind.sysctl),
            None => format!("{} is unknown", kind.sysctl),
        };
        finding = finding.evidence(format!(
            "{sysctl}: {} did not offer it, or a middlebox removed it, or it was off here when the \
             connection began.",
            remotes(&lacking)
        ));
        finding = add_evidence(finding, of_cookies(context));
    }
    finding = add_evidence(finding, sentences(&lacking, figures));
    Some(match is_off_here {
        true => finding.change(ProposedChange::new(
            kind.sysctl,
            Some("0".to_owned()),
            "1",
            "It is on by default; connections that begin afterwards have it, if their peer does.",
        )),
        false => finding,
    })
}

/// SYN cookies as a reason: the peer may have offered the option.
fn of_cookies(context: &Context<'_>) -> Option<String> {
    let received = context.tcp?.counters.get("TcpExtSyncookiesRecv").copied().filter(|n| *n > 0)?;
    Some(format!(
        "{} began with a SYN cookie, which keeps options only if the peer has timestamps.",
        text::count(received, "connection")
    ))
}

fn is_or_are(name: &str) -> String {
    let mut capital = name.to_owned();
    if let Some(first) = capital.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    format!("{capital} {}", if name.ends_with('s') { "are" } else { "is" })
}

fn lacking<'a>(measured: &'a TcpMeasurement, kind: &Kind) -> Vec<&'a TcpConnection> {
    let mut lacking: Vec<&TcpConnection> =
        with_others(measured).filter(|c| (kind.lacks)(c)).collect();
    sort_by_figure(&mut lacking, |c| c.interval.bytes());
    lacking
}

/// What is off here, and connections need, costs them as any other limit does.
fn severity_of(measured: Option<&TcpMeasurement>, lacking: &[&TcpConnection]) -> Severity {
    let limited = |limit| {
        let all = lacking.iter().copied();
        measured.map_or(0.0, |m| crate::connections::limited_per_second(m, all.clone(), limit))
    };
    let seconds = limited(TcpLimit::ReceiveWindow)
        + limited(TcpLimit::CongestionWindow)
        + limited(TcpLimit::Timeouts);
    severity::of_limit(seconds, true)
}

fn figures(c: &TcpConnection) -> String {
    let counts = &c.interval;
    let window = if is_receiving(c) { c.receive_window_bytes } else { c.send_window_bytes };
    let parts = [
        window.map(|window| format!("window {}", text::bytes(window.into()))),
        bytes_in_flight(c).map(|bytes| format!("rate × RTT {}", text::bytes(bytes))),
        (counts.retransmits > 0).then(|| {
            format!("{} of {} segments retransmitted", counts.retransmits, counts.segments_sent)
        }),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}
