//! Packets that IP and UDP dropped for want of a listener, a route or memory, or for a wrong checksum.
//!
//! Input: the counters of IP and UDP over the interval, which are those of nearpath's network namespace. Output: at most one
//! finding for each cause, unless enough packets that were followed were dropped for it: `packet_drops` reports their device.
//! Without packets that are followed (no root, an old kernel, a limit that leaves few), the counters are what there is. Full
//! receive buffers and queues of listeners are of `socket_buffers` and `listen_overflows`.
//!
//! Rules: include/net/dropreason-core.h; Documentation/networking/snmp_counter.rst; Documentation/networking/ip-sysctl.rst
//! (`rp_filter`, `udp_mem`); net/ipv4/fib_frontend.c (`__fib_validate_source`), net/ipv4/udp.c (`__udp4_lib_rcv`).

use crate::counters::{ratio, total};
use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::{Finding, Severity, StageDrop};

pub(super) const CHECK: Check = Check::new(
    "protocol_drops",
    "packets that IP and UDP counted as dropped: no listener, no route, no memory",
    run,
);

/// Packets per second below which a healthy host drops them as well.
const STRAY_PER_S: f64 = 1.0;
/// Packets that were followed, from which `packet_drops` has the finding.
const FOLLOWED: u64 = 20;

/// Why packets were dropped.
struct Cause {
    /// The kernel's reasons for it, if `packet_drops` has them.
    reasons: &'static [&'static str],
    /// The kernel's counters.
    counters: &'static [&'static str],
    /// What arrived of the same kind.
    arrived: &'static [&'static str],
    /// After `12 packets dropped in the interval: `.
    what: &'static str,
    advice: &'static str,
    /// At most this severe: a stranger may send them.
    at_most: Severity,
}

const UDP: &[&str] = &["Udp.InDatagrams", "Udp6.InDatagrams"];
const CAUSES: &[Cause] = &[
    Cause {
        reasons: &[],
        counters: &["Udp.MemErrors", "Udp6.MemErrors"],
        arrived: UDP,
        what: "memory of UDP exhausted",
        advice: "The receive buffers of all UDP sockets together hold as many pages as the third number of \
                 net.ipv4.udp_mem: a reader that does not read, or limits that are too low for the buffers.",
        at_most: Severity::Critical,
    },
    Cause {
        reasons: &["UDP_CSUM", "TCP_CSUM", "IP_CSUM", "ICMP_CSUM", "SKB_CSUM"],
        counters: &["Udp.InCsumErrors", "Udp6.InCsumErrors"],
        arrived: UDP,
        what: "wrong checksum",
        advice: "Damaged on the way, or sent without a checksum by a device whose offload does not work: ethtool -K \
                 DEV tx off on the sender shows which.",
        at_most: Severity::Critical,
    },
    Cause {
        reasons: &["NO_SOCKET"],
        counters: &["Udp.NoPorts", "Udp6.NoPorts"],
        arrived: UDP,
        what: "nothing listens on their port",
        advice: "The server has ended, listens on another address, or is in another network namespace; a stranger may \
                 also try ports. ss -ulnp lists what listens, and nearpath measure drops counts by protocol and device.",
        at_most: Severity::Warning,
    },
    Cause {
        reasons: &["IP_RPFILTER"],
        counters: &["TcpExt.IPReversePathFilter"],
        arrived: &[],
        what: "reverse path filter (rp_filter)",
        advice: "Their answers would leave by another device. Where routes differ by direction on purpose, \
                 sysctl -w net.ipv4.conf.DEV.rp_filter=2 accepts a source that any device reaches; the larger of that \
                 and net.ipv4.conf.all.rp_filter is in force.",
        at_most: Severity::Warning,
    },
    Cause {
        reasons: &["IP_OUTNOROUTES", "IP_INNOROUTES"],
        counters: &["Ip.OutNoRoutes", "IpExt.InNoRoutes"],
        arrived: &[],
        what: "no route",
        advice: "ip route get ADDRESS shows which route an address has.",
        at_most: Severity::Warning,
    },
];

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    if context.host.counters.is_empty() {
        let why = context.why_unknown("host", "counters");
        outcome.not_checked(format!("the counters of IP and UDP are unknown{why}"));
        return outcome;
    }
    outcome.findings = CAUSES.iter().filter_map(|cause| finding(context, cause)).collect();
    outcome
}

/// Counters since boot tell nothing of the present: strangers send all the time.
fn finding(context: &Context<'_>, cause: &Cause) -> Option<Finding> {
    context.earlier?;
    let sum = |names: &[&str]| total(names.iter().filter_map(|name| context.counter(name)));
    let lost = sum(cause.counters);
    if context.per_second(lost) < STRAY_PER_S || followed(context, cause.reasons) >= FOLLOWED {
        return None;
    }
    let arrived = Some(sum(cause.arrived)).filter(|_| !cause.arrived.is_empty());
    let severity = severity::of_loss(context, lost, arrived).min(cause.at_most);
    let (packets, since) = (text::count(lost, "packet"), context.since());
    let title = format!("{packets} dropped {since}: {}", cause.what);
    let finding = Finding::new(severity, title).evidence(cause.advice);
    let Some(arrived) = arrived else { return Some(finding) };
    let all = arrived.saturating_add(lost);
    Some(finding.share(ratio(lost, all), text::short(all) + " that arrived"))
}

/// Packets that were followed until they were dropped for one of these reasons.
fn followed(context: &Context<'_>, reasons: &[&str]) -> u64 {
    let drops = context.measurement.into_iter().flat_map(|measurement| &measurement.drops);
    let is_of = |drop: &&StageDrop| drop.reason.as_deref().is_some_and(|r| reasons.contains(&r));
    total(drops.filter(is_of).map(|drop| drop.packets))
}
