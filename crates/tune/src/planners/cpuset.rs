//! The cpuset of an application's cgroup, on request: it also applies to threads that start later, and memory moves to
//! the node.
//!
//! Input: the cgroups of the requested processes. Output: `cpuset.cpus` and `cpuset.mems` instead of the affinity of
//! each thread. Cgroups that hold other processes, or that could not be restored exactly, are skipped with a note.
//!
//! Rules: Documentation/admin-guide/cgroup-v2.rst (a new `cpuset.mems` moves memory from other nodes, since 5.15:
//! commit ee9707e8593d), kernel/cgroup/cpuset.c (before 6.2 a new cpuset overwrites the affinity of threads).

use super::Planner;
use super::containers::Confined;
use super::draft::{Draft, DraftChange};
use super::situation::{Situation, cpus_and_nodes, version};
use super::system::CgroupState;
use super::target_node::{TargetNode, has_memory};
use super::thread_affinity::{misplaced, pinned, wanted};
use super::workload::{Worker, Workload};
use nearpath_model::{CpuSet, Cpuset, CpusetFile, Goal, Target, UnitProperty, UnitSetting};
use std::collections::BTreeMap;

pub(super) const PLANNER: Planner =
    Planner { name: "cpuset", plans: "the cpuset of the application's cgroup (--cpuset)", run };

/// The first kernel that keeps the affinity of threads separate from the cpuset.
const KEEPS_AFFINITY: (u32, u32) = (6, 2);
/// The first kernel with partitions in which no load is balanced.
const ISOLATES: (u32, u32) = (6, 1);
/// The kinds of partitions.
const MEMBER: &str = "member";
const ROOT: &str = "root";
const ISOLATED: &str = "isolated";
/// The first kernel that moves memory to the nodes of a new `cpuset.mems`.
const MOVES_MEMORY: (u32, u32) = (5, 15);

fn run(situation: &Situation<'_>, draft: &mut Draft) {
    if !situation.request.cpuset {
        return;
    }
    if situation.workloads.is_empty() {
        return draft.note("--cpuset requires --pid, --port or --unit");
    }
    let Ok(target_node) = TargetNode::of(situation, draft) else { return };
    let mut cgroups: BTreeMap<&str, (&CgroupState, Vec<&Workload>)> = BTreeMap::new();
    for workload in situation.workloads {
        match situation.request.system.cgroup(workload.pid) {
            Ok(state) => {
                let entry = cgroups.entry(&state.cgroup).or_insert_with(|| (state, Vec::new()));
                entry.1.push(workload);
            }
            Err(reason) => draft.note(format!(
                "{} ({}) is moved per thread: {reason}",
                workload.comm, workload.pid
            )),
        }
    }
    for (state, workloads) in cgroups.into_values() {
        let bound = bind(situation, draft, &target_node, state, &workloads)
            .and_then(|()| own_partition(situation, draft, state, &workloads));
        if let Err(reason) = bound {
            draft.note(format!("{} is not bound through its cpuset: {reason}", state.cgroup));
        }
    }
}

/// Binds a cgroup, unless all its threads are well placed.
fn bind(
    situation: &Situation<'_>,
    draft: &mut Draft,
    target_node: &TargetNode,
    state: &CgroupState,
    workloads: &[&Workload],
) -> Result<(), String> {
    let misplaced: Vec<&Worker> =
        workloads.iter().flat_map(|workload| misplaced(workload, target_node)).collect();
    if misplaced.is_empty() {
        return Ok(());
    }
    let cpus: CpuSet = target_node.cpus(wanted(&misplaced)).iter().copied().collect();
    if target_node.unbalanced && cpus.len() > 1 {
        return Err(format!(
            "its threads could use all of {cpus}, but the kernel does not balance load between isolated CPUs \
             (isolcpus=domain); each thread is pinned instead"
        ));
    }
    managed(situation, workloads)?;
    may_be_bound(situation, state, workloads, &cpus)?;
    let node = target_node.node.filter(|&node| has_memory(situation, node));
    for workload in workloads {
        draft.bind(workload.pid);
        for worker in &workload.threads {
            let kept = worker.cpus.intersection(&cpus);
            draft
                .place_thread(worker.thread.tid, if kept.is_empty() { cpus.clone() } else { kept });
        }
    }
    let now = cpus_and_nodes(&situation.host.topology, &state.effective);
    let names: Vec<String> =
        workloads.iter().map(|workload| format!("{} ({})", workload.comm, workload.pid)).collect();
    let why =
        format!("packets for {} arrive near {cpus}, but it may run on {now}", names.join(", "));
    change(draft, state, CpusetFile::Cpus, &cpus.to_string(), why.clone());
    let must_stay = workloads.iter().find_map(|workload| {
        let reason = situation.request.system.memory_must_stay(workload.pid)?;
        Some(format!("{} ({}) stays where it is: {reason}", workload.comm, workload.pid))
    });
    if let Some(reason) = must_stay.filter(|_| node.is_some()) {
        draft.note(format!("the memory of {reason}"));
    } else if let Some(node) = node {
        let memory = if is_since(situation, MOVES_MEMORY) {
            format!("memory on other nodes moves to node {node}")
        } else {
            format!(
                "new memory comes from node {node}; memory on other nodes stays there before Linux 5.15 \
                 (use migratepages to move it)"
            )
        };
        let why = format!("{why}; {memory}");
        change(draft, state, CpusetFile::Mems, &node.to_string(), why);
    }
    Ok(())
}

