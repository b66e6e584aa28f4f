//! Packets that IP and UDP dropped: no listener, no route, no memory, a wrong checksum, fragments without their rest.
//!
//! Input: the counters of IP and UDP over the interval, which are those of nearpath's network namespace. Output: at most one
//! finding for each cause, unless enough packets were seen to be dropped for it: `packet_drops` reports their device.
//! Without them (no root, an old kernel), the counters are what there is. Full receive buffers and queues of listeners are
//! of `socket_buffers` and `listen_overflows`.
//!
//! Counters since boot are reported only of what no stranger can cause, and from a hundredth of all.
//!
//! Rules: include/net/dropreason-core.h; RFC 4293 (the names of the counters); Documentation/networking/snmp_counter.rst;
//! Documentation/networking/ip-sysctl.rst (`rp_filter`, `udp_mem`, `ipfrag_*`); net/ipv4/fib_frontend.c
//! (`__fib_validate_source`), net/ipv4/udp.c (`__udp4_lib_rcv`), net/ipv4/ip_output.c (`ip_send_skb`),
//! net/ipv4/ip_fragment.c (`ip_expire`, `ip_defrag`).

use super::packet_drops;
use crate::counters::{ratio, total};
use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::drops::Drop;
use nearpath_model::{Finding, Severity, StageDrop};

pub(super) const CHECK: Check = Check::new(
    "protocol_drops",
    "packets that IP and UDP counted as dropped: no listener, no route, no memory",
    run,
);

/// Packets per second below which a healthy host drops them as well.
const STRAY_PER_S: f64 = 1.0;
/// Packets that were seen to be dropped, from which `packet_drops` has the finding.
const SEEN: u64 = 20;
/// Share from which it is reported since boot, and more than usual.
const MANY: f64 = 0.01;

/// Why packets were dropped.
struct Cause {
    /// The kernel's reasons for it, if `packet_drops` has them.
    reasons: &'static [&'static str],
    /// The kernel's counters.
    counters: &'static [&'static str],
    /// Healthy hosts have some: below a hundredth of all it is `info`.
    is_usual: bool,
    /// Counters of another cause that has them as well.
    without: &'static [&'static str],
    /// All of the same kind, but for those lost; with [`Cause::of_all`] including them.
    arrived: &'static [&'static str],
    of_all: bool,
    /// After `12 packets dropped in the interval: `.
    what: &'static str,
    advice: &'static str,
    /// At most this severe: a stranger may send them.
    at_most: Severity,
}

impl Cause {
    /// What the columns of most have in common.
    const fn new(
        counters: &'static [&'static str],
        what: &'static str,
        advice: &'static str,
    ) -> Self {
        Self {
            reasons: &[],
            counters,
            is_usual: false,
            without: &[],
            arrived: &[],
            of_all: false,
            what,
            advice,
            at_most: Severity::Warning,
        }
    }
}

