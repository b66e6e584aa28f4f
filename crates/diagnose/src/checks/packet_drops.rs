//! Packets that the kernel dropped on their way, for reasons that no other check has.
//!
//! Input: the drops that the instrument `drops` counted; without it those of the packets that were followed. Output: one
//! finding for each reason for which a notable share of packets was dropped, or, where the kernel gives no reason, for each
//! function. Full receive buffers, backlogs, qdiscs and listeners have checks of their own.
//!
//! Drops that are configured (a firewall, an XDP program, a filter), and those of packets to ports without a listener, may be
//! intended: such a finding is never critical, and a warning from 1% of the packets only.
//!
//! Rules: include/net/dropreason-core.h; kernels before 5.17 give no reasons, there the function says it for a few.

use super::conntrack;
use super::slow_packets::ENOUGH;
use crate::counters::total;
use crate::readers::STANDING_NS;
use crate::severity::EVENTS_PER_S;
use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::drops::{Drop, DropMeasurement, DropStage, in_short};
use nearpath_model::{
    Direction, Finding, InterfaceFile, Measurement, Nic, NicKind, ProposedChange, SettingFile,
    Severity, Subject, Watch,
};
use std::collections::{BTreeMap, BTreeSet};

pub(super) const CHECK: Check = Check::new(
    "packet_drops",
    "packets dropped by firewalls, programs, filters, routing and devices",
    run,
);

/// Devices that are named.
const NAMED: usize = 3;
/// Packets that the ring of a tap is to hold, whose default is 500 or 1,000.
const RING: u32 = 2_048;
/// Share of the packets from which drops that may be intended are reported, and from which they are a warning.
const NOTABLE: f64 = 0.001;
const MANY: f64 = 0.01;
/// The longest title that is not cut on a screen.
const LONGEST_TITLE: usize = 66;
/// Stages in which packets are sent.
const SENDING: [DropStage; 2] = [DropStage::Qdisc, DropStage::Transmit];
/// The kernel's counters of packets that IP is to send.
const SENT: [&str; 4] =
    ["Ip.OutRequests", "Ip.ForwDatagrams", "Ip6.OutRequests", "Ip6.OutForwDatagrams"];
/// And how many in each second.
const NOTABLE_PER_S: f64 = EVENTS_PER_S / 10.0;

/// Reasons that are reported by another check, or that lose nothing.
const ELSEWHERE: [&str; 20] = [
    // socket_buffers, softnet, listen_overflows
    "SOCKET_RCVBUFF",
    "SOCKET_BACKLOG",
    "PROTO_MEM",
    "TCP_OFO_QUEUE_PRUNE",
    "TCP_ZEROWINDOW",
    "CPU_BACKLOG",
    "TCP_LISTEN_OVERFLOW",
    // Copies, and packets for others.
    "OTHERHOST",
    "UNHANDLED_PROTO",
    // What a socket had when it was closed, and what TCP has already.
    "QUEUE_PURGE",
    "SOCKET_CLOSE",
    "TCP_CLOSE",
    "TCP_RESET",
    "TCP_ABORT_ON_DATA",
    "TCP_OFOMERGE",
    "TCP_OFO_DROP",
    "TCP_OLD_ACK",
    "TCP_TOO_OLD_ACK",
    "TCP_OLD_DATA",
    "TCP_OLD_SEQUENCE",
];

/// What a reason means for whoever reads it.
struct Rule {
    /// The reason, or the start of several.
    reason: &'static str,
    /// Whether it may be intended.
    intended: bool,
    /// What to do.
    hint: &'static str,
}

const fn rule(reason: &'static str, intended: bool, hint: &'static str) -> Rule {
    Rule { reason, intended, hint }
}