/// For the goal isolation, makes the cgroup a partition, which has its CPUs for itself, without a reboot.
fn own_partition(
    situation: &Situation<'_>,
    draft: &mut Draft,
    state: &CgroupState,
    workloads: &[&Workload],
) -> Result<(), String> {
    let request = situation.request;
    let (Goal::Isolation, Some(app)) = (request.goal, &request.app_cpus) else { return Ok(()) };
    let cgroup = &state.cgroup;
    let Some(before) = state.partition.as_deref() else {
        draft.note(format!(
            "{cgroup} cannot have its CPUs for itself without a reboot: it needs a cgroup v2 that no service owns, \
             below the root or another partition (cpuset.cpus.partition)"
        ));
        return Ok(());
    };
    let threads = || workloads.iter().flat_map(|workload| &workload.threads);
    let own = CpuSet::from_list(&state.cpus).unwrap_or_default();
    let is_there = !own.is_empty() && own.is_subset(app);
    if before != MEMBER || !(is_there || workloads.iter().all(|its| draft.is_bound(its.pid))) {
        return Ok(());
    }
    managed(situation, workloads)?;
    // Where nothing balances their load, threads stay on the CPU that they woke on.
    let alone = threads().all(|worker| pinned(worker).is_some_and(|cpu| app.contains(cpu)));
    let (after, why) = if alone && is_since(situation, ISOLATES) {
        (ISOLATED, "and the kernel does not balance load there, as its threads are pinned")
    } else {
        (ROOT, "and the kernel balances the load of its threads between them")
    };
    draft.add(DraftChange {
        id: format!("{}/{}", cgroup.trim_start_matches('/'), CpusetFile::Partition.name()),
        target: Target::Cpuset(Cpuset {
            cgroup: cgroup.clone(),
            inode: state.inode,
            what: CpusetFile::Partition,
        }),
        before: before.into(),
        after: after.into(),
        why: format!("no task of another cgroup runs on the CPUs of {cgroup} then, {why}"),
        finding: None,
    });
    Ok(())
}

/// Checks that no runtime of containers manages the cgroup, which would set its cpuset again.
fn managed(situation: &Situation<'_>, workloads: &[&Workload]) -> Result<(), String> {
    let mut confined = workloads.iter().filter_map(|workload| Confined::of(situation, workload));
    match confined.find_map(|its| its.runtime) {
        Some(runtime) => Err(format!("{} sets it, and would set it again", runtime.name)),
        None => Ok(()),
    }
}

/// Whether the kernel is known to be this version or later.
fn is_since(situation: &Situation<'_>, since: (u32, u32)) -> bool {
    let release = situation.host.kernel.release.as_deref().unwrap_or_default();
    version(release).is_some_and(|version| version >= since)
}

/// Checks that no other process would be bound, and that it can be undone.
fn may_be_bound(
    situation: &Situation<'_>,
    state: &CgroupState,
    workloads: &[&Workload],
    cpus: &CpuSet,
) -> Result<(), String> {
    let asked = |pid: &u32| workloads.iter().any(|workload| workload.pid == *pid);
    if let Some(other) = state.processes.iter().find(|pid| !asked(pid)) {
        return Err(format!("process {other} is also in it, and was not requested"));
    }
    let beyond = cpus.difference(&state.allowed);
    if !beyond.is_empty() {
        return Err(format!("its parent cgroup does not have CPU {beyond}"));
    }
    let pinned = |worker: &Worker| !state.effective.is_subset(&worker.cpus);
    let some_pinned = workloads.iter().flat_map(|workload| &workload.threads).any(pinned);
    if some_pinned && !is_since(situation, KEEPS_AFFINITY) {
        return Err("some of its threads have their own affinity, which a kernel before 6.2 \
                    would discard"
            .to_owned());
    }
    // validate_change() of kernel/cgroup/cpuset.c: ENOSPC.
    let files = [("cpuset.cpus", &state.cpus), ("cpuset.mems", &state.mems)];
    if state.service.is_some() {
        return Ok(());
    }
    if let Some((file, _)) = files.iter().find(|(_, value)| value.trim().is_empty()) {
        return Err(format!(
            "its {file} is empty, and that cannot be restored: the kernel accepts an empty value only for \
             a cgroup without processes; set it to its effective value first"
        ));
    }
    Ok(())
}

fn change(draft: &mut Draft, state: &CgroupState, what: CpusetFile, after: &str, why: String) {
    let before = match what {
        CpusetFile::Mems => &state.mems,
        _ => &state.cpus,
    };
    if CpuSet::from_list(before).ok() == CpuSet::from_list(after).ok() {
        return;
    }
    let (file, property) = match what {
        CpusetFile::Mems => ("mems", UnitProperty::AllowedMemoryNodes),
        _ => ("cpus", UnitProperty::AllowedCpus),
    };
    let target = match &state.service {
        Some(unit) => Target::Unit(UnitSetting::new(unit, property)),
        None => {
            let cgroup = state.cgroup.clone();
            Target::Cpuset(Cpuset { cgroup, inode: state.inode, what })
        }
    };
    draft.add(DraftChange {
        id: format!("{}/cpuset.{file}", state.cgroup.trim_start_matches('/')),
        target: target.clone(),
        before: before.clone().into(),
        after: after.into(),
        why,
        finding: None,
    });
}