const UDP: &[&str] = &["Udp.InDatagrams", "Udp6.InDatagrams"];
const DISCARDED: &[&str] = &["Ip.OutDiscards", "Ip6.OutDiscards"];
const RECEIVED: &[&str] = &["Ip.InReceives", "Ip6.InReceives"];
const SENT: &[&str] = &["Ip.OutRequests", "Ip6.OutRequests"];
const CAUSES: &[Cause] = &[
    Cause {
        arrived: UDP,
        at_most: Severity::Critical,
        ..Cause::new(
            &["Udp.MemErrors", "Udp6.MemErrors"],
            "memory of UDP exhausted",
            "The receive buffers of all UDP sockets together hold as many pages as the third number of \
             net.ipv4.udp_mem: a reader that does not read, or limits that are too low for the buffers.",
        )
    },
    Cause {
        reasons: &["UDP_CSUM", "TCP_CSUM", "IP_CSUM", "ICMP_CSUM", "SKB_CSUM"],
        arrived: UDP,
        at_most: Severity::Critical,
        ..Cause::new(
            &["Udp.InCsumErrors", "Udp6.InCsumErrors", "Tcp.InCsumErrors"],
            "wrong checksum",
            "Damaged on the way, or sent without a checksum by a device whose offload does not work: ethtool -K \
             DEV tx off on the sender shows which.",
        )
    },
    Cause {
        reasons: &["NO_SOCKET"],
        arrived: UDP,
        ..Cause::new(
            &["Udp.NoPorts", "Udp6.NoPorts"],
            "nothing listens on their port",
            "The server has ended, listens on another address, or is in another network namespace; a stranger may \
             also try ports. ss -ulnp lists what listens, and nearpath measure drops counts by protocol and device.",
        )
    },
    Cause {
        reasons: &["IP_RPFILTER"],
        ..Cause::new(
            &["TcpExt.IPReversePathFilter"],
            "reverse path filter (rp_filter)",
            "Their answers would leave by another device. Where routes differ by direction on purpose, \
             sysctl -w net.ipv4.conf.DEV.rp_filter=2 accepts a source that any device reaches; the larger of that \
             and net.ipv4.conf.all.rp_filter is in force.",
        )
    },
    Cause {
        reasons: &["IP_OUTNOROUTES", "IP_INNOROUTES"],
        ..Cause::new(
            &["Ip.OutNoRoutes", "IpExt.InNoRoutes", "Ip6.InNoRoutes"],
            "no route",
            "ip route get ADDRESS shows which route an address has.",
        )
    },
    Cause {
        reasons: &["FRAG_REASM_TIMEOUT", "FRAG_TOO_FAR", "DUP_FRAG", "FRAG_REASM"],
        arrived: &["Ip.ReasmReqds", "Ip6.ReasmReqds"],
        of_all: true,
        at_most: Severity::Critical,
        ..Cause::new(
            &["Ip.ReasmFails", "Ip6.ReasmFails"],
            "fragments not reassembled",
            "Their rest did not come in time (net.ipv4.ipfrag_time), or all that wait do not fit into \
             net.ipv4.ipfrag_high_thresh (net.ipv6.ip6frag_high_thresh). One lost fragment loses its datagram: datagrams \
             that fit into the MTU of the path are not fragmented.",
        )
    },
    Cause {
        reasons: &[
            "NETFILTER_DROP",
            "QDISC_DROP",
            "BPF_CGROUP_EGRESS",
            "NEIGH_FAILED",
            "NEIGH_QUEUEFULL",
        ],
        arrived: SENT,
        of_all: true,
        at_most: Severity::Warning,
        ..Cause::new(
            DISCARDED,
            "not sent (OutDiscards)",
            "A firewall rule on the way out (the program sees EPERM), a full qdisc (ENOBUFS), no memory; or nothing is lost, and \
             sockets that do not wait had no room in their send buffer (EAGAIN), as is usual at line rate. nearpath measure \
             drops shows what was dropped, and by which function.",
        )
    },
    Cause {
        reasons: &["QDISC_DROP", "NEIGH_CREATEFAIL"],
        without: DISCARDED,
        arrived: &["Udp.OutDatagrams", "Udp6.OutDatagrams"],
        at_most: Severity::Critical,
        ..Cause::new(
            &["Udp.SndbufErrors", "Udp6.SndbufErrors"],
            "send buffer full (SndbufErrors)",
            "The program sends faster than the device takes them: its send buffer (SO_SNDBUF, net.core.wmem_max) or the qdisc is \
             full. The program sees EAGAIN or ENOBUFS, or nothing.",
        )
    },
    Cause {
        reasons: &["NEIGH_QUEUEFULL", "NEIGH_FAILED"],
        ..Cause::new(
            &["arp_cache.unresolved_discards", "ndisc_cache.unresolved_discards"],
            "their neighbour does not answer",
            "They waited for an answer to ARP or neighbour discovery, and more came than may wait \
             (neigh/default/unres_qlen_bytes): ip neigh show nud incomplete nud failed names the neighbours.",
        )
    },
    Cause {
        reasons: &["PKT_TOO_BIG"],
        is_usual: true,
        arrived: &["Ip.OutRequests", "Ip.ForwDatagrams", "Ip6.OutRequests", "Ip6.OutForwDatagrams"],
        of_all: true,
        ..Cause::new(
            &["Ip.FragFails", "Ip6.FragFails"],
            "larger than the MTU",
            "They have DF set, or are of IPv6, and are larger than the MTU of the device that they leave by; their sender is \
             told by ICMP, which a firewall must let through (ip -s route get ADDRESS shows the path MTU that is known).",
        )
    },
    Cause {
        reasons: &["IP_INHDR", "IP_CSUM"],
        is_usual: true,
        arrived: RECEIVED,
        of_all: true,
        ..Cause::new(
            &["Ip.InHdrErrors", "Ip6.InHdrErrors"],
            "errors in the IP header",
            "A TTL that is used up (a routing loop: traceroute shows it), a wrong checksum, options that are not allowed.",
        )
    },
    Cause {
        reasons: &["IP_INADDRERRORS"],
        is_usual: true,
        arrived: RECEIVED,
        of_all: true,
        ..Cause::new(
            &["Ip.InAddrErrors", "Ip6.InAddrErrors"],
            "not for this host",
            "Their destination is no address of this host, and it does not forward (net.ipv4.ip_forward, \
             net.ipv6.conf.all.forwarding).",
        )
    },
    Cause {
        reasons: &["IPV6DISABLED", "XFRM_POLICY", "NOMEM"],
        is_usual: true,
        arrived: RECEIVED,
        of_all: true,
        ..Cause::new(
            &["Ip.InDiscards", "Ip6.InDiscards"],
            "not delivered (InDiscards)",
            "Without a fault of their own: IPv6 is disabled on their device (net.ipv6.conf.DEV.disable_ipv6), a policy of IPsec \
             (ip xfrm policy), or no memory. nearpath measure drops shows the function.",
        )
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

/// Counters since boot tell little of the present: strangers send all the time.
fn finding(context: &Context<'_>, cause: &Cause) -> Option<Finding> {
    let sum = |names: &[&str]| total(names.iter().filter_map(|name| context.counter(name)));
    let lost = sum(cause.counters).saturating_sub(sum(cause.without));
    let arrived = Some(sum(cause.arrived)).filter(|_| !cause.arrived.is_empty());
    let arrived = arrived.map(|all| if cause.of_all { all.saturating_sub(lost) } else { all });
    let all = arrived.map(|arrived| arrived.saturating_add(lost));
    let share = all.and_then(|all| ratio(lost, all));
    let is_notable = match context.earlier {
        Some(_) => context.per_second(lost) >= STRAY_PER_S,
        None => {
            (cause.at_most == Severity::Critical || cause.arrived == SENT)
                && lost >= SEEN
                && share.is_some_and(|share| share >= MANY)
        }
    };
    if !is_notable || seen(context, cause) >= SEEN {
        return None;
    }
    let severity = severity::of_loss(context, lost, arrived).min(cause.at_most);
    let severity = match share {
        Some(share) if cause.is_usual && share < MANY => Severity::Info,
        // Who looked saw none of them dropped.
        _ if cause.counters == DISCARDED && context.drops.is_some() => Severity::Info,
        _ => severity,
    };
    let (packets, since) = (text::count(lost, "packet"), context.since());
    let title = format!("{packets} dropped {since}: {}", cause.what);
    let mut finding = Finding::new(severity, title).evidence(counted(context, cause.counters));
    finding = finding.evidence(cause.advice);
    let Some(all) = all else { return Some(finding) };
    let is_sent =
        cause.arrived == SENT || cause.counters.iter().any(|name| name.contains("Sndbuf"));
    let kind = if is_sent { " that were sent" } else { " that arrived" };
    Some(finding.share(share, text::short(all) + kind))
}

/// `Ip.ReasmFails: 12, Ip6.ReasmFails: 3.`, as nstat names them.
fn counted(context: &Context<'_>, counters: &[&str]) -> String {
    let named = counters.iter().filter_map(|name| {
        let count = context.counter(name).filter(|count| *count > 0)?;
        Some(format!("{}: {}", name.replace('.', ""), text::short(count)))
    });
    named.collect::<Vec<_>>().join(", ") + "."
}

/// Packets that were seen to be dropped for one of these reasons.
fn seen(context: &Context<'_>, cause: &Cause) -> u64 {
    let reasons = cause.reasons;
    let is_of = |reason: &Option<String>, function: &str| {
        packet_drops::reason_of(reason.as_deref(), function).is_some_and(|r| reasons.contains(&r))
    };
    if let Some(drops) = context.drops {
        let is_way = |drop: &&Drop| cause.arrived != SENT || packet_drops::is_sent(drop);
        let its = drops.drops.iter().filter(|drop| is_of(&drop.reason, &drop.function));
        let its = its.filter(is_way);
        return total(its.map(|drop| drop.packets));
    }
    let followed = context.measurement.into_iter().flat_map(|measurement| &measurement.drops);
    let its = followed.filter(|drop: &&StageDrop| is_of(&drop.reason, &drop.function));
    total(its.map(|drop| drop.packets))
}
