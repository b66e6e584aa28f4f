//! Connections whose segments are much smaller than their path or their interface allows.
//!
//! Input: the measured connections, the MTU of interfaces, and the sysctls of MTU probing. Output: a finding for each
//! cause: probing has found that large packets vanish (a black hole); the peer, or a router that clamps, announced a
//! small segment size; the path is narrower than the interface.
//!
//! Only connections that send full segments count: for a few bytes now and then the size does not matter. Of the
//! interfaces the smallest MTU counts, since it is unknown which one a connection uses.
//!
//! Rules: RFC 9293, 3.7.1 (MSS = MTU - headers); `tcp_mtu_to_mss` and `tcp_current_mss` of net/ipv4/tcp_output.c (the
//! size of segments excludes options, 12 bytes of timestamps); `tcp_mtu_probing` of net/ipv4/tcp_timer.c and
//! RFC 4821 (probing starts at `tcp_base_mss` after timeouts); RFC 2923 (black holes).

use crate::connections::{add_evidence, per_second, sentences, sort_by_figure, with_others};
use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::tcp::{TcpConnection, TcpMeasurement};
use nearpath_model::{Finding, NicKind, Severity};

pub(super) const CHECK: Check = Check::new(
    "tcp_mss_mismatch",
    "connections whose segments are much smaller than their path or interface allows",
    run,
)
.of(nearpath_model::Whose::Network);

/// Smaller than this part of what could be is no tunnel's header, but another kind of path.
const FAR_BELOW: f64 = 0.75;
/// Fewer segments than this in the interval are no bulk transfer.
const ENOUGH_SEGMENTS: u64 = 100;
/// From this part of the segment size on average, segments are full.
const FULL: f64 = 0.8;
/// The default of `tcp_base_mss` (`TCP_BASE_MSS`, include/net/tcp.h).
const BASE_MSS: u64 = 1024;
/// How often it may be halved until it is too small for the floor (`tcp_mtu_probe_floor`, 48).
const HALVED: u32 = 5;
const PROBING: &str = "net.ipv4.tcp_mtu_probing";

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    let Some(measured) = context.tcp_measured(&mut outcome) else { return outcome };
    let mtu = smallest_mtu(context);
    for cause in [Cause::BlackHole, Cause::Announced, Cause::Path] {
        let is_of = |c: &&TcpConnection| self::cause(context, c, mtu) == Some(cause);
        let found: Vec<&TcpConnection> = with_others(measured).filter(is_of).collect();
        outcome.findings.extend(finding(measured, found, cause, mtu));
    }
    outcome
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    BlackHole,
    Announced,
    Path,
}

/// The smallest MTU of the interfaces that lead to other hosts.
fn smallest_mtu(context: &Context<'_>) -> Option<u32> {
    let others = context.nics().filter(|nic| nic.kind != NicKind::Loopback);
    others.filter_map(|nic| nic.mtu_bytes).min()
}

/// What a full segment of the path carries, without the options that this connection uses.
fn segment_of(c: &TcpConnection, mtu: u32) -> u32 {
    let headers = if c.dst.to_canonical().is_ipv4() { 40 } else { 60 };
    let timestamps = if c.options.is_some_and(|options| options.timestamps) { 12 } else { 0 };
    mtu.saturating_sub(headers + timestamps)
}

fn is_far_below(value: u32, of: u32) -> bool {
    f64::from(value) < FAR_BELOW * f64::from(of)
}

fn cause(context: &Context<'_>, c: &TcpConnection, mtu: Option<u32>) -> Option<Cause> {
    let (mss, pmtu) = (c.mss.filter(|mss| *mss > 0)?, c.pmtu?);
    let counts = &c.interval;
    let is_full = counts.segments_sent >= ENOUGH_SEGMENTS
        && counts.bytes_sent as f64 >= FULL * f64::from(mss) * counts.segments_sent as f64;
    if !is_full {
        return None;
    }
    if is_far_below(mss, segment_of(c, pmtu)) {
        // With mode 2 every connection starts at the base.
        let probes = context.sysctl(PROBING) == Some(1);
        return Some(if probes && is_probed(context, mss) {
            Cause::BlackHole
        } else {
            Cause::Announced
        });
    }
    mtu.is_some_and(|mtu| is_far_below(pmtu, mtu)).then_some(Cause::Path)
}

/// Whether probing has set this size: the base, which each further black hole halves. A size that a peer announced is
/// rarely one of them.
fn is_probed(context: &Context<'_>, mss: u32) -> bool {
    let base = context.sysctl("net.ipv4.tcp_base_mss").unwrap_or(BASE_MSS);
    (0..HALVED).any(|times| base >> times == u64::from(mss))
}

fn finding(
    measured: &TcpMeasurement,
    mut found: Vec<&TcpConnection>,
    cause: Cause,
    mtu: Option<u32>,
) -> Option<Finding> {
    sort_by_figure(&mut found, |c| c.interval.segments_sent);
    found.first()?;
    let count = text::count(found.len() as u64, "connection");
    let sent = crate::counters::total(found.iter().map(|c| c.interval.segments_sent));
    let (severity, title, said) = match cause {
        Cause::BlackHole => (
            severity::of_traffic(Some(per_second(measured, sent))),
            format!("Large packets vanish on the path of {count}"),
            format!(
                "{PROBING} is on and has lowered the segments to tcp_base_mss after timeouts: a router \
                 drops larger packets, and its ICMP messages do not arrive."
            ),
        ),
        Cause::Announced => (
            Severity::Info,
            format!("The peer of {count} takes small segments only"),
            "The peer's interface has a smaller MTU, or a router clamps the MSS option: more \
             packets, and more CPU time, for the same bytes."
                .to_owned(),
        ),
        Cause::Path => (
            Severity::Info,
            format!("The path of {count} is narrower than the interface"),
            format!(
                "Path MTU discovery found it, with ICMP messages of a router; the smallest MTU of an \
                 interface here is {}. This host may announce larger segments than the path \
                 carries: the peer needs these messages, too.",
                mtu.unwrap_or(0)
            ),
        ),
    };
    let finding = Finding::new(severity, title).evidence(said);
    Some(add_evidence(finding, sentences(&found, figures)))
}

fn figures(c: &TcpConnection) -> String {
    let size = |what: &str, bytes: Option<u32>| Some(format!("{what} {}", bytes?));
    let parts = [
        size("segments of", c.mss),
        size("path MTU", c.pmtu),
        size("announces", c.advertised_mss),
        size("receives", c.receive_mss.filter(|_| c.interval.segments_received > ENOUGH_SEGMENTS)),
        (c.interval.retransmits > 0).then(|| format!("{} retransmitted", c.interval.retransmits)),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}
