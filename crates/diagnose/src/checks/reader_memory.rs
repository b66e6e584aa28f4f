//! Readers whose memory is on another node than they are.
//!
//! Input: `process_memory` (numa_maps) and the affinities of these processes. Output: one
//! finding for each process with more than a twentieth of its memory on nodes where it does not
//! run. To move it is proposed only where no device can write into it: a device would go on writing to the
//! pages from before.
//!
//! Rule: the chapter on NUMA for SR-IOV paths (a remote ratio above 0.05 flags trouble; alert at 100 MB remote).

use crate::counters::{ratio, total};
use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::{Finding, NodeId, ProcessMemory, Proposal, ProposedChange};

pub(super) const CHECK: Check =
    Check::new("reader_memory", "memory of pinned readers on nodes where they do not run", run);

const REMOTE_RATIO: f64 = 0.05;
/// Below this the remote part may be but libraries, which all processes share.
const REMOTE_BYTES: u64 = 100_000_000;
/// Below this nothing is worth a move.
const FLOOR_BYTES: u64 = 16 << 20;

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    if context.nodes_with_cpus() < 2 {
        return outcome;
    }
    let readers = context.pinned_readers();
    let known = |pid| context.host.process_memory.iter().any(|memory| memory.pid == pid);
    for reader in readers.iter().filter(|reader| !known(reader.owner.pid)).take(5) {
        let pid = reader.owner.pid;
        let why = context.why_unknown(&format!("process {pid}"), "memory");
        outcome.not_checked(format!("the memory of pid {pid} by node is unknown{why}"));
    }
    for memory in &context.host.process_memory {
        match readers.iter().find(|reader| reader.owner.pid == memory.pid) {
            Some(reader) => {
                let nodes = context.host.topology.nodes_of(&reader.cpus);
                outcome.findings.extend(finding(context, memory, &reader.words(), &nodes));
            }
            None => outcome.not_checked(format!(
                "pid {} is not pinned: no node is more its own than another",
                memory.pid
            )),
        }
    }
    outcome
}

/// Whether the process runs; one of which that is unknown is taken to.
fn readers_are_busy(context: &Context<'_>, memory: &ProcessMemory) -> bool {
    let owner = context.host.owners.iter().find(|owner| owner.pid == memory.pid);
    owner.and_then(|owner| context.is_busy(owner)) != Some(false)
}

/// Why the memory of a process must not be moved.
fn must_stay(context: &Context<'_>, memory: &ProcessMemory) -> Option<String> {
    match memory.devices.as_deref() {
        None => Some(format!(
            "Whether a device writes into its memory is unknown{}",
            context.why_unknown(&format!("process {}", memory.pid), "devices")
        )),
        Some([]) if total(memory.huge_bytes.values().copied()) == 0 => None,
        Some([]) => Some(
            "Some of it is in hugetlb pages, as DPDK and others give to devices by their addresses"
                .to_owned(),
        ),
        Some(devices) => {
            let named: Vec<String> = devices.iter().take(3).map(|name| text::clean(name)).collect();
            Some(format!(
                "It has {} open, and a device may write into its memory",
                named.join(", ")
            ))
        }
    }
}

fn finding(
    context: &Context<'_>,
    memory: &ProcessMemory,
    reader: &str,
    nodes: &[NodeId],
) -> Option<Finding> {
    let local = nodes.first()?;
    let away = || memory.bytes.iter().filter(|(node, n)| !nodes.contains(node) && **n > 0);
    let remote = total(away().map(|(_, n)| *n));
    let share = ratio(remote, total(memory.bytes.values().copied()))?;
    if share <= REMOTE_RATIO || remote < FLOOR_BYTES {
        return None;
    }
    let is_busy = readers_are_busy(context, memory);
    let severity = severity::of_condition(
        context,
        remote >= REMOTE_BYTES && is_busy,
        context.received_per_s(),
        severity::TRAFFIC_PER_S,
    );
    let comm = memory.comm.as_deref().map(text::clean).unwrap_or_default();
    let title = format!(
        "{} of the memory of {comm} (pid {}) is on other nodes than its CPUs",
        text::percent(share),
        memory.pid
    );
    let mut finding = Finding::new(severity, title)
        .evidence(format!("{reader}, node {}.", text::list(nodes)))
        .share(Some(share), "its memory");
    for (node, n) in away() {
        let files = memory.file_bytes.get(node).copied().unwrap_or(0);
        let (all, files) = (text::bytes(*n), text::bytes(files));
        finding = finding.evidence(format!("{all} are on node {node}, {files} of it files."));
    }
    if let Some(reason) = must_stay(context, memory) {
        return Some(finding.evidence(format!(
            "{reason}: do not migrate its pages while it runs; start it with its memory on node \
             {local} (numactl --membind={local})."
        )));
    }
    let from: Vec<String> = away().map(|(node, _)| node.to_string()).collect();
    Some(finding.change(ProposedChange::new(
        Proposal::Pages { pid: memory.pid },
        Some(from.join(",")),
        local.to_string(),
        "Moves the pages to the node that the process runs on.",
    )))
}
