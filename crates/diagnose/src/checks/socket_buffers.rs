//! Packets dropped because the receive buffer of their socket was full.
//!
//! Input: the counters of UDP and TCP, and the drops of UDP sockets, over the interval when there is an earlier
//! reading; the drops of packets that were followed, which are those of all network namespaces. Output: at most one
//! finding for each protocol, which names the sockets where they are known, and one for other namespaces. Full buffers
//! without any of it are none: buffers that are never full do not become faster by being larger.
//!
//! Rules: everoute's analysis of latency tails (socket buffers), Documentation/networking/snmp_counter.rst,
//! `__udp_enqueue_schedule_skb` of net/ipv4/udp.c, `tcp_try_rmem_schedule` and `tcp_prune_queue` of
//! net/ipv4/tcp_input.c.

use super::tcp_memory;
use crate::buffers;
use crate::counters::{ratio, total};
use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::{
    Finding, ProposedChange, Socket, SocketOwner, StageDrop, Subject, Sysctl, Whose,
};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

pub(super) const CHECK: Check = Check::new(
    "socket_buffers",
    "packets dropped because the receive buffer of their socket was full",
    run,
)
.explained_by(&["slow_packets"]);

/// The kernel's reasons for it (include/net/dropreason-core.h).
const FULL: [&str; 3] = ["SOCKET_RCVBUFF", "SOCKET_BACKLOG", "PROTO_MEM"];
/// Sockets that are named.
const NAMED: usize = 3;
/// Bytes beyond which a default for all sockets is no remedy.
const LARGEST_DEFAULT: u64 = 16 << 20;
/// Bytes of the largest buffer that everoute's analysis of latency tails gives.
const LARGEST: u64 = 128 << 20;

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    if context.host.counters.is_empty() {
        let why = context.why_unknown("host", "counters");
        outcome.not_checked(format!("the counters of UDP and TCP are unknown{why}"));
        return outcome;
    }
    outcome.findings = datagrams(context);
    outcome.findings.extend(segments(context));
    if outcome.findings.is_empty() {
        outcome.findings.extend(elsewhere(context));
    }
    outcome
}

/// The sum of counters, those that are not there as none.
fn sum(context: &Context<'_>, names: &[&str]) -> u64 {
    total(names.iter().filter_map(|name| context.counter(name)))
}

fn finding(context: &Context<'_>, what: &str, lost: u64, arrived: u64) -> Option<Finding> {
    if lost == 0 {
        return None;
    }
    let share = ratio(lost, arrived.saturating_add(lost));
    let severity = severity::of_loss(context, lost, Some(arrived));
    let title =
        format!("{} dropped {}: receive buffer full", text::count(lost, what), context.since());
    Some(
        Finding::new(severity, title)
            .share(share, text::short(arrived.saturating_add(lost)) + " " + what + "s"),
    )
}

/// The sockets that nobody reads, and all others.
fn datagrams(context: &Context<'_>) -> Vec<Finding> {
    let all = sum(context, &["Udp.RcvbufErrors", "Udp6.RcvbufErrors"]);
    let arrived = sum(context, &["Udp.InDatagrams", "Udp6.InDatagrams"]);
    let (unread, others): (Vec<_>, Vec<_>) =
        dropping(context).into_iter().partition(|(socket, _)| is_unread(context, socket));
    let to_unread = total(unread.iter().map(|(_, lost)| *lost)).min(all);
    let unread = unread_sockets(context, &unread, to_unread, arrived);
    let others = full_sockets(context, &others, all - to_unread, arrived);
    unread.into_iter().chain(others).collect()
}

/// Datagrams to sockets that nobody reads: their senders may not care, and no setting helps.
fn unread_sockets(
    context: &Context<'_>,
    sockets: &[(&Socket, u64)],
    lost: u64,
    arrived: u64,
) -> Option<Finding> {
    let mut finding = finding(context, "datagram", lost, arrived)?.of(Whose::Application);
    let dropped = text::count(lost, "datagram");
    let (first, _) = sockets.first()?;
    finding.title = match (sockets.len(), owner(context, first)) {
        (1, Some(owner)) => {
            let comm = text::clean(&owner.comm);
            format!("{comm} does not read port {}: {dropped} dropped", first.port)
        }
        (1, None) => format!("Nobody reads port {}: {dropped} dropped", first.port),
        (number, _) => format!("Nobody reads {number} sockets: {dropped} dropped"),
    };
    for &(socket, lost) in sockets.iter().take(NAMED) {
        let queued = text::bytes(socket.receive_queue_bytes.unwrap_or(0));
        finding = finding.about([Subject::Port(socket.port)]).evidence(format!(
            "{}: {queued} waited unread all the time, and {} dropped.",
            named(context, socket),
            match lost {
                1 => "1 datagram was".to_owned(),
                _ => format!("{lost} datagrams were"),
            }
        ));
    }
    Some(finding.evidence(
        "Its process is to read the socket, or to close it. A larger buffer would fill as well.",
    ))
}

