//! Connections that are accepted, or datagrams that are read, on another CPU than they are received on.
//!
//! Input: the accepts measured by listener and thread, the sockets that share its port, and where NET_RX
//! ran. Output: a finding for each listener, with workers pinned to CPUs of their own and the port's
//! connections steered to them.
//!
//! Rules: Cloudflare's "Perfect locality" (accept() on the CPU that received the connection, by pinned workers with a
//! REUSEPORT socket each and a program that chooses among them).

use crate::counters::{ratio, total};
use crate::locality::{Elsewhere, steer_change};
use crate::place::allowed;
use crate::spans::NOTABLE_SHARE;
use crate::{Check, CheckOutcome, Context, nearest_cpus, text};
use nearpath_model::accepts::{Listener, Worker};
use nearpath_model::{
    CpuId, CpuSet, Finding, Proposal, ProposedChange, Protocol, Severity, SocketProtocol,
};
use std::collections::BTreeSet;
use std::net::SocketAddr;

pub(super) const CHECK: Check = Check::new(
    "accepts_off_cpu",
    "connections and datagrams that are taken on another CPU than they are received on",
    run,
);

/// Fewer accepts than this prove nothing.
const ENOUGH: u64 = 100;
/// Workers that are named, and pinned.
const NAMED: usize = 64;

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    if context.host.topology.online.len() == 1 {
        return outcome;
    }
    let Some(measured) = context.accepts else {
        outcome.not_checked("accepts were not measured");
        return outcome;
    };
    let words = Wording::of(measured.protocol);
    let listeners = measured.listeners.iter();
    outcome.findings.extend(listeners.filter_map(|l| finding(context, &words, l)));
    outcome
}

/// What differs between connections and datagrams.
struct Wording {
    protocol: SocketProtocol,
    what: &'static str,
    taken: &'static str,
}

impl Wording {
    fn of(protocol: Protocol) -> Self {
        if protocol == Protocol::Udp {
            Self { protocol: SocketProtocol::Udp, what: "datagrams", taken: "read" }
        } else {
            Self { protocol: SocketProtocol::Tcp, what: "connections", taken: "accepted" }
        }
    }
}

fn finding(context: &Context<'_>, words: &Wording, listener: &Listener) -> Option<Finding> {
    let p = &listener.places;
    let off = Elsewhere::of(p.same_cpu, p.same_llc, p.same_node, p.other_node, p.unknown)?;
    let reachable = reachable(context, listener);
    // Nine tenths of what could be accepted where it is received.
    let short = 1.0 - off.share < (1.0 - NOTABLE_SHARE) * reachable;
    if off.all < ENOUGH || !(short || off.llc >= NOTABLE_SHARE) {
        return None;
    }
    let local = text::clean(&listener.local);
    let share = text::percent(off.share);
    let Wording { what, taken, .. } = words;
    let title = format!("{share} of the {what} to {local} are {taken} off their CPU");
    let mut finding = Finding::new(Severity::Info, title)
        .share(Some(off.share), format!("{} {what}", text::short(off.all)))
        .evidence(format!(
            "Of {} {what} {share} were {taken} on another CPU than they were received on{}.",
            off.all,
            off.how_far()
        ));
    let workers = &listener.workers;
    let pinned = workers.iter().filter_map(own_cpu).collect::<BTreeSet<_>>().len();
    finding = finding.evidence(format!(
        "{} {taken} them, {pinned} pinned to a dedicated CPU.",
        text::count(workers.len() as u64, "thread")
    ));
    if reachable < 1.0 {
        finding = finding.evidence(format!(
            "{} of NET_RX ran on CPUs that have a worker: this is the upper bound.",
            text::percent(reachable)
        ));
    }
    fix(context, words.protocol, listener, finding)
}

