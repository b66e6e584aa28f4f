//! The host of the scenarios: the CPUs and memory near the NIC, and the plan of the full optimisation, which
//! is applied only while its blocks are measured.

use crate::guardian::{Guardian, executor};
use anyhow::{Context, bail};
use nearpath_diagnose::diagnose;
use nearpath_host::{Root, Wanted, current_netns};
use nearpath_model::{Change, CpuSet, Goal, Node, NodeId, Pending, Step, Sysctl, Target, Topology};
use nearpath_trial::affinity;
use nearpath_trial::scenarios::interface_of;
use nearpath_tune::planners::{Request, plan};
use nearpath_tune::{Executor, Live, steering};
use std::net::IpAddr;

/// What the application is bound to.
pub(super) struct Near {
    pub(super) nic: Option<String>,
    pub(super) node: Option<NodeId>,
    /// `None`: nothing to bind to.
    pub(super) cpus: Option<CpuSet>,
    /// The node that memory is allocated from; `None`: the kernel has no nodes.
    pub(super) memory: Option<NodeId>,
    /// The node that is furthest from it, with its CPUs; `None`: there is none.
    pub(super) far: Option<(NodeId, CpuSet)>,
    /// Notes on the result.
    pub(super) notes: Vec<String>,
}

impl Near {
    /// Finds the interface, its node, and the CPUs of that node that this process may use.
    pub(super) fn find(
        root: &Root,
        address: IpAddr,
        nic: Option<&str>,
        cpus: Option<&CpuSet>,
    ) -> anyhow::Result<Self> {
        let host = nearpath_host::read(root, &Wanted::default()).context("cannot read the host")?;
        let nic = match nic {
            Some(name) => Some(name.to_owned()),
            None => interface_of(address).context("cannot list the interfaces")?,
        };
        let Some(nic) = nic else {
            bail!("no interface of this host has the address {address}");
        };
        let found = host.nics.iter().find(|found| found.name == nic);
        if found.is_none() && nic != "lo" {
            bail!("no such interface: {nic}");
        }
        let allowed =
            affinity::current().context("cannot read the CPU affinity of this process")?;
        let allowed = allowed.intersection(&host.topology.online);
        let mut notes = Vec::new();
        let nodes = host.topology.nodes.iter().filter(|node| !node.cpus.is_empty()).count();
        let mut node = found.and_then(|nic| nic.numa_node);
        let cpus = match (cpus, node) {
            (Some(cpus), _) => {
                let nodes = host.topology.nodes_of(cpus);
                // Memory is allocated on the node of the CPUs.
                node = match nodes[..] {
                    [one] => Some(one),
                    _ => node,
                };
                if !cpus.is_subset(&allowed) {
                    bail!("only {} of --cpus {cpus} can be used", cpus.intersection(&allowed));
                }
                Some(cpus.clone())
            }
            (None, Some(node)) => {
                let cpus = host.topology.node(node).map(|node| node.cpus.intersection(&allowed));
                cpus.filter(|cpus| !cpus.is_empty())
            }
            // The host has only one node.
            (None, None) if nodes == 1 => Some(allowed.clone()),
            (None, None) => None,
        };
        if node.is_none() && nodes == 1 {
            node = host.topology.nodes.iter().find(|node| !node.cpus.is_empty()).map(|n| n.node);
        }
        match &cpus {
            None => notes.push(format!(
                "the NUMA node of {nic} is unknown: no binding to CPUs or memory; give --cpus"
            )),
            Some(cpus) if *cpus == allowed => notes.push(
                "all CPUs are near the interface: binding to them makes no difference; give \
                 --cpus"
                    .to_owned(),
            ),
            Some(_) => {}
        }
        if nodes <= 1 {
            notes.push("the host has one NUMA node: binding memory makes no difference".to_owned());
        }
        let far = node.and_then(|node| far(&host.topology, node, &allowed));
        Ok(Self { nic: Some(nic), node, cpus, memory: node, far, notes })
    }
}

/// The node with memory and usable CPUs that is furthest from another.
fn far(topology: &Topology, from: NodeId, allowed: &CpuSet) -> Option<(NodeId, CpuSet)> {
    let distance = |node: &Node| node.distances.get(&from).copied().unwrap_or_default();
    let others = topology.nodes.iter().filter(|node| node.node != from);
    others
        .filter(|node| node.memory_bytes.is_none_or(|bytes| bytes > 0))
        .map(|node| (distance(node), node.node, node.cpus.intersection(allowed)))
        .filter(|(_, _, cpus)| !cpus.is_empty())
        .max_by_key(|(distance, node, _)| (*distance, std::cmp::Reverse(*node)))
        .map(|(_, node, cpus)| (node, cpus))
}

