//! Moves the threads of an application to the node that its packets arrive on.
//!
//! Input: the requested processes and the future CPUs of the interrupts. Output: affinity changes of each thread that
//! may run elsewhere. Threads that are each pinned to a CPU get a CPU each; others get all CPUs without interrupts, or
//! all CPUs of the node if too few are left. On isolated CPUs each thread is pinned to one, as the kernel does not
//! balance load between them.
//!
//! Rules: everoute's analysis of latency tails (CPU binding to the NIC's node), the chapter on NUMA for SR-IOV paths
//! (placement of the application).

use super::Planner;
use super::containers::Confined;
use super::cpu_allocator::CpuAllocator;
use super::draft::{Draft, DraftChange};
use super::situation::{Situation, cpus as cpus_of, cpus_and_nodes};
use super::target_node::TargetNode;
use super::workload::{Worker, Workload};
use nearpath_model::{CpuId, CpuSet};
use std::collections::{BTreeMap, BTreeSet};

pub(super) const PLANNER: Planner = Planner {
    name: "thread_affinity",
    plans: "application threads to the node that their packets arrive on",
    run,
};

fn run(situation: &Situation<'_>, draft: &mut Draft) {
    if situation.workloads.is_empty() {
        return;
    }
    let target_node = match TargetNode::of(situation, draft) {
        Ok(target_node) => target_node,
        Err(reason) => return draft.note(format!("no threads are moved: {reason}")),
    };
    let mut places = CpuAllocator::new(&situation.host.topology);
    for worker in situation.workloads.iter().flat_map(|workload| &workload.threads) {
        if let Some(cpu) = pinned(worker).filter(|&cpu| target_node.near.contains(cpu)) {
            places.take(cpu);
        }
    }
    for workload in situation.workloads {
        let threads = to_be_moved(workload, &target_node);
        if threads.is_empty() || draft.is_bound(workload.pid) {
            continue;
        }
        move_there(situation, draft, workload, &threads, &target_node, &mut places);
        if let Some(node) = target_node.node.filter(|_| !situation.request.move_memory) {
            draft.note(format!(
                "the memory of {} ({}) is not moved (--move-memory does, once); start it with numactl --cpunodebind={node} \
                 --membind={node} to allocate it on node {node}",
                workload.comm, workload.pid
            ));
        }
    }
}

/// The threads of a process that may run elsewhere.
pub(super) fn misplaced<'a>(workload: &'a Workload, target_node: &TargetNode) -> Vec<&'a Worker> {
    workload.threads.iter().filter(|worker| !worker.cpus.is_subset(&target_node.near)).collect()
}

/// The threads of a process that may run elsewhere, or on several CPUs without load balancing.
fn to_be_moved<'a>(workload: &'a Workload, target_node: &TargetNode) -> Vec<&'a Worker> {
    let moves = |worker: &&Worker| {
        !worker.cpus.is_subset(&target_node.near)
            || (target_node.unbalanced && pinned(worker).is_none())
    };
    workload.threads.iter().filter(moves).collect()
}

/// The CPU of a thread that is pinned to one.
pub(super) fn pinned(worker: &Worker) -> Option<CpuId> {
    if worker.cpus.len() == 1 { worker.cpus.first() } else { None }
}

/// How many CPUs some threads need: pinned threads as many as they had, others one each.
pub(super) fn wanted(threads: &[&Worker]) -> usize {
    let cpus: BTreeSet<CpuId> = threads.iter().filter_map(|worker| pinned(worker)).collect();
    cpus.len() + threads.iter().filter(|worker| pinned(worker).is_none()).count()
}

fn move_there(
    situation: &Situation<'_>,
    draft: &mut Draft,
    workload: &Workload,
    threads: &[&Worker],
    target_node: &TargetNode,
    places: &mut CpuAllocator<'_>,
) {
    let confined = Confined::of(situation, workload);
    let cpus = within(target_node, wanted(threads), confined.as_ref());
    let all: CpuSet = cpus.iter().copied().collect();
    let wished: CpuSet = target_node.cpus(wanted(threads)).iter().copied().collect();
    if let Some(confined) = confined.filter(|its| !wished.is_subset(&its.cpus)) {
        draft.note(confined.note(workload, &wished));
    }
    let cpus = cpus.as_slice();
    if cpus.is_empty() {
        return;
    }
    if target_node.unbalanced && wanted(threads) > cpus.len() {
        draft.note(format!(
            "{} ({}) has {} threads for {}, which the kernel does not balance (isolcpus=domain): \
             several threads share a CPU; give more CPUs with --app-cpus",
            workload.comm,
            workload.pid,
            threads.len(),
            cpus_of(&all)
        ));
    }
    let mut moved: BTreeMap<CpuId, CpuId> = BTreeMap::new();
    for worker in threads {
        let after = match pinned(worker) {
            None if target_node.unbalanced => {
                let Some(cpu) = places.take_best(cpus, None) else { continue };
                [cpu].into_iter().collect()
            }
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
        change(situation, draft, workload, worker, &after, target_node.unbalanced);
    }
}

/// The CPUs for a number of threads of a process, of those that its cpuset has.
fn within(target_node: &TargetNode, threads: usize, confined: Option<&Confined>) -> Vec<CpuId> {
    let has = |cpu: &CpuId| confined.is_none_or(|its| its.cpus.contains(*cpu));
    let of = |cpus: &[CpuId]| cpus.iter().copied().filter(has).collect::<Vec<_>>();
    let found = of(target_node.cpus(threads));
    // Rather a CPU with interrupts than another node.
    if found.is_empty() { of(&target_node.pool) } else { found }
}

fn change(
    situation: &Situation<'_>,
    draft: &mut Draft,
    workload: &Workload,
    worker: &Worker,
    after: &CpuSet,
    unbalanced: bool,
) {
    if worker.cpus == *after {
        return;
    }
    let topology = &situation.host.topology;
    draft.place_thread(worker.thread.tid, after.clone());
    draft.add(DraftChange {
        id: format!("thread-{}", worker.thread.tid),
        target: worker.thread.clone().into(),
        before: worker.cpus.to_string().into(),
        after: after.to_string().into(),
        why: format!(
            "packets for {} arrive near {}, but it may run on {}{}",
            workload.comm,
            cpus_and_nodes(topology, after),
            cpus_and_nodes(topology, &worker.cpus),
            if unbalanced && pinned(worker).is_none() {
                "; each thread gets a CPU, as the kernel does not balance load between isolated CPUs"
            } else {
                ""
            }
        ),
        finding: situation.asked_to_move(workload.pid),
    });
}