/// The first that fits.
const RULES: [Rule; 21] = [
    rule(
        "NETFILTER_",
        true,
        "Look for the rule by its counter: nft list ruleset, iptables-save -c; nft monitor trace follows packets \
         through the rules.",
    ),
    rule("XDP", true, "Look at the program: bpftool net show, ip link show."),
    rule(
        "TC_",
        true,
        "Look at the filters: tc -s filter show dev NAME ingress (or egress), bpftool net show.",
    ),
    rule("SOCKET_FILTER", true, "ss -0pb and ss -aepb show the filters of sockets."),
    rule("BPF_CGROUP_", true, "Look at the programs of cgroups: bpftool cgroup tree."),
    rule(
        "OVS_DROP_",
        true,
        "Look at the flows: ovs-appctl dpctl/dump-flows, ovs-ofctl dump-flows.",
    ),
    rule(
        "PACKET_SOCK_ERROR",
        true,
        "Copies for a program that captures packets (tcpdump, an intrusion detection, a DHCP client), which does not keep up \
         with them: a larger buffer (tcpdump -B, PACKET_RX_RING), several readers (PACKET_FANOUT), a filter. The packets \
         themselves are not lost.",
    ),
    rule("SECURITY_HOOK", true, "Look at the security module's log."),
    rule("XFRM_POLICY", true, "Look at the policies: ip xfrm policy, ip -s xfrm state."),
    rule("TAP_", true, "Look at the filters of the tap."),
    rule(
        "NO_SOCKET",
        true,
        "Nothing listens on their port: a service that is down, or that listens on another address (ss -lun, ss -ltn).",
    ),
    rule(
        "IP_RPFILTER",
        false,
        "The route back to their source leaves by another device: repair the route (ip route get SOURCE), or set \
         net.ipv4.conf.DEVICE.rp_filter to 2 (loose).",
    ),
    rule(
        "NEIGH_",
        false,
        "The next hop does not answer, or its table is full: ip neigh show, ip -s neigh.",
    ),
    rule(
        "IP_",
        false,
        "Look at routes and addresses: ip route get ADDRESS, ip -s route; nstat -az shows the counters.",
    ),
    rule(
        "FRAG_",
        false,
        "Fragments whose rest does not come, or that do not fit into net.ipv4.ipfrag_high_thresh (nstat -az '*Reasm*'): \
         datagrams that fit into the MTU of the path are not fragmented.",
    ),
    rule(
        "NFQUEUE_FULL",
        false,
        "The program that decides about them does not keep up: cat /proc/net/netfilter/nfnetlink_queue shows its queue and \
         its process.",
    ),
    rule(
        "FULL_RING",
        false,
        "The reader of the device does not keep up: a virtual machine, a VPN. A longer ring holds bursts.",
    ),
    rule(
        "BRIDGE_",
        true,
        "A port that spanning tree blocks (bridge link: state), a VLAN that the port does not have (bridge vlan), a \
         multicast group without a listener (bridge mdb; a snooping bridge needs a querier), or no port at all.",
    ),
    rule(
        "MAC_INVALID_SOURCE",
        false,
        "Their source address is multicast, or the bridge's own: a loop (bridge fdb show).",
    ),
    rule(
        "NO_TX_TARGET",
        true,
        "The virtual device has no destination for them: a VXLAN without a peer for their address (bridge fdb show dev NAME), \
         a bond or team without a link, a tunnel without a remote.",
    ),
    rule("", false, "nearpath measure drops lists them by function, device and flow."),
];

/// Packets that were dropped for one reason, on one side of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Why<'a> {
    /// The kernel's, or what its function stands for.
    Reason(&'a str),
    /// The kernel gives none: the function.
    Place(&'a str),
}

/// Some of them.
struct Dropped<'a> {
    why: Why<'a>,
    direction: Direction,
    function: &'a str,
    after: Option<&'a str>,
    device: Option<&'a str>,
    meaning: Option<&'a str>,
    packets: u64,
    looked_at: u64,
}

