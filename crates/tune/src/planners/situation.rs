//! The input of a planner: the host, its findings, the request, and lookups shared by planners.

use super::channels::ChannelCount;
use super::command_line::BootParameter;
use super::exclusive_cpus;
use super::hugepages::Hugepages;
use super::mode::{Division, Mode};
use super::napi::Napi;
use super::schedule::Schedule;
use super::system::System;
use super::traffic::Traffic;
use super::workload::Workload;
use crate::TuneError;
use nearpath_model::{
    CpuId, CpuSet, FileOf, Finding, Goal, Host, IfIndex, Irq, IrqNumber, Nic, NicKind, NodeId,
    Proposal, ProposedChange, QueueFile, QueueId, SocketProtocol, Target, Topology, TrafficClass,
    Value,
};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// The request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Request {
    /// The goal.
    pub goal: Goal,
    /// Interface names; empty means all of the namespace.
    pub nics: Vec<String>,
    /// How interrupts and the application share the CPUs near a NIC; `None` means automatic.
    pub mode: Option<Mode>,
    /// The CPUs for interrupts; `None` means automatic.
    pub irq_cpus: Option<CpuSet>,
    /// The CPUs for the application; `None` means automatic.
    pub app_cpus: Option<CpuSet>,
    /// CPUs for neither.
    pub exclude_cpus: Option<CpuSet>,
    /// Measured packets, which weight the queues in predictions; if empty, interrupts do.
    pub traffic: Traffic,
    /// The number of channels of each interface; `None` means automatic.
    pub channels: Option<ChannelCount>,
    /// Classes of received packets with the CPU of each.
    pub priorities: Vec<(TrafficClass, CpuId)>,
    /// How sent packets of some priorities are scheduled.
    pub schedules: Vec<Schedule>,
    /// Whether the application is bound through the cpuset of its cgroup instead of per thread.
    pub cpuset: bool,
    /// Whether irqbalance is stopped instead of excluding interrupts from it.
    pub stop_irqbalance: bool,
    /// How NAPI polls; `None` leaves it.
    pub napi: Option<Napi>,
    /// Whether the CPUs that handle packets run at full frequency.
    pub performance: bool,
    /// The wake-up latency of these CPUs in µs at most; 0: they never sleep.
    pub wakeup_us: Option<u32>,
    /// Whether to explain why other sysctls are not changed.
    pub reasons: bool,
    /// Whether the memory of the application is moved to the node.
    pub move_memory: bool,
    /// Hugepages by size; with the goal isolation they are reserved at boot.
    pub hugepages: Vec<Hugepages>,
    /// Kernel parameters that are added on request only, for the goal isolation.
    pub boot_parameters: Vec<BootParameter>,
    /// Sysctls, by dotted name, and their wanted values.
    pub sysctls: Vec<(String, String)>,
    /// The processes that findings propose to move.
    pub named: Vec<Workload>,
    /// State of the running system that is not part of the host's facts.
    pub system: System,
}

impl Request {
    /// The CPUs of the priorities.
    pub(super) fn priority_cpus(&self) -> CpuSet {
        self.priorities.iter().map(|(_, cpu)| *cpu).collect()
    }
}

/// The input of a planner.
#[derive(Debug)]
pub(super) struct Situation<'a> {
    pub host: &'a Host,
    pub findings: &'a [Finding],
    pub request: &'a Request,
    pub workloads: &'a [Workload],
    irqs: BTreeMap<IrqNumber, &'a Irq>,
    /// The check that proposed a change of a target.
    asked_by: BTreeMap<&'a Proposal, (&'a Finding, &'a ProposedChange)>,
    /// Interfaces excluded from further planning.
    aside: BTreeSet<IfIndex>,
    /// The CPUs near each node that NICs are on, and near none in particular.
    divisions: BTreeMap<Option<NodeId>, Division>,
}

