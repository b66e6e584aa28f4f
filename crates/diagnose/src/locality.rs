//! Packets and connections that left their CPU: how many and how far, in words, and what brings
//! their work to one CPU again.

use crate::counters::{ratio, total};
use crate::spans::{Boundary, NOTABLE_SHARE};
use crate::steering::{Steered, rfs_changes};
use crate::{CheckOutcome, Context, text};
use nearpath_model::locality::{Distances, Locality, Method};
use nearpath_model::{
    CpuSet, Direction, Finding, Proposal, ProposedChange, Severity, SocketProtocol,
};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Fewer packets than this are no load: those of a login and of the network's own talk.
const LOAD: u64 = 1_000;
/// Ways between CPUs, and groups, that are named.
const NAMED: usize = 3;

/// The part of something that left its CPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Elsewhere {
    /// Of what, in number.
    pub all: u64,
    /// The share that left: its core, where cores are distinguished.
    pub share: f64,
    /// The share that left its last-level cache.
    pub llc: f64,
    /// The share that left its node.
    pub node: f64,
}

impl Elsewhere {
    /// From counts that exclude one another; `None` of nothing.
    pub(crate) fn of(
        near: u64,
        same_llc: u64,
        same_node: u64,
        other_node: u64,
        unknown: u64,
    ) -> Option<Self> {
        let left = total([same_llc, same_node, other_node, unknown]);
        let all = near.saturating_add(left);
        Some(Self {
            all,
            share: ratio(left, all)?,
            llc: ratio(total([same_node, other_node]), all)?,
            node: ratio(other_node, all)?,
        })
    }

    /// Of packets. Siblings share all caches: what goes to one has not left.
    fn of_packets(d: &Distances) -> Option<Self> {
        let near = d.same_cpu.saturating_add(d.same_core);
        Self::of(near, d.same_llc, d.same_node, d.other_node, d.unknown)
    }

    /// `12.3% under another last-level cache, 4.50% on another node`; nothing when none did.
    pub(crate) fn how_far(&self) -> String {
        let parts = [(self.llc, Boundary::Llc), (self.node, Boundary::Node)];
        let parts = parts.into_iter().filter(|(share, _)| *share > 0.0);
        let words = parts.map(|(share, far)| format!(", {} {}", text::percent(share), far.at()));
        words.collect()
    }
}

impl<'a> Context<'a> {
    /// Packets of a direction that were freed elsewhere; `None` if too few were measured.
    pub(crate) fn freed_elsewhere(
        &self,
        direction: Direction,
    ) -> Option<(&'a Locality, Elsewhere)> {
        let m = self.locality?;
        let distances = match direction {
            Direction::Rx => &m.rx,
            Direction::Tx => &m.tx,
        };
        let elsewhere = Elsewhere::of_packets(distances);
        Some((m, elsewhere.filter(|elsewhere| elsewhere.all >= LOAD)?))
    }

    /// `nearpath steer` for each port that several sockets of one server share, by the facts.
    pub(crate) fn steer_changes(&self) -> Vec<ProposedChange> {
        let mut groups: BTreeMap<(SocketProtocol, IpAddr, u16), (u64, BTreeSet<u32>)> =
            BTreeMap::new();
        for socket in self.host.sockets.iter().filter(|s| !s.connected && s.port != MDNS) {
            let group = groups.entry((socket.protocol, socket.address, socket.port)).or_default();
            group.0 += 1;
            group.1.extend(&socket.pids);
        }
        groups
            .into_iter()
            .filter(|(_, (sockets, pids))| *sockets > 1 && self.is_one_server(pids))
            .map(|((protocol, _, port), (sockets, _))| steer_change(protocol, port, sockets))
            .collect()
    }

    /// Whether all of them are of one name: workers, and not programs that hear the same port.
    fn is_one_server(&self, pids: &BTreeSet<u32>) -> bool {
        let owners = self.host.owners.iter().filter(|owner| pids.contains(&owner.pid));
        owners.map(|owner| owner.comm.as_str()).collect::<BTreeSet<_>>().len() == 1
    }
}

/// The port that every program may share which looks for its neighbours (RFC 6762).
const MDNS: u16 = 5353;

/// Steers a group.
pub(crate) fn steer_change(protocol: SocketProtocol, port: u16, sockets: u64) -> ProposedChange {
    let why = format!(
        "{sockets} sockets share the port: each connection goes to the worker nearest to the CPU \
         that receives it, instead of by a hash."
    );
    ProposedChange::new(Proposal::Steering { protocol, port }, None, "on", why)
}

