//! Send queues that hold seconds of data that was not sent yet.
//!
//! Input: the measured connections, and `tcp_notsent_lowat`. Output: at most one finding. What an application has
//! written it cannot take back: an answer that is more urgent waits behind it, and it takes memory. A transfer does
//! not become faster by it.
//!
//! It is harmless to a download that nothing else shares a connection with, which is why it is mostly `info`. A peer
//! that does not read is another matter (`reader` of `measure tcp`), and so are connections within this host.
//!
//! Rules: Documentation/networking/ip-sysctl.rst and tcp(7) (`tcp_notsent_lowat`, `TCP_NOTSENT_LOWAT`);
//! `tcp_stream_memory_free` of net/ipv4/tcp.c: a socket is writable only while less than that is unsent.

use crate::connections::{add_evidence, is_limited, sentences, sort_by_figure, with_others};
use crate::counters::{ratio, total};
use crate::{Check, CheckOutcome, Context, text};
use nearpath_model::tcp::{TcpConnection, TcpLimit};
use nearpath_model::{Finding, ProposedChange, Severity, Sysctl};

pub(super) const CHECK: Check =
    Check::new("tcp_unsent_data", "send queues that hold seconds of data", run)
        .of(nearpath_model::Whose::Application);

const LOWAT: Sysctl = Sysctl::TcpNotsentLowat;
/// The least that is proposed, and the most.
const LEAST_LOWAT: u64 = 128 << 10;
const MOST_LOWAT: u64 = 1 << 20;
/// Data for so long stays ahead of what is sent, at the rate of the fastest connection: an application that is woken
/// when half of it is gone has 5 ms to write more.
const AHEAD_S: f64 = 0.01;
/// Less than this is no queue, at any rate.
const LEAST_BYTES: u64 = 2 * LEAST_LOWAT;
/// Seconds of data from which a reply would be late.
const LEAST_S: f64 = 1.0;
/// So many connections on which replies wait are a warning.
const MANY: usize = 10;
/// As is this part of the memory at which TCP is under pressure (second number of `tcp_mem`).
const MUCH_MEMORY: f64 = 0.1;
/// `tcp_mem` is in pages, of at least this size.
const PAGE: u64 = 4096;

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    let Some(measured) = context.tcp_measured(&mut outcome) else { return outcome };
    let is_late = |c: &&TcpConnection| {
        unsent(c) >= LEAST_BYTES
            && seconds(c).is_some_and(|seconds| seconds >= LEAST_S)
            && !is_limited(c, TcpLimit::Reader)
            && !c.closed
    };
    let queued: Vec<&TcpConnection> = with_others(measured).filter(is_late).collect();
    let fastest = measured.connections.iter().filter_map(|c| c.delivery_rate_bps).max();
    outcome.findings.extend(finding(context, queued, proposed(fastest.unwrap_or(0))));
    outcome
}

fn unsent(c: &TcpConnection) -> u64 {
    c.unsent_bytes.unwrap_or(0).into()
}

/// How long it takes to send what is unsent, at the rate of delivery; `None` if nothing is delivered.
fn seconds(c: &TcpConnection) -> Option<f64> {
    let rate = c.delivery_rate_bps.filter(|rate| *rate > 0)?;
    Some(unsent(c) as f64 * 8.0 / rate as f64)
}

/// Whether the peer asks for something meanwhile, whose answer waits.
fn is_asked(c: &TcpConnection) -> bool {
    c.interval.segments_received >= 2
}

/// What to let applications write ahead, a power of two.
fn proposed(fastest_bps: u64) -> u64 {
    let ahead = (fastest_bps as f64 / 8.0 * AHEAD_S) as u64;
    ahead.clamp(LEAST_LOWAT, MOST_LOWAT).next_power_of_two()
}

fn finding(context: &Context<'_>, mut queued: Vec<&TcpConnection>, lowat: u64) -> Option<Finding> {
    let in_ms = |c: &TcpConnection| (seconds(c).unwrap_or(0.0) * 1e3) as u64;
    sort_by_figure(&mut queued, in_ms);
    queued.first()?;
    let bytes = total(queued.iter().map(|c| unsent(c)));
    let pressure = context.three("net.ipv4.tcp_mem").map(|[_, pages, _]| pages);
    let part = pressure.and_then(|pages| ratio(bytes, pages.saturating_mul(PAGE)));
    let asked = queued.iter().filter(|c| is_asked(c)).count();
    let severity = match asked >= MANY || part.is_some_and(|part| part >= MUCH_MEMORY) {
        true => Severity::Warning,
        false => Severity::Info,
    };
    let count = text::count(queued.len() as u64, "connection");
    let mut finding =
        Finding::new(severity, format!("The send queue of {count} holds seconds of unsent data"))
            .evidence(format!("{} are written and not sent.", text::bytes(bytes)));
    if let Some(part) = part {
        finding = finding.evidence(format!(
            "That is {} of the memory at which TCP comes under pressure (net.ipv4.tcp_mem).",
            text::percent(part)
        ));
    }
    if asked > 0 {
        let asked = text::count(asked as u64, "connection");
        finding = finding
            .evidence(format!("On {asked} the peer sends data, too: its answer waits behind."));
    }
    finding = add_evidence(finding, sentences(&queued, figures));
    let now = context.host.sysctls.get(LOWAT.name()).map(|text| text.trim());
    // Older kernels print the default, 2^32 - 1, as -1.
    let is_more = |now: &&str| *now == "-1" || now.parse::<u64>().is_ok_and(|now| now > lowat);
    Some(match now.filter(is_more) {
        Some(now) => finding.change(ProposedChange::new(
            LOWAT,
            Some(now.to_owned()),
            lowat.to_string(),
            "Applications then write no more than this ahead of what is sent. The data in flight is \
             not limited by it.",
        )),
        None => finding.evidence(format!(
            "{LOWAT} is {}: the application sets TCP_NOTSENT_LOWAT itself, or began earlier.",
            now.map_or_else(|| "unknown".to_owned(), text::clean)
        )),
    })
}

fn figures(c: &TcpConnection) -> String {
    let seconds = seconds(c).map(|seconds| format!(", {} s of data", text::digits(seconds)));
    let rate = c.delivery_rate_bps.map(nearpath_model::units::bit_rate);
    format!(
        "{} unsent{}, delivered at {}",
        text::bytes(unsent(c)),
        seconds.unwrap_or_default(),
        rate.unwrap_or_default()
    )
}
