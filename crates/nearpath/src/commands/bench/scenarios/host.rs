//! The host of the scenarios: what is near the NIC, and the plan of the full optimisation, which is in force
//! only while its blocks are measured.

use anyhow::{Context, bail};
use nearpath_diagnose::diagnose;
use nearpath_host::{Root, Wanted, current_netns};
use nearpath_model::{CpuSet, Goal, NodeId, Step};
use nearpath_trial::affinity;
use nearpath_trial::scenarios::interface_of;
use nearpath_tune::planners::{Request, plan};
use nearpath_tune::{Executor, Journal, Live, steering};
use std::net::IpAddr;

/// What the application is bound to.
pub(super) struct Near {
    pub(super) nic: Option<String>,
    pub(super) node: Option<NodeId>,
    /// `None`: there is nothing to bind to.
    pub(super) cpus: Option<CpuSet>,
    /// The node that memory comes from; `None`: the kernel has none.
    pub(super) memory: Option<NodeId>,
    /// What is to be known of the result.
    pub(super) notes: Vec<String>,
}

impl Near {
    /// Finds the interface, its node, and the CPUs of that which this process may use.
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
            bail!("no interface here has the address {address}");
        };
        let found = host.nics.iter().find(|found| found.name == nic);
        if found.is_none() && nic != "lo" {
            bail!("there is no interface {nic}");
        }
        let allowed = affinity::current().context("cannot tell the CPUs of this process")?;
        let allowed = allowed.intersection(&host.topology.online);
        let mut notes = Vec::new();
        let nodes = host.topology.nodes.iter().filter(|node| !node.cpus.is_empty()).count();
        let mut node = found.and_then(|nic| nic.numa_node);
        let cpus = match (cpus, node) {
            (Some(cpus), _) => {
                let nodes = host.topology.nodes_of(cpus);
                // Memory comes from where the CPUs are.
                node = match nodes[..] {
                    [one] => Some(one),
                    _ => node,
                };
                if !cpus.is_subset(&allowed) {
                    bail!("of --cpus {cpus} only {} can be used", cpus.intersection(&allowed));
                }
                Some(cpus.clone())
            }
            (None, Some(node)) => {
                let cpus = host.topology.node(node).map(|node| node.cpus.intersection(&allowed));
                cpus.filter(|cpus| !cpus.is_empty())
            }
            // The only node there is.
            (None, None) if nodes == 1 => Some(allowed.clone()),
            (None, None) => None,
        };
        if node.is_none() && nodes == 1 {
            node = host.topology.nodes.iter().find(|node| !node.cpus.is_empty()).map(|n| n.node);
        }
        match &cpus {
            None => notes.push(format!(
                "the node of {nic} is not known: nothing is bound to CPUs or memory (--cpus)"
            )),
            Some(cpus) if *cpus == allowed => notes.push(
                "the CPUs near the interface are all that there are: binding to them can make no \
                 difference (--cpus)"
                    .to_owned(),
            ),
            Some(_) => {}
        }
        if nodes <= 1 {
            notes.push("the host has one node: binding memory can make no difference".to_owned());
        }
        Ok(Self { nic: Some(nic), node, cpus, memory: node, notes })
    }
}

/// The plan of the full optimisation, and whether it is in force. Dropped it is undone.
pub(super) struct Tuned {
    executor: Option<Executor<Live>>,
    steps: Vec<Step>,
    ids: Vec<String>,
    boot: String,
    /// The journal's last change before.
    base: u64,
    is_in_force: bool,
}

impl Tuned {
    /// Plans for an interface, as `tune plan --nic` does.
    pub(super) fn plan(root: &Root, nic: Option<&str>) -> anyhow::Result<Self> {
        let boot = steering::boot(root)?;
        let wanted = Wanted { sockets: true, ..Wanted::default() };
        let host = nearpath_host::read(root, &wanted).context("cannot read the host")?;
        let is_known = |name: &&str| host.nics.iter().any(|nic| nic.name == **name);
        let Some(nic) = nic.filter(is_known) else {
            // Of loopback there is nothing to tune.
            let (executor, steps, ids) = (None, Vec::new(), Vec::new());
            return Ok(Self { executor, steps, ids, boot, base: 0, is_in_force: false });
        };
        let findings = diagnose(&host, None, None).findings;
        let request =
            Request { goal: Goal::Latency, nics: vec![nic.to_owned()], ..Request::default() };
        let netns = current_netns(root).inode;
        let plan = plan(&host, &findings, &request, &[], Some(boot.clone()), netns)?;
        let steps = plan.steps(&[], &boot, netns)?;
        let ids: Vec<String> = plan.changes.iter().map(|change| change.id.clone()).collect();
        let executor = if steps.is_empty() {
            None
        } else {
            Some(Executor::new(Journal::open(&Journal::folder(), &boot)?, Live::new()))
        };
        Ok(Self { executor, steps, ids, boot, base: 0, is_in_force: false })
    }

    /// The ids of its changes.
    pub(super) fn ids(&self) -> Vec<String> {
        self.ids.clone()
    }

    /// What is to be known of it.
    pub(super) fn note(&self) -> Option<String> {
        self.steps.is_empty().then(|| {
            "there is nothing to optimise at the interface: the full optimisation is CPU + memory \
             binding once more"
                .to_owned()
        })
    }

    /// Puts it into force.
    pub(super) fn apply(&mut self) -> anyhow::Result<()> {
        let Some(executor) = &mut self.executor else { return Ok(()) };
        self.base = executor.entries().last().map_or(0, |entry| entry.id);
        self.is_in_force = true;
        executor.apply_steps(self.steps.clone())?;
        Ok(())
    }

    /// Undoes it, if it is in force.
    pub(super) fn undo(&mut self) -> anyhow::Result<()> {
        let Some(executor) = self.executor.as_mut().filter(|_| self.is_in_force) else {
            return Ok(());
        };
        for (entry, undone) in executor.rollback(Some(self.base), &self.boot) {
            undone.with_context(|| format!("change {} could not be undone", entry.id))?;
        }
        self.is_in_force = false;
        Ok(())
    }
}

impl Drop for Tuned {
    fn drop(&mut self) {
        // What goes wrong was told when it was undone before; the journal has it still.
        let _ = self.undo();
    }
}
