//! Readers whose memory is on another node than they are.
//!
//! In go `process_memory` (numa_maps) and the affinities of these processes. Out comes one
//! finding for each process with more than a twentieth of its memory on nodes where it does not
//! run.
//!
//! Rule: document 002 (a remote ratio above 0.05 flags trouble; alert at 100 MB remote).

use crate::counters::{ratio, total};
use crate::{Check, CheckOutcome, Context, text};
use nearpath_model::{Finding, NodeId, ProcessMemory, Proposal, ProposedChange, Severity};

pub(super) const CHECK: Check = Check {
    name: "reader_memory",
    looks_at: "memory of pinned readers on nodes where they do not run",
    run,
};

const REMOTE_RATIO: f64 = 0.05;
/// Below this the remote part may be but libraries, which all processes share.
const REMOTE_BYTES: u64 = 100_000_000;

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    if context.nodes_with_cpus() < 2 {
        return outcome;
    }
    let readers = context.pinned_readers();
    if context.host.process_memory.is_empty() && !readers.is_empty() {
        outcome.not_checked("the memory of the readers by node was not read (numa_maps)");
    }
    for memory in &context.host.process_memory {
        match readers.iter().find(|reader| reader.owner.pid == memory.pid) {
            Some(reader) => {
                let nodes = context.host.topology.nodes_of(&reader.cpus);
                outcome.findings.extend(finding(memory, &reader.words(), &nodes));
            }
            None => outcome.not_checked(format!(
                "pid {} is not pinned: no node is more its own than another",
                memory.pid
            )),
        }
    }
    outcome
}

fn finding(memory: &ProcessMemory, reader: &str, nodes: &[NodeId]) -> Option<Finding> {
    let local = nodes.first()?;
    let away = || memory.bytes.iter().filter(|(node, n)| !nodes.contains(node) && **n > 0);
    let remote = total(away().map(|(_, n)| *n));
    let share = ratio(remote, total(memory.bytes.values().copied()))?;
    if share <= REMOTE_RATIO {
        return None;
    }
    let severity = if remote >= REMOTE_BYTES { Severity::Warning } else { Severity::Info };
    let comm = memory.comm.as_deref().map(text::clean).unwrap_or_default();
    let title = format!(
        "{} of the memory of {comm} (pid {}) is on other nodes than its CPUs",
        text::percent(share),
        memory.pid
    );
    let mut finding = Finding::new(severity, title)
        .evidence(format!("{reader}, node {}.", text::list(nodes)))
        .share(Some(share));
    for (node, n) in away() {
        let files = memory.file_bytes.get(node).copied().unwrap_or(0);
        let (all, files) = (text::bytes(*n), text::bytes(files));
        finding = finding.evidence(format!("{all} are on node {node}, {files} of it files."));
    }
    let from: Vec<String> = away().map(|(node, _)| node.to_string()).collect();
    Some(finding.change(ProposedChange::new(
        Proposal::Pages { pid: memory.pid },
        Some(from.join(",")),
        local.to_string(),
        "Moves the pages to the node that the process runs on.",
    )))
}
