//! The target of an application: the node that its packets arrive on, and the CPUs of that node it can use.
//!
//! Input: the requested NICs and the request. Output: CPUs. All planners that place applications use it, so that
//! threads, unit and cgroup agree.

use super::draft::Draft;
use super::situation::Situation;
use nearpath_diagnose::cpus_near_node;
use nearpath_model::{CpuId, CpuSet, Goal, NodeId};
use std::collections::BTreeSet;

/// The target of an application.
#[derive(Debug)]
pub(super) struct TargetNode {
    /// The node; `None` if there is only one.
    pub node: Option<NodeId>,
    /// The CPUs on which a thread is well placed.
    pub near: CpuSet,
    /// Those that threads may be moved to, best first; not empty.
    pub pool: Vec<CpuId>,
    /// Those of the pool without interrupts.
    pub free: Vec<CpuId>,
    /// Whether the kernel does not balance load between these CPUs (`isolcpus=domain`, or an isolated partition of
    /// cgroups), now or after the reboot that
    /// the plan requires: threads that may run on all of them stay on the CPU they woke on.
    pub unbalanced: bool,
}

impl TargetNode {
    /// # Errors
    /// Why it is unknown, or that no CPU is left.
    pub fn of(situation: &Situation<'_>, draft: &Draft) -> Result<Self, String> {
        let node = node(situation)?;
        let pool = situation.division(node).app.clone();
        if pool.is_empty() {
            return Err("no CPU near the NIC is left for the application".to_owned());
        }
        // Also those of other NICs: their CPUs are taken.
        let interrupts = draft
            .cpus_of_irqs(situation, situation.hardware())
            .union(&situation.cpus_of_other_nics());
        let free = pool.iter().copied().filter(|&cpu| !interrupts.contains(cpu)).collect();
        let unbalanced = unbalanced(situation, &pool);
        Ok(Self { node, near: near(situation, node), pool, free, unbalanced })
    }

    /// The CPUs for a number of threads: those without interrupts, or all if these are too few.
    pub fn cpus(&self, threads: usize) -> &[CpuId] {
        if self.free.len() >= threads { &self.free } else { &self.pool }
    }
}

/// The node that packets arrive on; `None` if there is only one.
pub(super) fn node(situation: &Situation<'_>) -> Result<Option<NodeId>, String> {
    if situation.host.topology.nodes.len() < 2 {
        return Ok(None);
    }
    let nodes: BTreeSet<Option<NodeId>> = situation.hardware().map(|nic| nic.numa_node).collect();
    let mut known = nodes.iter().flatten();
    match (known.next(), known.next(), nodes.contains(&None)) {
        (Some(&node), None, false) => Ok(Some(node)),
        (None, None, false) if situation.some_are_aside() => Err(
            "this plan sets up the queues of the NIC again; plan the threads once it is applied"
                .to_owned(),
        ),
        (None, None, false) => Err("there is no NIC with its own interrupts".to_owned()),
        (_, _, true) => Err("the node of a NIC is unknown; select others with --nic".to_owned()),
        (_, Some(_), _) => Err("the NICs are on several nodes; select one with --nic".to_owned()),
    }
}

/// Whether the application needs the kernel to balance its load over the requested CPUs: nobody pins the threads that a
/// service starts with, or those that start later in a cgroup.
pub(super) fn needs_balancing(situation: &Situation<'_>) -> bool {
    let Situation { request, workloads, .. } = situation;
    let several = request.app_cpus.as_ref().is_some_and(|cpus| cpus.len() > 1);
    several && (request.cpuset || workloads.iter().any(|workload| workload.service.is_some()))
}

/// Whether some of these CPUs are, or will be, in no scheduling domain (kernel/sched/isolation.c).
fn unbalanced(situation: &Situation<'_>, pool: &[CpuId]) -> bool {
    let Situation { host, request, .. } = situation;
    let isolates = request.goal == Goal::Isolation && request.app_cpus.is_some();
    let planned = isolates && !needs_balancing(situation);
    let isolated = host.kernel.all_isolated();
    planned || isolated.is_some_and(|cpus| pool.iter().any(|&cpu| cpus.contains(cpu)))
}

/// The CPUs on which a thread is well placed: any near CPU, unless those for the application are reserved.
fn near(situation: &Situation<'_>, node: Option<NodeId>) -> CpuSet {
    let request = situation.request;
    let division = situation.division(node);
    let is_chosen = request.app_cpus.is_some() || request.goal == Goal::Isolation;
    if is_chosen || division.is_apart() || division.why.is_some() {
        return division.app.iter().copied().collect();
    }
    let near = cpus_near_node(&situation.host.topology, node);
    request.exclude_cpus.as_ref().map_or_else(|| near.clone(), |cpus| near.difference(cpus))
}

/// Whether a node has memory, as far as known: nothing can run with its memory bound to a node without.
pub(super) fn has_memory(situation: &Situation<'_>, node: NodeId) -> bool {
    let node = situation.host.topology.node(node);
    node.is_some_and(|node| node.memory_bytes != Some(0))
}