/// Over what time they were counted, and how many packets there were in each second.
#[derive(Clone, Copy)]
struct Base {
    seconds: f64,
    /// Those that came through.
    arrived_per_s: f64,
    /// Those that IP sent or forwarded (RFC 4293, `OutRequests`, `ForwDatagrams`); 0: unknown.
    sent_per_s: f64,
    /// Whether these include those that were lost on the way out (`Ip.OutTransmits` is there since Linux 6.7).
    with_lost: bool,
}

impl Base {
    /// All packets of that direction in each second, if so many of them are lost. What leaves other network namespaces is
    /// not counted as sent.
    fn all_per_s(&self, direction: Direction, lost_per_s: f64) -> f64 {
        match direction {
            Direction::Tx if self.with_lost && self.sent_per_s >= lost_per_s => self.sent_per_s,
            Direction::Tx if !self.with_lost && self.sent_per_s > 0.0 => {
                self.sent_per_s + lost_per_s
            }
            _ => lost_per_s + self.arrived_per_s,
        }
    }
}

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    let Some(measurement) = context.measurement else {
        outcome.not_checked("no measurement: which packets are dropped is not known");
        return outcome;
    };
    let observed_s = measurement.observed_time_s().max(f64::MIN_POSITIVE);
    // In slices few are followed; every packet is watched.
    let watched_per_s = |watch: &Watch| watch.packets as f64 / watch.watched_s.max(1.0);
    let arrived_per_s = (measurement.packets.completed as f64 / observed_s)
        .max(measurement.watch.as_ref().map_or(0.0, watched_per_s));
    let (seconds, all) = match context.drops {
        Some(drops) => (drops.duration_s.max(f64::MIN_POSITIVE), counted(drops)),
        None => (observed_s, followed(measurement)),
    };
    let sent = SENT.iter().filter_map(|name| context.counter(name));
    let sent_per_s = context.earlier.map_or(0.0, |_| context.per_second(total(sent)));
    let with_lost = context.counter("Ip.OutTransmits").is_some();
    let base = Base { seconds, arrived_per_s, sent_per_s, with_lost };
    let mut by_reason: BTreeMap<(Why<'_>, Direction), Vec<Dropped<'_>>> = BTreeMap::new();
    for drop in all.into_iter().filter(|drop| !is_elsewhere(context, drop)) {
        by_reason.entry((drop.why, drop.direction)).or_default().push(drop);
    }
    let found = by_reason
        .iter()
        .filter_map(|((why, direction), drops)| finding(context, base, *why, *direction, drops));
    outcome.findings.extend(found);
    outcome
}

/// All drops in the interval. A packet that is on no device, or about to be sent on one, is sent by this host.
fn counted(drops: &DropMeasurement) -> Vec<Dropped<'_>> {
    let all = drops.drops.iter().filter_map(|drop| {
        Some(Dropped {
            why: why(drop.reason.as_deref(), &drop.function)?,
            direction: if is_sent(drop) { Direction::Tx } else { Direction::Rx },
            function: &drop.function,
            after: None,
            device: drop.device.as_deref(),
            meaning: drop.meaning.as_deref(),
            packets: drop.packets,
            looked_at: if drop.looked_at > 0 { drop.looked_at } else { drop.packets },
        })
    });
    all.collect()
}

/// Whether a packet was about to be sent: by its stage or function, or because it has not reached a device yet.
pub(super) fn is_sent(drop: &Drop) -> bool {
    drop.device.is_none() || SENDING.contains(&drop.stage) || drop.function.ends_with("_xmit")
}

/// Those of the packets that were followed.
fn followed(measurement: &Measurement) -> Vec<Dropped<'_>> {
    let all = measurement.drops.iter().filter_map(|drop| {
        Some(Dropped {
            why: why(drop.reason.as_deref(), &drop.function)?,
            direction: drop.direction,
            function: &drop.function,
            after: Some(&drop.after),
            device: drop.device.as_deref(),
            meaning: drop.meaning.as_deref(),
            packets: drop.packets,
            looked_at: drop.packets,
        })
    });
    all.collect()
}

