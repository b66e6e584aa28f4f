//! Moves the memory of an application to the node that its packets arrive on, on request.
//!
//! Input: the requested processes. Output: a change for each whose memory is elsewhere, after its threads are moved. Of
//! a process to whose memory a device may write none: the note has the command that starts it bound instead.
//!
//! Rules: the chapter on NUMA for SR-IOV paths (hugepage migration), move_pages(2).

use super::Planner;
use super::draft::{Draft, DraftChange};
use super::situation::Situation;
use super::target_node::{self, has_memory};
use nearpath_model::{ProcessPages, Target};

pub(super) const PLANNER: Planner = Planner {
    name: "memory",
    plans: "memory of the application to the node of its packets (--move-memory)",
    run,
};

fn run(situation: &Situation<'_>, draft: &mut Draft) {
    if !situation.request.move_memory {
        return;
    }
    if situation.workloads.is_empty() {
        return draft.note("--move-memory requires --pid, --port or --unit");
    }
    let node = match target_node::node(situation) {
        Ok(Some(node)) if has_memory(situation, node) => node,
        Ok(Some(node)) => return draft.note(format!("no memory is moved: node {node} has none")),
        Ok(None) => return draft.note("no memory is moved: the host has one node"),
        Err(reason) => return draft.note(format!("no memory is moved: {reason}")),
    };
    let system = &situation.request.system;
    for workload in situation.workloads {
        let name = format!("{} ({})", workload.comm, workload.pid);
        let main = workload.threads.iter().find(|worker| worker.thread.tid == workload.pid);
        let Some(main) = main else { continue };
        if let Some(reason) = system.memory_must_stay(workload.pid) {
            let remedy = system.start_bound(workload.pid).replace("NODE", &node.to_string());
            draft.note(format!("the memory of {name} is not moved: {reason}; {remedy}"));
            continue;
        }
        let Some(before) = system.memory_nodes(workload.pid) else {
            draft.note(format!("the memory of {name} is not moved: its nodes are unknown"));
            continue;
        };
        if before == node.to_string() || before.is_empty() {
            continue;
        }
        let pages = ProcessPages::new(workload.pid, main.thread.start_ticks);
        draft.add(DraftChange {
            id: format!("{}-{}/memory", workload.comm, workload.pid),
            target: Target::Memory(pages),
            before: before.as_str().into(),
            after: node.to_string().into(),
            why: format!(
                "packets for {name} arrive on node {node}, but its memory is on node {before}; {}",
                ProcessPages::ONE_WAY
            ),
            finding: None,
        });
    }
}
