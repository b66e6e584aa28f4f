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
/// Share since boot from which it is reported.
const MANY_SINCE_BOOT: f64 = 0.01;

/// Why packets were dropped.
struct Cause {
    /// The kernel's reasons for it, if `packet_drops` has them.
    reasons: &'static [&'static str],
    /// The kernel's counters.
    counters: &'static [&'static str],
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
            arrived: &[],
            of_all: false,
            what,
            advice,
            at_most: Severity::Warning,
        }
    }
}

const UDP: &[&str] = &["Udp.InDatagrams", "Udp6.InDatagrams"];
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
            &["Udp.InCsumErrors", "Udp6.InCsumErrors"],
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
            &["Ip.OutNoRoutes", "IpExt.InNoRoutes", "Ip6.OutNoRoutes", "Ip6.InNoRoutes"],
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
        at_most: Severity::Critical,
        ..Cause::new(
            &["Ip.OutDiscards", "Ip6.OutDiscards"],
            "not sent (OutDiscards)",
            "Without a fault of their own: a firewall rule on the way out (the program sees EPERM), a full qdisc (ENOBUFS), a \
             neighbour that does not answer, or no memory. nearpath measure drops shows the function.",
        )
    },
    Cause::new(
        &["Ip.FragFails", "Ip6.FragFails"],
        "larger than the MTU",
        "They have DF set, or are of IPv6, and are larger than the MTU of the device that they leave by; their sender is \
         told by ICMP, which a firewall must let through (ip -s route get ADDRESS shows the path MTU that is known).",
    ),
    Cause {
        reasons: &["IP_INHDR", "IP_CSUM"],
        ..Cause::new(
            &["Ip.InHdrErrors", "Ip6.InHdrErrors"],
            "errors in the IP header",
            "A TTL that is used up (a routing loop: traceroute shows it), a wrong checksum, options that are not allowed.",
        )
    },
    Cause {
        reasons: &["IP_INADDRERRORS"],
        ..Cause::new(
            &["Ip.InAddrErrors", "Ip6.InAddrErrors"],
            "not for this host",
            "Their destination is no address of this host, and it does not forward (net.ipv4.ip_forward, \
             net.ipv6.conf.all.forwarding).",
        )
    },
    Cause {
        reasons: &["NETFILTER_DROP", "SOCKET_FILTER", "XFRM_POLICY", "NOMEM"],
        ..Cause::new(
            &["Ip.InDiscards", "Ip6.InDiscards"],
            "not delivered (InDiscards)",
            "Without a fault of their own: a firewall rule, a policy of IPsec (ip xfrm policy), or no memory. nearpath measure \
             drops shows the function.",
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
    let lost = sum(cause.counters);
    let arrived = Some(sum(cause.arrived)).filter(|_| !cause.arrived.is_empty());
    let arrived = arrived.map(|all| if cause.of_all { all.saturating_sub(lost) } else { all });
    let all = arrived.map(|arrived| arrived.saturating_add(lost));
    let share = all.and_then(|all| ratio(lost, all));
    let is_notable = match context.earlier {
        Some(_) => context.per_second(lost) >= STRAY_PER_S,
        None => {
            cause.at_most == Severity::Critical
                && lost >= SEEN
                && share.is_some_and(|share| share >= MANY_SINCE_BOOT)
        }
    };
    if !is_notable || seen(context, cause.reasons) >= SEEN {
        return None;
    }
    let severity = severity::of_loss(context, lost, arrived).min(cause.at_most);
    let (packets, since) = (text::count(lost, "packet"), context.since());
    let title = format!("{packets} dropped {since}: {}", cause.what);
    let mut finding = Finding::new(severity, title).evidence(counted(context, cause.counters));
    finding = finding.evidence(cause.advice);
    let Some(all) = all else { return Some(finding) };
    let kind = if cause.arrived == SENT { " that were sent" } else { " that arrived" };
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
fn seen(context: &Context<'_>, reasons: &[&str]) -> u64 {
    let is_of = |reason: &Option<String>, function: &str| {
        packet_drops::reason_of(reason.as_deref(), function).is_some_and(|r| reasons.contains(&r))
    };
    if let Some(drops) = context.drops {
        let its = drops.drops.iter().filter(|drop| is_of(&drop.reason, &drop.function));
        return total(its.map(|drop| drop.packets));
    }
    let followed = context.measurement.into_iter().flat_map(|measurement| &measurement.drops);
    let its = followed.filter(|drop: &&StageDrop| is_of(&drop.reason, &drop.function));
    total(its.map(|drop| drop.packets))
}
