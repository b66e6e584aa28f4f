//! Memory policies and cpusets that contradict the affinity: memory is allocated on nodes on which the process may not
//! run.
//!
//! Input: the measurement of memory. Output: one finding for each process whose policy (`bind`, `prefer`), policies of
//! mappings, or allowed nodes (`Mems_allowed_list`) name only nodes none of whose CPUs it may run on. Nodes without
//! CPUs are chosen on purpose (memory tiers), and contradict nothing.
//!
//! Rules: the chapter on NUMA for SR-IOV paths (`numactl --cpunodebind` and `--membind` together); set_mempolicy(2).

use crate::{Check, CheckOutcome, Context, text};
use nearpath_model::memory::ProcessPlacement;
use nearpath_model::{CpuSet, Finding, NodeId, Severity};

pub(super) const CHECK: Check =
    Check::new("memory_policy", "memory policies of nodes on which the process may not run", run);

/// Mappings with such a policy count from this size on.
const FLOOR_BYTES: u64 = 64 << 20;
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
    let findings = measured.processes.iter().filter_map(|process| finding(context, process));
    outcome.findings.extend(findings.take(REPORTED));
    outcome
}

/// The nodes of a policy that says where memory is allocated: `bind:0`, `prefer=static:0-1`. `interleave` spreads it on
/// purpose (mm/mempolicy.c, `mpol_to_str`).
fn policy_nodes(policy: &str) -> Option<Vec<NodeId>> {
    let (mode, nodes) = policy.split_once(':')?;
    let mode = mode.split('=').next()?;
    if !matches!(mode, "bind" | "prefer" | "prefer (many)") {
        return None;
    }
    let nodes = CpuSet::from_list(nodes).ok()?;
    Some(nodes.iter().map(|node| NodeId(node.0)).collect())
}

fn finding(context: &Context<'_>, process: &ProcessPlacement) -> Option<Finding> {
    let allowed = &process.allowed_nodes;
    let topology = &context.host.topology;
    let contradicts = |nodes: &[NodeId]| {
        !nodes.is_empty()
            && !allowed.is_empty()
            && nodes.iter().all(|node| {
                let has_cpus = topology.node(*node).is_some() && !topology.is_cpuless(*node);
                has_cpus && !allowed.contains(node)
            })
    };
    let mut evidence = Vec::new();
    let mut wanted = Vec::new();
    let mut bytes = 0u64;
    let own = process.policy.as_deref().and_then(|policy| Some((policy, policy_nodes(policy)?)));
    if let Some((policy, nodes)) = own.filter(|(_, nodes)| contradicts(nodes)) {
        evidence.push(format!("Its memory policy is {}.", text::clean(policy)));
        wanted = nodes;
    }
    if contradicts(&process.mems_allowed) {
        let nodes = text::list(&process.mems_allowed);
        evidence.push(format!("It may allocate on node {nodes} only (Mems_allowed_list)."));
        wanted.clone_from(&process.mems_allowed);
    }
    for (policy, of) in &process.mapping_policies {
        let nodes = policy_nodes(policy).filter(|nodes| contradicts(nodes));
        if let Some(nodes) = nodes.filter(|_| *of >= FLOOR_BYTES) {
            let (of_text, policy) = (text::bytes(*of), text::clean(policy));
            evidence.push(format!("{of_text} are mapped with the policy {policy}."));
            bytes = bytes.saturating_add(*of);
            wanted = nodes;
        }
    }
    if evidence.is_empty() {
        return None;
    }
    let severity = if bytes >= FLOOR_BYTES { Severity::Warning } else { Severity::Info };
    let title = format!(
        "{} (pid {}) allocates on node {}, and runs on node {}",
        text::clean(&process.comm),
        process.pid,
        text::list(&wanted),
        text::list(allowed)
    );
    let mut finding = Finding::new(severity, title);
    for sentence in evidence {
        finding = finding.evidence(sentence);
    }
    let share = process.remote_share.filter(|_| bytes > 0);
    Some(finding.share(share, "its memory").evidence(format!(
        "Start it with both on one node: numactl --cpunodebind={0} --membind={0}.",
        allowed.first()?
    )))
}
