//! Packets that IP, UDP, a firewall or a neighbour table dropped: by a rule, or for want of a listener, a route or memory.
//!
//! Input: the counters of IP and UDP over the interval, which are those of nearpath's network namespace; the drops of
//! packets that were followed, which are those of all. Output: at most one finding for each cause. Full receive buffers
//! and queues of listeners are of `socket_buffers` and `listen_overflows`.
//!
//! Rules: include/net/dropreason-core.h; Documentation/networking/snmp_counter.rst; Documentation/networking/ip-sysctl.rst
//! (`rp_filter`, `udp_mem`); net/ipv4/fib_frontend.c (`__fib_validate_source`), net/ipv4/udp.c (`__udp4_lib_rcv`),
//! net/core/neighbour.c (`__neigh_event_send`).

use crate::counters::{ratio, total};
use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::{Finding, Severity, StageDrop};
use std::collections::BTreeSet;

pub(super) const CHECK: Check = Check::new(
    "protocol_drops",
    "packets dropped by a rule, or for want of a listener, a route or memory",
    run,
);

/// Packets per second below which a healthy host drops them as well.
const STRAY_PER_S: f64 = 1.0;
/// Devices that are named.
const NAMED: usize = 3;

/// Why packets were dropped.
struct Cause {
    /// The kernel's reasons, of packets that were followed.
    reasons: &'static [&'static str],
    /// The kernel's counters.
    counters: &'static [&'static str],
    /// What arrived of the same kind.
    arrived: &'static [&'static str],
    /// After `12 packets dropped in the interval: `.
    what: &'static str,
    advice: &'static str,
    /// At most this severe: a rule may be meant to drop packets, and a stranger may send them.
    at_most: Severity,
}

const UDP: &[&str] = &["Udp.InDatagrams", "Udp6.InDatagrams"];
const CAUSES: &[Cause] = &[
    Cause {
        reasons: &["PROTO_MEM"],
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
                 DEV tx off on the sender tells.",
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
        reasons: &["NETFILTER_DROP"],
        counters: &[],
        arrived: &[],
        what: "firewall rule (nftables, iptables)",
        advice: "nft list ruleset, or iptables -nvL, shows the rules; nft monitor trace follows a packet through them.",
        at_most: Severity::Info,
    },
    Cause {
        reasons: &["NEIGH_FAILED", "NEIGH_QUEUEFULL", "NEIGH_CREATEFAIL"],
        counters: &[],
        arrived: &[],
        what: "next hop does not answer (ARP, ND)",
        advice: "ip neigh show nud failed lists them; where the table is full, net.ipv4.neigh.default.gc_thresh3 limits it.",
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
    Cause {
        reasons: &["PKT_TOO_BIG"],
        counters: &[],
        arrived: &[],
        what: "larger than the MTU",
        advice: "ip link shows the MTU of each device; a path whose MTU shrinks needs ICMP's \"fragmentation needed\" to \
                 get through, or net.ipv4.tcp_mtu_probing=1.",
        at_most: Severity::Warning,
    },
];

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    if context.host.counters.is_empty() && context.measurement.is_none() {
        let why = context.why_unknown("host", "counters");
        outcome.not_checked(format!("the counters of IP and UDP are unknown{why}"));
        return outcome;
    }
    outcome.findings = CAUSES.iter().filter_map(|cause| finding(context, cause)).collect();
    outcome
}

/// Counters since boot tell nothing of the present: strangers send all the time.
fn finding(context: &Context<'_>, cause: &Cause) -> Option<Finding> {
    let sum = |names: &[&str]| total(names.iter().filter_map(|name| context.counter(name)));
    let counted = if context.earlier.is_some() { sum(cause.counters) } else { 0 };
    let followed = followed(context, cause.reasons);
    let in_packets = total(followed.iter().map(|drop| drop.packets));
    let by_counter = (context.per_second(counted) >= STRAY_PER_S).then(|| {
        let arrived = Some(sum(cause.arrived)).filter(|_| !cause.arrived.is_empty());
        (counted, arrived, severity::of_loss(context, counted, arrived), context.since())
    });
    let by_packets = || {
        let measurement = context.measurement?;
        let arrived = measurement.packets.completed;
        let rate = in_packets as f64 / measurement.observed_time_s().max(f64::MIN_POSITIVE);
        let severity = severity::of_followed_loss(measurement, in_packets, arrived);
        (rate >= STRAY_PER_S).then_some((in_packets, Some(arrived), severity, "while measured"))
    };
    let (lost, arrived, severity, when) = by_counter.or_else(by_packets)?;
    let share = arrived.and_then(|arrived| ratio(lost, arrived.saturating_add(lost)));
    let title = format!("{} dropped {when}: {}", text::count(lost, "packet"), cause.what);
    let mut finding = Finding::new(severity.min(cause.at_most), title).evidence(cause.advice);
    if let Some(arrived) = arrived {
        let all = text::short(arrived.saturating_add(lost));
        finding = finding.share(share, all + " that arrived");
    }
    let devices: BTreeSet<&str> =
        followed.iter().filter_map(|drop| drop.device.as_deref()).collect();
    if !devices.is_empty() {
        let names: Vec<String> = devices.iter().copied().take(NAMED).map(text::clean).collect();
        let more = devices.len().saturating_sub(NAMED);
        let others = if more > 0 { format!(" and {more} more") } else { String::new() };
        let of = text::count(in_packets, "packet");
        finding = finding.evidence(format!(
            "{of} that were followed came from or were on {}{others}.",
            names.join(", ")
        ));
    }
    Some(finding)
}

fn followed<'a>(context: &Context<'a>, reasons: &[&str]) -> Vec<&'a StageDrop> {
    let drops = context.measurement.into_iter().flat_map(|measurement| &measurement.drops);
    let is_of = |drop: &&StageDrop| drop.reason.as_deref().is_some_and(|r| reasons.contains(&r));
    drops.filter(is_of).collect()
}