impl<'a> Situation<'a> {
    /// # Errors
    /// The request names an interface or CPUs that do not exist.
    pub fn new(
        host: &'a Host,
        findings: &'a [Finding],
        request: &'a Request,
        workloads: &'a [Workload],
    ) -> Result<Self, TuneError> {
        let named = [&request.irq_cpus, &request.app_cpus, &request.exclude_cpus];
        for cpus in named.into_iter().flatten() {
            let missing = cpus.difference(&host.topology.online);
            if cpus.is_empty() || !missing.is_empty() {
                let which = if cpus.is_empty() { "no CPU".to_owned() } else { missing.to_string() };
                return Err(TuneError::Refused(format!("CPUs that are not online: {which}")));
            }
        }
        // A set holds no CPU beyond the kernel's maximum.
        let mut of_priorities = request.priorities.iter().map(|(_, cpu)| *cpu);
        if let Some(missing) = of_priorities.find(|&cpu| !host.topology.online.contains(cpu)) {
            return Err(TuneError::Refused(format!("CPUs that are not online: {missing}")));
        }
        super::schedule::check(host, request)?;
        apart(request)?;
        isolation(host, request)?;
        exclusive_cpus::check(host, request, workloads)?;
        let mut asked_by = BTreeMap::new();
        for finding in findings {
            for change in finding.changes.iter().filter(|change| !change.alternative) {
                asked_by.entry(&change.target).or_insert((finding, change));
            }
        }
        let irqs = host.irqs.iter().map(|irq| (irq.irq, irq)).collect();
        let aside = BTreeSet::new();
        let nodes: BTreeSet<Option<NodeId>> =
            host.nics.iter().map(|nic| nic.numa_node).chain([None]).collect();
        let division = |node| (node, Division::of(host, request, workloads, node));
        let divisions = nodes.into_iter().map(division).collect();
        Ok(Self { host, findings, request, workloads, irqs, asked_by, aside, divisions })
    }