fn full_sockets(
    context: &Context<'_>,
    sockets: &[(&Socket, u64)],
    lost: u64,
    arrived: u64,
) -> Option<Finding> {
    let mut finding = finding(context, "datagram", lost, arrived)?.evidence(
        "A socket that sets SO_RCVBUF itself gets that size, up to net.core.rmem_max; others \
         have net.core.rmem_default.",
    );
    if let Some((socket, _)) = sockets.first().filter(|(_, most)| most.saturating_mul(2) >= lost)
        && let Some(owner) = owner(context, socket)
    {
        let (lost, comm) = (text::count(lost, "datagram"), text::clean(&owner.comm));
        finding.title =
            format!("{lost} to {comm} dropped {}: receive buffer full", context.since());
    }
    for &(socket, lost) in sockets.iter().take(NAMED) {
        let datagrams = text::count(lost, "datagram");
        finding = finding.evidence(format!("{} dropped {datagrams}.", named(context, socket)));
    }
    let most = sockets.first().filter(|(_, most)| most.saturating_mul(2) >= lost);
    if let Some((socket, _)) = most.filter(|(socket, _)| context.has_standing_queue(socket.port)) {
        return Some(finding.about([Subject::Port(socket.port)]).evidence(
            "Packets wait there for longer than bursts last: the reader is too slow for them, and a larger buffer would \
             only make them older.",
        ));
    }
    let Some((now, wanted)) = buffers::raised(context, Sysctl::RmemDefault, LARGEST_DEFAULT) else {
        return Some(finding);
    };
    let why = "A larger buffer holds what comes while the reader does not run; it is no help to one that is always too slow.";
    finding = finding.change(change(Sysctl::RmemDefault, (now, wanted), why));
    if let Some(max) = number(context, Sysctl::RmemMax)
        && max < wanted
    {
        let why = "Limits SO_RCVBUF.";
        finding = finding.change(change(Sysctl::RmemMax, (max, wanted), why));
    }
    Some(finding)
}

/// Whether nobody read a socket: it was as full at the start of the interval as at its end, its process hardly ran, and
/// none of the late packets that readers received was from it.
fn is_unread(context: &Context<'_>, socket: &Socket) -> bool {
    let now = socket.receive_queue_bytes.unwrap_or(0);
    let earlier = context.earlier.iter().flat_map(|host| &host.sockets);
    let mut then = earlier.filter(|then| key(then) == key(socket));
    let before = then.next().and_then(|then| then.receive_queue_bytes).unwrap_or(0);
    let is_busy = owner(context, socket).and_then(|owner| context.is_busy(owner));
    let stood = now.min(before) > 0 && now.abs_diff(before) <= now / 10;
    let outliers = context.measurement.iter().flat_map(|measured| &measured.outliers);
    let was_read = || outliers.clone().any(|one| context.ports_read_of(one).contains(&socket.port));
    stood && is_busy != Some(true) && !was_read()
}

/// Identifies a socket in two readings.
fn key(socket: &Socket) -> (nearpath_model::SocketProtocol, u64, u16, std::net::IpAddr) {
    (socket.protocol, socket.inode, socket.port, socket.address)
}

