//! The threads of an application to the node that its packets arrive on.
//!
//! In go the processes that were asked for and where the interrupts will be. Out come changes of the
//! affinity of each thread that may run elsewhere. Threads that are pinned each to its own CPU keep
//! a CPU each; others get all CPUs that are left by the interrupts, or all of the node where too few
//! are left. On isolated CPUs each thread is pinned to one, as the kernel balances no load between them.
//!
//! Rules: document 000 (CPU binding to the NIC's node), document 002 (placement of the application).

use super::Planner;
use super::draft::{Draft, Wish};
use super::home::Home;
use super::place::Places;
use super::situation::{Situation, cpus as cpus_of, cpus_and_nodes};
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
        let threads = to_be_moved(workload, &home);
        if threads.is_empty() || draft.is_bound(workload.pid) {
            continue;
        }
        move_there(situation, draft, workload, &threads, &home, &mut places);
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

/// The threads of a process that may run elsewhere, or on several CPUs of which none takes over another's load.
fn to_be_moved<'a>(workload: &'a Workload, home: &Home) -> Vec<&'a Worker> {
    let moves = |worker: &&Worker| {
        !worker.cpus.is_subset(&home.near) || (home.unbalanced && pinned(worker).is_none())
    };
    workload.threads.iter().filter(moves).collect()
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
    home: &Home,
    places: &mut Places<'_>,
) {
    let cpus = home.cpus(wanted(threads));
    let all: CpuSet = cpus.iter().copied().collect();
    if home.unbalanced && wanted(threads) > cpus.len() {
        draft.note(format!(
            "{} ({}) has {} threads for {}, between which the kernel balances no load \
             (isolcpus=domain): several are pinned to the same one; give more with --cpus",
            workload.comm,
            workload.pid,
            threads.len(),
            cpus_of(&all)
        ));
    }
    let mut moved: BTreeMap<CpuId, CpuId> = BTreeMap::new();
    for worker in threads {
        let after = match pinned(worker) {
            None if home.unbalanced => {
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
        change(situation, draft, workload, worker, &after, home.unbalanced);
    }
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
    draft.add(Wish {
        id: format!("thread-{}", worker.thread.tid),
        target: worker.thread.clone().into(),
        before: worker.cpus.to_string().into(),
        after: after.to_string().into(),
        why: format!(
            "packets for {} arrive near {}, and it may run on {}{}",
            workload.comm,
            cpus_and_nodes(topology, after),
            cpus_and_nodes(topology, &worker.cpus),
            if unbalanced && pinned(worker).is_none() {
                "; each thread has a CPU, as the kernel balances no load between isolated ones"
            } else {
                ""
            }
        ),
        finding: situation.asked_to_move(workload.pid),
    });
}