/// The share of connections that have a worker on the CPU that receives them, as far as NET_RX shows
/// where that is. A worker that may run on several CPUs may be moved to any.
fn reachable(context: &Context<'_>, listener: &Listener) -> f64 {
    let own: Option<CpuSet> = listener.workers.iter().map(own_cpu).collect();
    let (Some(own), Some(runs)) = (own, context.softirqs("NET_RX")) else { return 1.0 };
    let there = total(runs.iter().filter(|(cpu, _)| own.contains(**cpu)).map(|(_, n)| *n));
    ratio(there, total(runs.values().copied())).unwrap_or(1.0)
}

/// The only CPU that a worker may run on.
fn own_cpu(worker: &Worker) -> Option<CpuId> {
    worker.cpus.as_ref().filter(|cpus| cpus.len() == 1)?.first()
}

/// Adds what would bring them to their CPU, or what is in the way of it.
fn fix(
    context: &Context<'_>,
    protocol: SocketProtocol,
    listener: &Listener,
    finding: Finding,
) -> Option<Finding> {
    let local: SocketAddr = match listener.local.parse() {
        Ok(local) => local,
        Err(_) => return Some(finding),
    };
    let Some(first) = listener.workers.first() else { return Some(finding) };
    if is_elsewhere(context, listener.netns) {
        return Some(finding.evidence(format!(
            "It is in another network namespace: look there with --netns pid:{}.",
            first.pid
        )));
    }
    let sockets = context.host.sockets.iter().filter(|socket| {
        let at = (socket.protocol, socket.address, socket.port);
        at == (protocol, local.ip(), local.port())
    });
    let sockets = sockets.count() as u64;
    Some(match (sockets, listener.workers.as_slice()) {
        (0, _) => finding.evidence("How many sockets share its port is unknown."),
        (1, [_]) => finding.evidence(
            "One thread takes all: only what the CPU receives that it runs on can be local.",
        ),
        (1, _) => finding.evidence(
            "All share one socket: a REUSEPORT socket for each (nginx: listen … reuseport) could be steered.",
        ),
        _ => {
            let mut finding = finding;
            finding.changes = pin(context, &listener.workers);
            finding.change(steer_change(protocol, local.port(), sockets))
        }
    })
}

/// Whether the facts are known to be those of another network namespace.
fn is_elsewhere(context: &Context<'_>, netns: u32) -> bool {
    let here = context.host.nics.iter().find_map(|nic| nic.netns.inode);
    here.is_some_and(|here| here != u64::from(netns))
}

/// A CPU of its own for each worker that has none: those that receive first, then the nearest.
fn pin(context: &Context<'_>, workers: &[Worker]) -> Vec<ProposedChange> {
    let taken: CpuSet = workers.iter().filter_map(own_cpu).collect();
    let runs = context.softirqs("NET_RX").unwrap_or_default();
    let receives = |cpu: &CpuId| runs.get(cpu).is_some_and(|&n| n > 0);
    let mut free = nearest_cpus(context.host, None);
    free.retain(|cpu| !taken.contains(*cpu));
    free.sort_by_key(|cpu| !receives(cpu));
    let mut loose: Vec<&Worker> = workers.iter().filter(|w| own_cpu(w).is_none()).collect();
    loose.sort_by_key(|worker| (worker.pid, worker.tid));
    let change = |worker: &Worker| {
        let tid = Some(worker.tid).filter(|tid| *tid != worker.pid);
        let thread = Proposal::Affinity { pid: worker.pid, tid };
        let before = worker.cpus.as_ref()?.to_string();
        let owner = context.host.owners.iter().find(|owner| owner.pid == worker.pid);
        let may_run = |cpu: &CpuId| {
            owner.is_none_or(|o| allowed(context.host, o, &CpuSet::from_iter([*cpu])).is_some())
        };
        let cpu = free.remove(free.iter().position(may_run)?);
        let why = "Connections can be steered to a worker that stays on its CPU.";
        Some(ProposedChange::new(thread, Some(before), cpu.to_string(), why))
    };
    loose.into_iter().take(NAMED).filter_map(change).collect()
}