/// Packets that were followed to a full buffer that no counter of this network namespace knows.
fn elsewhere(context: &Context<'_>) -> Option<Finding> {
    let measurement = context.measurement?;
    // Counted in this namespace: `protocol_drops`.
    let is_here = |reason: &str| {
        reason == "PROTO_MEM" && sum(context, &["Udp.MemErrors", "Udp6.MemErrors"]) > 0
    };
    let is_full = |drop: &&StageDrop| {
        drop.reason.as_deref().is_some_and(|reason| FULL.contains(&reason) && !is_here(reason))
    };
    let drops: Vec<&StageDrop> = measurement.drops.iter().filter(is_full).collect();
    let lost = total(drops.iter().map(|drop| drop.packets));
    if lost == 0 {
        return None;
    }
    let arrived = measurement.packets.completed;
    let severity = severity::of_followed_loss(measurement, lost, arrived);
    let devices: BTreeSet<&str> = drops.iter().filter_map(|drop| drop.device.as_deref()).collect();
    let devices: Vec<String> = devices.into_iter().take(NAMED).map(text::clean).collect();
    let of = match devices.is_empty() {
        true => String::new(),
        false => format!(" from {}", devices.join(", ")),
    };
    let packets = text::count(lost, "packet");
    let title = format!("{packets}{of} dropped while measured: receive buffer full");
    let all = arrived.saturating_add(lost);
    let finding = Finding::new(severity, title)
        .share(ratio(lost, all), text::short(all) + " packets that were followed")
        .evidence(
            "No counter of UDP or TCP in this network namespace has them: their sockets are in another one, a \
             container's for example, and --netns NAME names them; or they are raw sockets.",
        )
        .evidence(
            "Their reader does not keep up for longer than the buffer lasts. A larger one (SO_RCVBUF, up to \
             net.core.rmem_max) holds a burst; against a reader that is too slow for its packets it only makes \
             them older.",
        );
    Some(finding)
}

/// The UDP sockets that dropped datagrams, those with the most first.
fn dropping<'a>(context: &Context<'a>) -> Vec<(&'a Socket, u64)> {
    let then: BTreeMap<_, u64> = context
        .earlier
        .iter()
        .flat_map(|host| &host.sockets)
        .filter_map(|socket| Some((key(socket), socket.drops?)))
        .collect();
    let risen = |socket: &'a Socket| {
        let before = then.get(&key(socket)).copied().unwrap_or(0);
        let rise = socket.drops?.saturating_sub(before);
        (rise > 0).then_some((socket, rise))
    };
    let mut found: Vec<_> = context.host.sockets.iter().filter_map(risen).collect();
    found.sort_by_key(|(socket, rise)| (Reverse(*rise), socket.port, socket.inode));
    found
}

fn owner<'a>(context: &Context<'a>, socket: &Socket) -> Option<&'a SocketOwner> {
    context.host.owners.iter().find(|owner| socket.pids.contains(&owner.pid))
}

/// `dnsmasq (pid 4711) on 10.0.0.5:53`.
fn named(context: &Context<'_>, socket: &Socket) -> String {
    let at = SocketAddr::new(socket.address, socket.port);
    match (owner(context, socket), socket.pids.first()) {
        (Some(owner), _) => format!("{} (pid {}) on {at}", text::clean(&owner.comm), owner.pid),
        (None, Some(pid)) => format!("Process {pid} on {at}"),
        (None, None) => format!("The socket {at}"),
    }
}

fn segments(context: &Context<'_>) -> Option<Finding> {
    if tcp_memory::is_short(context) {
        // What is short is the memory of all, not the buffer of one.
        return None;
    }
    let lost = sum(context, &["TcpExt.RcvPruned", "TcpExt.OfoPruned", "TcpExt.TCPRcvQDrop"]);
    let arrived = sum(context, &["Tcp.InSegs"]);
    let mut finding = finding(context, "TCP segment", lost, arrived)?
        .evidence("The sender has to retransmit them, usually after a timeout.");
    let now = context.host.sysctls.get(Sysctl::TcpRmem.name()).map_or("", String::as_str);
    let sizes: Vec<u64> =
        now.split_ascii_whitespace().filter_map(|size| size.parse().ok()).collect();
    let &[least, first, most] = sizes.as_slice() else { return Some(finding) };
    let after = most.saturating_mul(2).min(LARGEST);
    if after > most {
        let why = "TCP gives a connection as much as it needs, up to this.";
        finding = finding.change(ProposedChange::new(
            Sysctl::TcpRmem,
            Some(format!("{least} {first} {most}")),
            format!("{least} {first} {after}"),
            why,
        ));
    }
    Some(finding)
}

fn number(context: &Context<'_>, sysctl: Sysctl) -> Option<u64> {
    context.sysctl(sysctl.name())
}

fn change(sysctl: Sysctl, (before, after): (u64, u64), why: &str) -> ProposedChange {
    ProposedChange::new(sysctl, Some(before.to_string()), after.to_string(), why)
}