    /// The requested interfaces that carry packets.
    pub fn nics(&self) -> impl Iterator<Item = &'a Nic> {
        let names = &self.request.nics;
        self.carrying().filter(|nic| {
            (names.is_empty() || names.contains(&nic.name)) && !self.aside.contains(&nic.ifindex)
        })
    }

    /// Names of the interfaces that were requested by name and are down.
    pub fn requested_down(&self) -> impl Iterator<Item = &'a str> {
        let requested = |nic: &&Nic| self.request.nics.contains(&nic.name);
        let down = |nic: &&Nic| nic.state.as_deref() == Some("down");
        self.host.nics.iter().filter(down).filter(requested).map(|nic| nic.name.as_str())
    }

    /// Those with their own interrupts.
    pub fn hardware(&self) -> impl Iterator<Item = &'a Nic> {
        self.nics().filter(|nic| is_hardware(nic))
    }

    /// The other interfaces with their own interrupts: they are not changed, but their CPUs are taken.
    pub fn other_hardware(&self) -> impl Iterator<Item = &'a Nic> {
        let names = &self.request.nics;
        self.carrying().filter(|nic| {
            let asked = names.is_empty() || names.contains(&nic.name);
            is_hardware(nic) && (!asked || self.aside.contains(&nic.ifindex))
        })
    }

    /// Excludes these interfaces from further planning.
    pub fn exclude(&mut self, nics: &BTreeSet<IfIndex>) {
        self.aside.clone_from(nics);
    }

    /// Why a fact of an interface is unknown.
    pub fn why_unknown(&self, nic: &Nic, fact: &str) -> Option<String> {
        let subject = format!("nic {}", nic.name);
        let about = |fields: &str| fields.split(", ").any(|field| field == fact);
        let mut unknown = self.host.unknown.iter();
        let found = unknown.find(|unknown| unknown.subject == subject && about(&unknown.fact))?;
        Some(found.reason.clone())
    }

    /// Whether a NIC with its own interrupts was requested, and is excluded from further planning.
    pub fn some_are_aside(&self) -> bool {
        let names = &self.request.nics;
        let mut aside = self.carrying().filter(|nic| self.aside.contains(&nic.ifindex));
        aside.any(|nic| is_hardware(nic) && (names.is_empty() || names.contains(&nic.name)))
    }

    /// The CPUs that interrupts of other interfaces are pinned to.
    pub fn cpus_of_other_nics(&self) -> CpuSet {
        let irqs = |nic| self.queue_irqs(nic).into_values().flatten();
        let all = self.other_hardware().flat_map(irqs);
        all.filter_map(|irq| irq.affinity.as_ref().filter(|cpus| cpus.len() == 1)?.first())
            .collect()
    }

    fn carrying(&self) -> impl Iterator<Item = &'a Nic> + use<'a> {
        let host = self.host;
        let is_up = |nic: &&Nic| nic.state.as_deref() != Some("down");
        host.nics.iter().filter(is_up).filter(|nic| host.data_path_of(nic).is_none())
    }

    /// The interrupt with this number.
    pub fn irq(&self, irq: IrqNumber) -> Option<&'a Irq> {
        self.irqs.get(&irq).copied()
    }

    /// The interrupts of each queue number of a NIC, ascending, the receive queue's first. A shared interrupt belongs to
    /// the first queue.
    pub fn queue_irqs(&self, nic: &Nic) -> BTreeMap<QueueId, Vec<&'a Irq>> {
        let rx = nic.rx_queues.iter().map(|queue| (queue.queue, queue.irq));
        let tx = nic.tx_queues.iter().map(|queue| (queue.queue, queue.irq));
        let mut seen = BTreeSet::new();
        let mut queues: BTreeMap<QueueId, Vec<&Irq>> = BTreeMap::new();
        for (queue, number) in rx.chain(tx) {
            if let Some(irq) = number.and_then(|number| self.irq(number))
                && seen.insert(irq.irq)
            {
                queues.entry(queue).or_default().push(irq);
            }
        }
        queues
    }

    /// The CPUs near a node: which are for interrupts, and which for the application.
    pub fn division(&self, node: Option<NodeId>) -> Cow<'_, Division> {
        match self.divisions.get(&node) {
            Some(division) => Cow::Borrowed(division),
            None => Cow::Owned(Division::of(self.host, self.request, self.workloads, node)),
        }
    }

    /// The CPUs for a NIC's interrupts, best first: near it, one CPU per core before SMT siblings, neither isolated nor
    /// excluded. The CPUs of priorities are left to them, unless there are no others.
    pub fn interrupt_cpus(&self, nic: &Nic) -> Vec<CpuId> {
        let all = self.division(nic.numa_node).irq.clone();
        let of_priorities = self.request.priority_cpus();
        let others: Vec<CpuId> =
            all.iter().copied().filter(|&cpu| !of_priorities.contains(cpu)).collect();
        if others.is_empty() { all } else { others }
    }

    /// Whether the number of queues follows that of the CPUs for interrupts: where the request sets these apart.
    pub fn queues_follow(&self) -> bool {
        let request = self.request;
        let is_requested = request.mode.is_some() || request.irq_cpus.is_some();
        request.channels.is_none() && (is_requested || request.goal == Goal::Isolation)
    }

    /// The check that proposed a change of this target.
    pub fn asked_by(&self, target: &Target) -> Option<String> {
        self.proposed(target).map(|(finding, _)| finding.check.clone())
    }

    /// The check that proposed moving the threads of a process.
    pub fn asked_to_move(&self, pid: u32) -> Option<String> {
        let proposal = Proposal::Affinity { pid, tid: None };
        self.asked_by.get(&&proposal).map(|(finding, _)| finding.check.clone())
    }

    /// The first proposal of the findings for a setting that is not an alternative.
    pub fn proposed(&self, target: &Target) -> Option<(&'a Finding, &'a ProposedChange)> {
        self.asked_by.get(&&Proposal::from(target.clone())).copied()
    }

    /// Whether programs may poll the queues of their sockets (Documentation/networking/napi.rst, "Busy polling"), or
    /// deferred interrupts are requested.
    pub fn polls(&self) -> bool {
        if matches!(self.request.napi, Some(Napi::Defer | Napi::BusyPoll | Napi::Suspend)) {
            return true;
        }
        let is_set =
            |name: &&str| self.host.sysctls.get(*name).is_some_and(|value| value.trim() != "0");
        ["net.core.busy_poll", "net.core.busy_read"].iter().any(is_set)
    }

    /// Whether a finding proposes RPS for a queue of an interface that has none.
    pub fn proposed_to_turn_on_rps(&self, nic: &Nic) -> bool {
        let turns_on = |change: &ProposedChange| {
            let Some(Target::File(file)) = change.target.setting() else { return false };
            let FileOf::Queue { nic: its, file: QueueFile::RpsCpus, .. } = &file.of else {
                return false;
            };
            let is_off = |value: &Value| {
                value
                    .text()
                    .and_then(|mask| CpuSet::from_mask(mask).ok())
                    .is_none_or(|c| c.is_empty())
            };
            *its == nic.name && change.before.as_ref().is_none_or(is_off) && !is_off(&change.after)
        };
        self.findings.iter().flat_map(|finding| &finding.changes).any(turns_on)
    }

    /// The check that proposed to steer the connections of a port to the nearest worker.
    pub fn asked_to_steer(&self, protocol: SocketProtocol, port: u16) -> Option<String> {
        let proposal = Proposal::Steering { protocol, port };
        self.asked_by.get(&&proposal).map(|(finding, _)| finding.check.clone())
    }
}

