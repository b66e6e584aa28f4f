//! Processes whose memory is on another node than they ran on, or than their device.
//!
//! Input: the measurement of memory. Output: one finding for each process with more than a twentieth of its memory
//! there. Pinned readers are the matter of `reader_memory`. To move the pages is proposed only for a process that is
//! bound to its node (the scheduler would carry another one away again) and whose memory no device may write to.
//!
//! Memory on nodes without CPUs (CXL, persistent memory) is near to no CPU, and is not counted as remote.
//!
//! Rule: the chapter on NUMA for SR-IOV paths (a remote ratio above 0.05 flags trouble; alert at 100 MB remote).

use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::memory::{ProcessPlacement, RanOnBasis};
use nearpath_model::{Finding, NodeId, Proposal, ProposedChange, Severity};

pub(super) const CHECK: Check = Check::new(
    "process_memory",
    "memory of processes on other nodes than they ran on, or than their device",
    run,
);

const REMOTE_RATIO: f64 = 0.05;
/// Below this nothing is worth a move: libraries that all processes share are some tens of megabytes.
const FLOOR_BYTES: u64 = 64 << 20;
/// From this on it is a warning, if the process runs.
const REMOTE_BYTES: u64 = 100_000_000;
/// CPU time per second from which a process is busy.
const BUSY: f64 = 0.01;
/// Maximum number of processes reported.
const REPORTED: usize = 10;

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    if context.nodes_with_cpus() < 2 {
        return outcome;
    }
    let Some(measured) = context.memory else {
        outcome.not_checked("the memory of processes was not read");
        return outcome;
    };
    for missing in measured.not_available.iter().filter(|m| m.what.starts_with("memory of")).take(5)
    {
        let (what, reason) = (text::clean(&missing.what), text::clean(&missing.reason));
        outcome.not_checked(format!("the {what} by node is unknown ({reason})"));
    }
    let readers = context.pinned_readers();
    let is_reader = |process: &ProcessPlacement| {
        let known = context.host.process_memory.iter().any(|memory| memory.pid == process.pid);
        known && readers.iter().any(|reader| reader.owner.pid == process.pid)
    };
    for process in measured.processes.iter().filter(|process| !is_reader(process)) {
        if outcome.findings.len() == REPORTED {
            break;
        }
        outcome.findings.extend(finding(context, process, measured.duration_s));
    }
    outcome
}

/// Whether a part of a process's memory matters.
fn matters(process: &ProcessPlacement, bytes: u64) -> bool {
    bytes >= FLOOR_BYTES && bytes as f64 > process.total() as f64 * REMOTE_RATIO
}

fn finding(
    context: &Context<'_>,
    process: &ProcessPlacement,
    duration_s: Option<f64>,
) -> Option<Finding> {
    // A device of its own writes packets there whatever the CPU; sockets of a NIC are read by the CPU.
    let has_device = process.devices.iter().any(|device| device.node.is_some());
    let from_device = process.device_remote_bytes.filter(|_| has_device).unwrap_or(0);
    let remote = process.remote_bytes.unwrap_or(0);
    let comm = text::clean(&process.comm);
    let (own, title, bytes) = if matters(process, remote) {
        let own = process.own_nodes();
        let share = text::percent(remote as f64 / process.total().max(1) as f64);
        let title =
            format!("{share} of the memory of {comm} (pid {}) is on other nodes", process.pid);
        (own, title, remote)
    } else if matters(process, from_device) {
        let title = format!(
            "{} of {comm} (pid {}) are on another node than its device",
            text::bytes(from_device),
            process.pid
        );
        (process.device_nodes.clone(), title, from_device)
    } else {
        return None;
    };
    let share = bytes as f64 / process.total().max(1) as f64;
    let mut finding = Finding::new(severity_of(context, process, bytes, duration_s), title)
        .share(Some(share), "its memory");
    let ran: Vec<String> = process
        .ran_on_nodes
        .iter()
        .map(|(node, share)| format!("{} of its CPU time on node {node}", text::percent(*share)))
        .collect();
    if !ran.is_empty() {
        let basis = match process.ran_on_basis {
            Some(RanOnBasis::LastCpu) => ", by the CPUs that its threads ran on last",
            _ => "",
        };
        finding = finding.evidence(format!("It used {}{basis}.", text::list(&ran)));
    }
    for device in process.devices.iter().filter(|device| device.node.is_some()).take(5) {
        let name = device.name.as_deref().unwrap_or(&device.device);
        let node = device.node.unwrap_or(NodeId(0));
        finding = finding.evidence(format!("It uses {} on node {node}.", text::clean(name)));
    }
    for (node, of) in process.nodes.iter().filter(|(_, of)| of.total() > 0) {
        let kinds: Vec<String> = [
            ("anonymous", of.anon_bytes),
            ("of files", of.file_bytes),
            ("shared", of.shared_bytes),
            ("in hugetlb pages", of.hugetlb_bytes),
        ]
        .into_iter()
        .filter(|(_, bytes)| *bytes >= 1 << 20)
        .map(|(kind, bytes)| format!("{} {kind}", text::bytes(bytes)))
        .collect();
        if !kinds.is_empty() {
            finding = finding.evidence(format!("On node {node}: {}.", text::list(&kinds)));
        }
    }
    Some(fix(process, &own, finding))
}

fn severity_of(
    context: &Context<'_>,
    process: &ProcessPlacement,
    remote: u64,
    duration_s: Option<f64>,
) -> Severity {
    let used: f64 = process.threads.iter().map(|group| group.cpu_s).sum();
    let is_busy = process.ran_on_basis == Some(RanOnBasis::Interval)
        && duration_s.is_some_and(|seconds| seconds > 0.0 && used / seconds >= BUSY);
    if context.earlier.is_some() && is_busy && remote >= REMOTE_BYTES {
        Severity::Warning
    } else {
        severity::UNFELT
    }
}

/// Adds what helps: moving the pages, or starting the process bound.
fn fix(process: &ProcessPlacement, own: &[NodeId], finding: Finding) -> Finding {
    let [local] = own else {
        return finding.evidence(
            "It ran on several nodes: bind it to one first, by its CPUs and its memory.",
        );
    };
    let start = format!("start it with numactl --cpunodebind={local} --membind={local}");
    match (process.dma_mapped, &process.dma_reason) {
        (Some(false), _) => {}
        (Some(true), reason) => {
            let reason = reason.as_deref().map(text::clean).unwrap_or_default();
            return finding.evidence(format!(
                "A device may write into its memory ({reason}): do not migrate its pages while it runs; {start}."
            ));
        }
        (None, reason) => {
            let reason = reason.as_deref().map(text::clean).unwrap_or_default();
            return finding.evidence(format!(
                "Whether a device writes into its memory is unknown ({reason}): do not migrate its pages while \
                 it runs; {start}."
            ));
        }
    }
    if process.allowed_nodes.as_slice() != [*local] {
        let nodes = text::list(&process.allowed_nodes);
        return finding.evidence(format!(
            "Its affinity allows CPUs of nodes {nodes}: pages that are moved would be left behind by the scheduler. \
             Bind it first, or {start}."
        ));
    }
    let away: Vec<String> = process
        .nodes
        .iter()
        .filter(|(node, of)| *node != local && of.total() > 0)
        .map(|(node, _)| node.to_string())
        .collect();
    finding.change(ProposedChange::new(
        Proposal::Pages { pid: process.pid },
        Some(away.join(",")),
        local.to_string(),
        "Moves the pages to the node that the process runs on.",
    ))
}