/// Functions that stand for a reason where the kernel gives none.
const PLACES: [(&str, &str); 17] = [
    ("nf_hook_slow", "NETFILTER_DROP"),
    ("nf_hook_slow_list", "NETFILTER_DROP"),
    ("nft_do_chain", "NETFILTER_DROP"),
    ("ipt_do_table", "NETFILTER_DROP"),
    ("nf_queue", "NFQUEUE_FULL"),
    ("tun_net_xmit", "FULL_RING"),
    ("br_handle_frame", "BRIDGE_PORT"),
    ("br_handle_frame_finish", "BRIDGE_PORT"),
    ("br_handle_ingress_vlan_tunnel", "BRIDGE_PORT"),
    ("br_allowed_ingress", "BRIDGE_VLAN"),
    ("__allowed_ingress", "BRIDGE_VLAN"),
    ("br_flood", "BRIDGE_NO_PORT"),
    ("ip_defrag", "FRAG_REASM"),
    ("ip_frag_queue", "FRAG_REASM"),
    ("ipv6_frag_rcv", "FRAG_REASM"),
    ("ip6_frag_queue", "FRAG_REASM"),
    ("nf_ct_frag6_gather", "FRAG_REASM"),
];

/// Reasons that no kernel gives.
const OURS: [&str; 6] =
    ["NFQUEUE_FULL", "FRAG_REASM", "BRIDGE_PORT", "BRIDGE_VLAN", "BRIDGE_NO_PORT", "NOT_SPECIFIED"];

/// The kernel's reason, or what the function stands for. Kernels without any reasons free packets there that are no loss:
/// then a function that is not known tells nothing.
fn why<'a>(reason: Option<&'a str>, function: &'a str) -> Option<Why<'a>> {
    let place = || PLACES.iter().find(|(place, _)| *place == function);
    match reason {
        // A bridge that floods to nobody.
        Some("NO_TX_TARGET") if function.starts_with("br_") => Some(Why::Reason("BRIDGE_NO_PORT")),
        Some(reason) if reason != "NOT_SPECIFIED" => Some(Why::Reason(reason)),
        told => match place() {
            Some((_, reason)) => Some(Why::Reason(reason)),
            // Of other families.
            None if function.starts_with("unix_") || function.starts_with("netlink_") => None,
            None => told.map(|_| Why::Place(function)),
        },
    }
}

/// The reason as findings have it, where there is one.
pub(super) fn reason_of<'a>(reason: Option<&'a str>, function: &'a str) -> Option<&'a str> {
    match why(reason, function)? {
        Why::Reason(reason) => Some(reason),
        Why::Place(_) => None,
    }
}

fn is_elsewhere(context: &Context<'_>, drop: &Dropped<'_>) -> bool {
    let Why::Reason(reason) = drop.why else { return false };
    let is_of_qdisc = ["QDISC_", "FQ_", "CAKE_", "DUALPI2_"].iter().any(|q| reason.starts_with(q));
    if is_of_qdisc {
        // qdisc_drops has those of this network namespace.
        let is_it = |nic: &Nic| Some(nic.name.as_str()) == drop.device && nic.qdiscs.is_some();
        return context.nics().any(is_it);
    }
    ELSEWHERE.contains(&reason)
}

