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
use super::home::Home;
use super::place::Places;
use super::situation::{Situation, cpus_and_nodes};
use super::workload::{Worker, Workload};
use nearpath_model::{CpuId, CpuSet};
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
    let home = match Home::of(situation, draft) {
        Ok(home) => home,
        Err(reason) => return draft.note(format!("no thread is moved: {reason}")),
    };
    let mut places = Places::new(&situation.host.topology);
    for worker in situation.workloads.iter().flat_map(|workload| &workload.threads) {
        if let Some(cpu) = pinned(worker).filter(|&cpu| home.near.contains(cpu)) {
            places.take(cpu);
        }
    }
    for workload in situation.workloads {
        let stray = stray(workload, &home);
        if stray.is_empty() || draft.is_bound(workload.pid) {
            continue;
        }
        move_there(situation, draft, workload, &stray, home.cpus(wanted(&stray)), &mut places);
        if let Some(node) = home.node {
            draft.note(format!(
                "the memory of {} ({}) stays where it is; start it with numactl --cpunodebind={node} \
                 --membind={node} to have it on node {node} from the first page",
                workload.comm, workload.pid
            ));
        }
    }
}

/// The threads of a process that may run elsewhere.
pub(super) fn stray<'a>(workload: &'a Workload, home: &Home) -> Vec<&'a Worker> {
    workload.threads.iter().filter(|worker| !worker.cpus.is_subset(&home.near)).collect()
}

/// The one CPU that a thread is pinned to.
pub(super) fn pinned(worker: &Worker) -> Option<CpuId> {
    if worker.cpus.len() == 1 { worker.cpus.first() } else { None }
}

/// How many CPUs some threads want: those that are pinned one for each that they had, others one
/// each.
pub(super) fn wanted(threads: &[&Worker]) -> usize {
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
    draft.place_thread(worker.thread.tid, after.clone());
    draft.add(Wish {
        id: format!("thread-{}", worker.thread.tid),
        target: worker.thread.clone().into(),
        before: worker.cpus.to_string().into(),
        after: after.to_string().into(),
        why: format!(
            "packets for {} arrive near {}, and it may run on {}",
            workload.comm,
            cpus_and_nodes(topology, after),
            cpus_and_nodes(topology, &worker.cpus)
        ),
        finding: situation.asked_to_move(workload.pid),
    });
}
