//! The threads of an application to the node that its packets arrive on.
//!
//! In go the processes that were asked for and where the interrupts will be. Out come changes of the
//! affinity of each thread that may run elsewhere. Threads that are pinned each to its own CPU keep
//! a CPU each; others get all CPUs that are left by the interrupts, or all of the node where too few
//! are left.
//!
//! Rules: document 000 (CPU binding to the NIC's node), document 002 (placement of the application).

use super::Planner;
use super::draft::{Draft, Wish};
use super::place::Places;
use super::situation::{Situation, cpus_and_nodes};
use super::workload::{Worker, Workload};
use crate::plan::Goal;
use nearpath_diagnose::{cpus_near_node, nearest_cpus};
use nearpath_host::{CpuId, CpuSet, NodeId};
use std::collections::{BTreeMap, BTreeSet};

pub(super) const PLANNER: Planner = Planner {
    name: "thread_affinity",
    plans: "threads of the application to the node that its packets arrive on",
    run,
};

fn run(situation: &Situation<'_>, draft: &mut Draft) {
    if situation.workloads.is_empty() {
        return;
    }
    let home = match home(situation) {
        Ok(home) => home,
        Err(reason) => return draft.note(format!("no thread is moved: {reason}")),
    };
    // Where threads may be already, and where they would be moved.
    let (near, pool) = (near(situation, home), pool(situation, home));
    if pool.is_empty() {
        return draft.note("no CPU near the NIC is left for the application".to_owned());
    }
    // Also those of NICs that were not asked for: nobody is given their CPU.
    let interrupts =
        draft.cpus_of_irqs(situation, situation.hardware()).union(&situation.cpus_of_other_nics());
    let free: Vec<CpuId> = pool.iter().copied().filter(|&cpu| !interrupts.contains(cpu)).collect();
    let mut places = Places::new(&situation.host.topology);
    for worker in situation.workloads.iter().flat_map(|workload| &workload.threads) {
        if let Some(cpu) = pinned(worker).filter(|&cpu| near.contains(cpu)) {
            places.take(cpu);
        }
    }
    for workload in situation.workloads {
        let stray: Vec<&Worker> =
            workload.threads.iter().filter(|worker| !worker.cpus.is_subset(&near)).collect();
        if stray.is_empty() {
            continue;
        }
        let wanted = wanted(&stray);
        let cpus = if free.len() >= wanted { &free } else { &pool };
        move_there(situation, draft, workload, &stray, cpus, &mut places);
        if let Some(node) = home {
            draft.note(format!(
                "the memory of {} ({}) stays where it is; start it with numactl --cpunodebind={node} \
                 --membind={node} to have it on node {node} from the first page",
                workload.comm, workload.pid
            ));
        }
    }
}

/// The one CPU that a thread is pinned to.
fn pinned(worker: &Worker) -> Option<CpuId> {
    if worker.cpus.len() == 1 { worker.cpus.first() } else { None }
}

/// The node that packets arrive on; `None` where there is only one.
fn home(situation: &Situation<'_>) -> Result<Option<NodeId>, String> {
    if situation.host.topology.nodes.len() < 2 {
        return Ok(None);
    }
    let nodes: BTreeSet<Option<NodeId>> = situation.hardware().map(|nic| nic.numa_node).collect();
    let mut known = nodes.iter().flatten();
    match (known.next(), known.next(), nodes.contains(&None)) {
        (Some(&node), None, false) => Ok(Some(node)),
        (None, None, false) => Err("no NIC with interrupts of its own is here".to_owned()),
        (_, _, true) => Err("the node of a NIC is unknown; choose others with --nic".to_owned()),
        (_, Some(_), _) => Err("the NICs are on several nodes; choose with --nic".to_owned()),
    }
}

/// The CPUs on which a thread is well placed.
fn near(situation: &Situation<'_>, home: Option<NodeId>) -> CpuSet {
    let near = cpus_near_node(&situation.host.topology, home);
    match &situation.request.cpus {
        Some(cpus) => cpus.clone(),
        None if situation.request.goal == Goal::Isolation => {
            pool(situation, home).into_iter().collect()
        }
        None => near,
    }
}

/// The CPUs that threads may be moved to, best first.
fn pool(situation: &Situation<'_>, home: Option<NodeId>) -> Vec<CpuId> {
    let request = situation.request;
    if let Some(cpus) = &request.cpus {
        return cpus.iter().collect();
    }
    let mut pool = nearest_cpus(situation.host, home);
    if request.goal == Goal::Isolation
        && let Some(isolated) = &situation.host.kernel.isolated
    {
        let near = cpus_near_node(&situation.host.topology, home);
        let isolated: Vec<CpuId> = isolated.intersection(&near).iter().collect();
        if !isolated.is_empty() {
            pool = isolated;
        }
    }
    pool.retain(|&cpu| request.housekeeping.as_ref().is_none_or(|cpus| !cpus.contains(cpu)));
    pool
}

/// How many CPUs some threads want: those that are pinned one for each that they had, others one
/// each.
fn wanted(threads: &[&Worker]) -> usize {
    let cpus: BTreeSet<CpuId> = threads.iter().filter_map(|worker| pinned(worker)).collect();
    cpus.len() + threads.iter().filter(|worker| pinned(worker).is_none()).count()
}

fn move_there(
    situation: &Situation<'_>,
    draft: &mut Draft,
    workload: &Workload,
    threads: &[&Worker],
    cpus: &[CpuId],
    places: &mut Places<'_>,
) {
    let all: CpuSet = cpus.iter().copied().collect();
    let mut moved: BTreeMap<CpuId, CpuId> = BTreeMap::new();
    for worker in threads {
        let after = match pinned(worker) {
            None => all.clone(),
            Some(old) => {
                let new = match moved.get(&old) {
                    Some(&new) => Some(new),
                    None => places.take_best(cpus, None),
                };
                let Some(new) = new else { continue };
                moved.insert(old, new);
                [new].into_iter().collect()
            }
        };
        change(situation, draft, workload, worker, &after);
    }
}

fn change(
    situation: &Situation<'_>,
    draft: &mut Draft,
    workload: &Workload,
    worker: &Worker,
    after: &CpuSet,
) {
    if worker.cpus == *after {
        return;
    }
    let topology = &situation.host.topology;
    draft.add(Wish {
        id: format!("thread-{}", worker.thread.tid),
        target: worker.thread.to_string(),
        before: worker.cpus.to_string(),
        after: after.to_string(),
        why: format!(
            "packets for {} arrive near {}, and it may run on {}",
            workload.comm,
            cpus_and_nodes(topology, after),
            cpus_and_nodes(topology, &worker.cpus)
        ),
        finding: situation.asked_by(&format!("affinity pid {}", workload.pid)),
    });
}