fn finding(
    context: &Context<'_>,
    base: Base,
    why: Why<'_>,
    direction: Direction,
    drops: &[Dropped<'_>],
) -> Option<Finding> {
    let lost = total(drops.iter().map(|drop| drop.packets));
    let rate = lost as f64 / base.seconds;
    let all_per_s = match on_one_device(context, drops) {
        Some(sent_per_s) if direction == Direction::Tx => sent_per_s + rate,
        _ => base.all_per_s(direction, rate),
    };
    let share = rate / all_per_s.max(f64::MIN_POSITIVE);
    let reason = match why {
        Why::Reason(reason) => reason,
        Why::Place(_) => "NOT_SPECIFIED",
    };
    let reason = &text::clean(reason);
    let rule = RULES.iter().find(|rule| reason.starts_with(rule.reason))?;
    let is_known = matches!(why, Why::Reason(_));
    let is_notable = match (is_known, rule.intended) {
        (true, false) => rate >= 1.0,
        (true, true) => share >= NOTABLE && rate >= NOTABLE_PER_S,
        // What is freed there may be no loss.
        (false, _) => share >= MANY && rate >= NOTABLE_PER_S,
    };
    let looked_at = total(drops.iter().map(|drop| drop.looked_at));
    if looked_at < ENOUGH || !is_notable {
        return None;
    }
    let severity = severity::of_loss_rate(Some(share), rate);
    let severity = match rule.intended {
        true if share < MANY || reason == "PACKET_SOCK_ERROR" => Severity::Info,
        true => severity.min(Severity::Warning),
        false if !is_known => severity.min(Severity::Warning),
        false => severity,
    };
    let devices: BTreeSet<&str> = drops.iter().filter_map(|drop| drop.device).collect();
    let devices: Vec<String> = devices.into_iter().take(NAMED).map(text::clean).collect();
    let (kind, way) = match direction {
        Direction::Rx => ("received packets", "packets received on"),
        Direction::Tx => ("sent packets", "packets sent on"),
    };
    let meaning = drops.iter().find_map(|drop| drop.meaning);
    let meaning = match (reason.as_str(), meaning) {
        // A function that stands for the reason has the meaning of no reason.
        ("NETFILTER_DROP", _) => "dropped by a firewall rule".to_owned(),
        ("FULL_RING", _) => "dropped: ring full".to_owned(),
        ("FRAG_REASM", _) => "dropped: not reassembled".to_owned(),
        ("BRIDGE_PORT", _) => "dropped by the bridge's port".to_owned(),
        ("BRIDGE_NO_PORT", _) => "dropped: no bridge port to leave by".to_owned(),
        ("BRIDGE_VLAN", _) => "dropped: VLAN not on the bridge's port".to_owned(),
        ("NFQUEUE_FULL", _) => "dropped: NFQUEUE full".to_owned(),
        ("NOT_SPECIFIED", _) => match why {
            Why::Place(function) => format!("dropped in {}", text::clean(function)),
            Why::Reason(_) => "dropped".to_owned(),
        },
        (_, Some(meaning)) if meaning.starts_with("dropped") => text::clean(in_short(meaning)),
        (_, Some(meaning)) => format!("dropped: {}", text::clean(in_short(meaning))),
        (_, None) => format!("dropped: {reason}"),
    };
    let share_of = text::percent(share);
    let on_one = match devices.as_slice() {
        [device] => Some(format!("{share_of} of {way} {device} {meaning}")),
        _ => None,
    };
    let of_all = format!("{share_of} of {kind} {meaning}");
    let by_name = format!("{share_of} of {kind} dropped: {reason}");
    let fits = |title: &String| title.chars().count() <= LONGEST_TITLE;
    let title = match reason.as_str() {
        "PACKET_SOCK_ERROR" => {
            format!("Captures lost {} copies per second: packet socket full", text::digits(rate))
        }
        _ => on_one.into_iter().chain([of_all]).find(fits).unwrap_or(by_name),
    };
    let mut by_place: BTreeMap<(&str, Option<&str>), u64> = BTreeMap::new();
    for drop in drops {
        let count = by_place.entry((drop.function, drop.after)).or_default();
        *count = count.saturating_add(drop.packets);
    }
    let mut by_place: Vec<_> = by_place.into_iter().collect();
    by_place.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let on = match devices.is_empty() {
        true => String::new(),
        false => format!(" on {}", text::list(&devices)),
    };
    let mut finding = Finding::new(severity, title)
        .share(Some(share), format!("{} packets per second", text::digits(all_per_s)))
        .about(devices.iter().map(|device| Subject::Nic(device.clone())))
        .evidence(format!(
            "{} packets were dropped{on} while measured, {} per second{}.",
            text::short(lost),
            text::digits(rate),
            if OURS.contains(&reason.as_str()) {
                String::new()
            } else {
                format!(", for the reason {reason}")
            }
        ));
    for ((function, after), count) in by_place.into_iter().take(NAMED) {
        finding = finding.evidence(format!(
            "{} by {}{}.",
            text::count(count, "packet"),
            text::clean(function),
            after.map_or_else(String::new, |after| format!(" after {}", text::clean(after)))
        ));
    }
    finding.evidence.extend(main_flow(context, reason, lost));
    // Connection tracking drops by the same function as a rule does.
    if reason == "NETFILTER_DROP" && conntrack::lost_per_s(context) >= rate / 2.0 {
        return None;
    }
    if reason == "FULL_RING" && stands_in_ring(context) {
        return Some(finding.evidence(
            "The packets before them wait in the ring for longer than bursts last: the reader of the device is too slow, and a \
             longer ring would only make them older.",
        ));
    }
    if reason == "FULL_RING" {
        finding.changes.extend(longer_rings(context, drops));
    }
    Some(finding.evidence(rule.hint))
}

/// What the device of these packets sent in each second, if it is one that is known.
fn on_one_device(context: &Context<'_>, drops: &[Dropped<'_>]) -> Option<f64> {
    context.earlier?;
    let device = drops.first()?.device?;
    let is_one = drops.iter().all(|drop| drop.device == Some(device));
    let nic = context.nics().find(|nic| nic.name == device).filter(|_| is_one)?;
    context.rate(context.statistic(nic, "tx_packets")?)
}