/// The changes of a scenario, and whether they are applied. They are undone when this is dropped.
pub(super) struct Tuned {
    /// While they are applied: the journal is locked meanwhile.
    executor: Option<Executor<Live>>,
    guardian: Option<Guardian>,
    steps: Vec<Step>,
    ids: Vec<String>,
    boot: String,
    /// The last change in the journal before it was applied.
    base: u64,
}

impl Tuned {
    /// Plans for an interface, as `tune plan --nic` does.
    pub(super) fn plan(root: &Root, nic: Option<&str>) -> anyhow::Result<Self> {
        let boot = steering::boot(root)?;
        let wanted = Wanted { sockets: true, ..Wanted::default() };
        let host = nearpath_host::read(root, &wanted).context("cannot read the host")?;
        let is_known = |name: &&str| host.nics.iter().any(|nic| nic.name == **name);
        let Some(nic) = nic.filter(is_known) else {
            // Loopback has nothing to tune.
            return Ok(Self::of(Vec::new(), Vec::new(), boot));
        };
        let findings = diagnose(&host, None, None).findings;
        let request =
            Request { goal: Goal::Latency, nics: vec![nic.to_owned()], ..Request::default() };
        let netns = current_netns(root).inode;
        let plan = plan(&host, &findings, &request, &[], Some(boot.clone()), netns)?;
        let steps = plan.steps(&[], &boot, netns)?;
        let ids: Vec<String> = plan.changes.iter().map(|change| change.id.clone()).collect();
        Ok(Self::of(steps, ids, boot))
    }

    fn of(steps: Vec<Step>, ids: Vec<String>, boot: String) -> Self {
        Self { executor: None, guardian: None, steps, ids, boot, base: 0 }
    }

    /// AutoNUMA on or off; nothing to change if it is.
    pub(super) fn autonuma(root: &Root, is_on: bool) -> anyhow::Result<Self> {
        let sysctl = Sysctl::parse("kernel.numa_balancing").context("no such sysctl")?;
        let before = root
            .text("/proc/sys/kernel/numa_balancing")
            .context("the kernel has no AutoNUMA (kernel.numa_balancing)")?;
        let target = Target::from(sysctl);
        let after = if is_on { "1" } else { "0" };
        let change = Change {
            persistence: target.persistence(),
            before: before.trim().into(),
            after: after.into(),
            why: "a scenario of 'bench scenarios'".to_owned(),
            snapshot: Vec::new(),
            target,
        };
        let steps = match before.trim() == after {
            true => Vec::new(),
            false => vec![Step { change, optional: false }],
        };
        Ok(Self::of(steps, Vec::new(), steering::boot(root)?))
    }

    /// Ids of its changes.
    pub(super) fn ids(&self) -> Vec<String> {
        self.ids.clone()
    }

    /// A note on it, if any.
    pub(super) fn note(&self) -> Option<String> {
        self.steps.is_empty().then(|| {
            "nothing to tune on the interface: 'full' is the same as CPU + memory \
             binding"
                .to_owned()
        })
    }

    /// Applies it.
    pub(super) fn apply(&mut self) -> anyhow::Result<()> {
        if self.steps.is_empty() {
            return Ok(());
        }
        let executor = executor(&self.boot, Live::new())?.pending(Some(Pending::Trial));
        self.guardian = Some(Guardian::start(Pending::Trial)?);
        let executor = self.executor.insert(executor);
        self.base = executor.last();
        executor.apply_steps(self.steps.clone())?;
        Ok(())
    }

    /// Undoes it if it is applied.
    pub(super) fn undo(&mut self) -> anyhow::Result<()> {
        let Some(executor) = &mut self.executor else { return Ok(()) };
        for (entry, undone) in executor.rollback(Some(self.base), &self.boot) {
            undone.with_context(|| format!("change {} could not be undone", entry.id))?;
        }
        self.executor = None;
        self.guardian.take().map_or(Ok(()), Guardian::finish)
    }
}

impl Drop for Tuned {
    fn drop(&mut self) {
        // Errors were reported by the earlier undo; the journal still has the changes.
        let _ = self.undo();
    }
}