/// The check of a direction: what is common to both.
pub(crate) fn check_direction(
    context: &Context<'_>,
    direction: Direction,
    what: &str,
    changes: impl FnOnce() -> Vec<ProposedChange>,
) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    if context.host.topology.online.len() == 1 {
        return outcome;
    }
    if context.locality.is_none() {
        outcome.not_checked(NOT_MEASURED);
        return outcome;
    }
    let measured = context.freed_elsewhere(direction);
    let Some((m, elsewhere)) = measured.filter(|(_, e)| e.share >= NOTABLE_SHARE) else {
        return outcome;
    };
    let share = text::percent(elsewhere.share);
    let title = format!("{share} of {what} packets are freed on another core");
    let mut finding = Finding::new(Severity::Info, title)
        .share(Some(elsewhere.share), text::packets(elsewhere.all));
    finding.evidence = evidence(m, direction, what, elsewhere);
    finding.changes = changes();
    outcome.findings.push(finding);
    outcome
}

/// Why there is no evidence.
const NOT_MEASURED: &str = "the locality of packets was not measured";

fn evidence(m: &Locality, direction: Direction, what: &str, elsewhere: Elsewhere) -> Vec<String> {
    let Elsewhere { all, share, .. } = elsewhere;
    let rate = if m.duration_s > 0.0 && m.duration_s.is_finite() {
        format!(" ({} a second)", text::digits(all as f64 / m.duration_s))
    } else {
        String::new()
    };
    let (share, far) = (text::percent(share), elsewhere.how_far());
    let mut said = vec![format!("Of {all} {what} packets{rate} {share} left their core{far}.")];
    if m.method == Method::Tracepoints {
        let unseen = match direction {
            Direction::Rx => "from where they were first seen to where they were read",
            Direction::Tx => "TCP's data from its sender to its transmission, without its ACK",
        };
        said.push(format!("Seen at tracepoints alone: {unseen}."));
    }
    let mut ways: Vec<_> = m.places.iter().filter(|p| p.direction == direction).collect();
    ways.retain(|p| p.place.from_cpu != p.place.to_cpu && p.place.count.saturating_mul(20) >= all);
    ways.sort_by_key(|p| (std::cmp::Reverse(p.place.count), p.place.from_cpu, p.place.to_cpu));
    let way = |p: &&nearpath_model::locality::CpuPairCount| {
        let share = text::percent((p.place.count as f64 / all as f64).min(1.0));
        format!("{share} from CPU {} to CPU {}", p.place.from_cpu, p.place.to_cpu)
    };
    let ways: Vec<String> = ways.iter().take(NAMED).map(way).collect();
    if !ways.is_empty() {
        said.push(format!("Most of them: {}.", text::list(&ways)));
    }
    said.extend(worst_groups(m, direction));
    if direction == Direction::Rx && m.packets.returned > 0 {
        let returned = m.packets.returned;
        said.push(format!("The kernel sent {returned} packets back to be freed on their own CPU."));
    }
    said
}

/// Where the measurement was split, the groups of which most left.
fn worst_groups(m: &Locality, direction: Direction) -> Option<String> {
    let of = |group: &nearpath_model::locality::LocalityGroup| {
        let distances = if direction == Direction::Rx { group.rx } else { group.tx };
        let elsewhere = Elsewhere::of_packets(&distances);
        let elsewhere = elsewhere.filter(|e| e.all >= LOAD && e.share >= NOTABLE_SHARE)?;
        Some((elsewhere.share, text::clean(&group.name)))
    };
    let mut groups: Vec<(f64, String)> = m.groups.iter().filter_map(of).collect();
    groups.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    let words: Vec<String> = groups
        .iter()
        .take(NAMED)
        .map(|(share, name)| format!("{} of {name}", text::percent(*share)))
        .collect();
    (!words.is_empty()).then(|| format!("By group: {}.", text::list(&words)))
}

/// Steering where a server's sockets share a port; else RFS, which has a flow's packets received on
/// the CPU that last read from it or sent by it.
pub(crate) fn bring_to_their_cpu(context: &Context<'_>) -> Vec<ProposedChange> {
    let steering = context.steer_changes();
    if !steering.is_empty() {
        return steering;
    }
    let nics = context.hardware_nics();
    let queues: Vec<Steered<'_>> = nics
        .flat_map(|nic| nic.rx_queues.iter().map(move |queue| (nic, queue)))
        .map(|(nic, queue)| Steered { nic, queue, cpus: CpuSet::new() })
        .collect();
    if queues.is_empty() { Vec::new() } else { rfs_changes(context, &queues) }
}