/// The flow of most of these packets.
fn main_flow(context: &Context<'_>, reason: &str, lost: u64) -> Option<String> {
    let flows = context.drops.iter().flat_map(|drops| &drops.flows);
    let reason = if OURS.contains(&reason) { "NOT_SPECIFIED" } else { reason };
    let its = flows.filter(|flow| flow.reason.as_deref() == Some(reason));
    let most = its.max_by_key(|flow| flow.packets)?;
    let is_main = most.packets.saturating_mul(2) >= lost;
    (is_main && most.packets <= lost).then(|| format!("Most are of {}.", text::clean(&most.flow)))
}

/// Whether most packets wait for long in the ring of a device that a program reads.
fn stands_in_ring(context: &Context<'_>) -> bool {
    let spans = context.measurement.iter().flat_map(|measured| &measured.spans);
    let mut rings = spans.filter(|span| {
        span.from.starts_with("net_dev_") && matches!(span.to.as_str(), "consume_skb" | "kfree_skb")
    });
    rings.any(|span| span.p50_ns.is_some_and(|ns| ns >= STANDING_NS))
}

/// Longer rings of the taps that dropped packets: a tap's ring holds as many packets as its transmit queue is long
/// (`tun_queue_resize` of drivers/net/tun.c). Those of veths are fixed.
fn longer_rings(context: &Context<'_>, drops: &[Dropped<'_>]) -> Vec<ProposedChange> {
    let has_dropped = |nic: &&Nic| {
        nic.kind == NicKind::Tap && drops.iter().any(|drop| drop.device == Some(nic.name.as_str()))
    };
    let change = |nic: &Nic| {
        let ring = SettingFile::interface(&nic.name, InterfaceFile::TxQueueLen);
        ProposedChange::new(ring, None, RING.to_string(), "A longer ring holds bursts.")
    };
    context.nics().filter(has_dropped).take(NAMED).map(change).collect()
}