/// # Errors
/// CPUs are named for two things that exclude each other.
fn apart(request: &Request) -> Result<(), TuneError> {
    let Request { mode, irq_cpus, app_cpus, exclude_cpus, .. } = request;
    let is_isolation = request.goal == Goal::Isolation;
    if is_isolation && *mode == Some(Mode::Mq) {
        return Err(TuneError::Refused(
            "--mode mq lets interrupts and the application share CPUs, --goal isolation does not"
                .to_owned(),
        ));
    }
    let mut exclusive = vec![
        ("--irq-cpus", irq_cpus, "--exclude-cpus", exclude_cpus),
        ("--app-cpus", app_cpus, "--exclude-cpus", exclude_cpus),
    ];
    if is_isolation || mode.is_some_and(|mode| mode != Mode::Mq) {
        exclusive.push(("--irq-cpus", irq_cpus, "--app-cpus", app_cpus));
    }
    for (name, some, other, others) in exclusive {
        let both =
            some.as_ref().zip(others.as_ref()).map(|(some, others)| some.intersection(others));
        if let Some(both) = both.filter(|both| !both.is_empty()) {
            let both = cpus(&both);
            return Err(TuneError::Refused(format!(
                "{both} cannot be both in {name} and in {other}"
            )));
        }
    }
    Ok(())
}

/// # Errors
/// The isolated CPUs would leave none for everything else.
fn isolation(host: &Host, request: &Request) -> Result<(), TuneError> {
    let (Goal::Isolation, Some(cpus)) = (request.goal, &request.app_cpus) else { return Ok(()) };
    if host.topology.online.is_subset(cpus) {
        return Err(TuneError::Refused(format!(
            "--app-cpus {cpus} isolates all CPUs: none are left for interrupts and the rest of the system"
        )));
    }
    Ok(())
}

/// CPUs in words: `CPU 3`, `CPUs 0-3`.
pub(super) fn cpus(cpus: &CpuSet) -> String {
    let plural = if cpus.len() == 1 { "" } else { "s" };
    format!("CPU{plural} {cpus}")
}

/// CPUs with their nodes in words: `CPUs 0-3 (nodes 0 and 1)`.
pub(super) fn cpus_and_nodes(topology: &Topology, set: &CpuSet) -> String {
    let nodes: Vec<String> = topology.nodes_of(set).iter().map(ToString::to_string).collect();
    match nodes.as_slice() {
        [] => cpus(set),
        [node] => format!("{} (node {node})", cpus(set)),
        nodes => format!("{} (nodes {})", cpus(set), nodes.join(" and ")),
    }
}

/// Whether an interface has its own interrupts.
pub(super) fn is_hardware(nic: &Nic) -> bool {
    matches!(nic.kind, NicKind::Physical | NicKind::Vf | NicKind::Virtio)
}

/// The CPUs of an interrupt: `effective_affinity`, or `affinity` if that is unknown.
pub(super) fn goes_to(irq: &Irq) -> Option<&CpuSet> {
    let known = |cpus: &'_ &CpuSet| !cpus.is_empty();
    irq.effective_affinity.as_ref().filter(known).or(irq.affinity.as_ref().filter(known))
}

/// `6.1` of `6.1.0-44-amd64`.
pub(crate) fn version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_parsed_from_releases() {
        assert_eq!(version("6.1.0-44-amd64"), Some((6, 1)));
        assert_eq!(version("5.10"), Some((5, 10)));
        assert_eq!(version("6.18.44-fc-v595"), Some((6, 18)));
        assert_eq!(version(""), None);
        assert_eq!(version("next"), None);
    }
}
