//! Packets that the kernel dropped on their way, for reasons that no other check has.
//!
//! Input: the drops of the packets that were followed, by reason and device. Output: one finding for each reason for which
//! a notable share of them was dropped. Full receive buffers, backlogs, qdiscs and listeners have checks of their own.
//!
//! Drops that are configured (a firewall, an XDP program, a filter), and those of packets to ports without a listener, may be
//! intended: such a finding is never critical, and a warning from 1% of the packets only.
//!
//! Rules: include/net/dropreason-core.h; kernels before 5.17 give no reasons, there the function says it for a few.

use super::slow_packets::ENOUGH;
use crate::counters::{ratio, total};
use crate::severity::EVENTS_PER_S;
use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::drops::in_short;
use nearpath_model::{
    Direction, Finding, InterfaceFile, Nic, NicKind, ProposedChange, SettingFile, Severity,
    StageDrop, Subject,
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
/// And how many in each second.
const NOTABLE_PER_S: f64 = EVENTS_PER_S / 10.0;

/// Reasons that are reported by another check, or that lose nothing.
const ELSEWHERE: [&str; 21] = [
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
    "PACKET_SOCK_ERROR",
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
const RULES: [Rule; 15] = [
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
        "FULL_RING",
        false,
        "The reader of the device does not keep up: a virtual machine, a VPN. A longer ring holds bursts.",
    ),
    rule("", false, "nearpath measure drops lists them by function, device and flow."),
];

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    let Some(measurement) = context.measurement else {
        outcome.not_checked("no measurement: which packets are dropped is not known");
        return outcome;
    };
    let mut by_reason: BTreeMap<(String, Direction), Vec<&StageDrop>> = BTreeMap::new();
    for drop in &measurement.drops {
        if let Some(reason) = reason(drop).filter(|reason| !is_elsewhere(context, drop, reason)) {
            by_reason.entry((text::clean(reason), drop.direction)).or_default().push(drop);
        }
    }
    let found = by_reason.iter().filter_map(|((reason, direction), drops)| {
        finding(context, measurement, reason, *direction, drops)
    });
    outcome.findings.extend(found);
    outcome
}

/// The kernel's reason; where it has none, the one that the function stands for.
fn reason(drop: &StageDrop) -> Option<&str> {
    match drop.reason.as_deref() {
        Some(reason) if reason != "NOT_SPECIFIED" => Some(reason),
        _ => match drop.function.as_str() {
            "nf_hook_slow" | "nf_hook_slow_list" | "nft_do_chain" | "ipt_do_table" => {
                Some("NETFILTER_DROP")
            }
            "tun_net_xmit" => Some("FULL_RING"),
            _ => None,
        },
    }
}

fn is_elsewhere(context: &Context<'_>, drop: &StageDrop, reason: &str) -> bool {
    let is_of_qdisc = ["QDISC_", "FQ_", "CAKE_", "DUALPI2_"].iter().any(|q| reason.starts_with(q));
    if is_of_qdisc {
        // qdisc_drops has those of this network namespace.
        let device = drop.device.as_deref();
        return context.nics().any(|nic| Some(nic.name.as_str()) == device && nic.qdiscs.is_some());
    }
    ELSEWHERE.contains(&reason)
}

fn finding(
    context: &Context<'_>,
    measurement: &nearpath_model::Measurement,
    reason: &str,
    direction: Direction,
    drops: &[&StageDrop],
) -> Option<Finding> {
    let lost = total(drops.iter().map(|drop| drop.packets));
    let arrived = measurement.packets.completed;
    let all = arrived.saturating_add(lost);
    let share = ratio(lost, all)?;
    let rate = lost as f64 / measurement.observed_time_s().max(f64::MIN_POSITIVE);
    let rule = RULES.iter().find(|rule| reason.starts_with(rule.reason))?;
    let is_notable = match rule.intended {
        true => share >= NOTABLE && rate >= NOTABLE_PER_S,
        false => rate >= 1.0,
    };
    if lost < ENOUGH || !is_notable {
        return None;
    }
    let severity = severity::of_followed_loss(measurement, lost, arrived);
    let severity = match rule.intended {
        true if share < MANY => Severity::Info,
        true => severity.min(Severity::Warning),
        false => severity,
    };
    let devices: BTreeSet<&str> = drops.iter().filter_map(|drop| drop.device.as_deref()).collect();
    let devices: Vec<String> = devices.into_iter().take(NAMED).map(text::clean).collect();
    let (kind, way) = match direction {
        Direction::Rx => ("received packets", "packets received on"),
        Direction::Tx => ("sent packets", "packets sent on"),
    };
    let meaning = drops.iter().find_map(|drop| drop.meaning.as_deref());
    let meaning = match (reason, meaning) {
        // A function that stands for the reason has the meaning of no reason.
        ("NETFILTER_DROP", _) => "dropped by a firewall rule".to_owned(),
        ("FULL_RING", _) => "dropped: ring full".to_owned(),
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
    let title = on_one.into_iter().chain([of_all]).find(fits).unwrap_or(by_name);
    let mut by_place: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for drop in drops {
        let count = by_place.entry((drop.function.as_str(), drop.after.as_str())).or_default();
        *count = count.saturating_add(drop.packets);
    }
    let mut by_place: Vec<_> = by_place.into_iter().collect();
    by_place.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let on = match devices.is_empty() {
        true => String::new(),
        false => format!(" on {}", text::list(&devices)),
    };
    let mut finding = Finding::new(severity, title)
        .share(Some(share), text::short(all) + " packets that were followed")
        .about(devices.iter().map(|device| Subject::Nic(device.clone())))
        .evidence(format!(
            "{} packets were dropped{on} while measured, {} per second, for the reason {reason}.",
            text::short(lost),
            text::digits(rate),
        ));
    for ((function, after), count) in by_place.into_iter().take(NAMED) {
        finding = finding.evidence(format!(
            "{} by {} after {}.",
            text::count(count, "packet"),
            text::clean(function),
            text::clean(after)
        ));
    }
    // A full table drops by the same function as a rule does.
    let full = context.earlier.and(context.counter("conntrack.drop")).unwrap_or(0);
    if reason == "NETFILTER_DROP" && context.per_second(full) >= rate / 2.0 {
        return None;
    }
    if reason == "FULL_RING" {
        finding.changes.extend(longer_rings(context, drops));
    }
    Some(finding.evidence(rule.hint))
}

/// Longer rings of the taps that dropped packets: a tap's ring holds as many packets as its transmit queue is long
/// (`tun_queue_resize` of drivers/net/tun.c). Those of veths are fixed.
fn longer_rings(context: &Context<'_>, drops: &[&StageDrop]) -> Vec<ProposedChange> {
    let has_dropped = |nic: &&Nic| {
        nic.kind == NicKind::Tap
            && drops.iter().any(|drop| drop.device.as_deref() == Some(nic.name.as_str()))
    };
    let change = |nic: &Nic| {
        let ring = SettingFile::interface(&nic.name, InterfaceFile::TxQueueLen);
        ProposedChange::new(ring, None, RING.to_string(), "A longer ring holds bursts.")
    };
    context.nics().filter(has_dropped).take(NAMED).map(change).collect()
}
