//! Nodes that are full, so that memory intended for them is allocated on others.
//!
//! Input: each node's numastat over the interval, and its free memory. Output: one finding for each node of which many
//! allocations fell back (`numa_foreign`), with the nodes that took them (`numa_miss`). numastat counts allocations of
//! pages, not accesses to them.
//!
//! Rule: Documentation/admin-guide/numastat.rst.

use crate::{Check, CheckOutcome, Context, text};
use nearpath_model::{Finding, Node, Severity, Subject};

pub(super) const CHECK: Check =
    Check::new("node_memory", "allocations that fall back to another node", run);

/// Fallbacks per second that are more than a reserve of a few pages: 4 MB with pages of 4 KiB.
const PER_SECOND: f64 = 1_000.0;
/// Fallbacks in the interval that are mentioned.
const SOME: u64 = 1_000;
/// Share of a node's memory that is free when it is not full any more.
const FREE_AGAIN: f64 = 0.1;

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    let nodes = &context.host.topology.nodes;
    let Some(earlier) = context.earlier.filter(|_| nodes.len() > 1) else { return outcome };
    let rise = |node: &Node, name: &str| {
        let before = earlier.topology.node(node.node)?.numastat.get(name)?;
        node.numastat.get(name)?.checked_sub(*before)
    };
    for node in nodes {
        let Some(foreign) = rise(node, "numa_foreign") else {
            let why = context.why_unknown(&format!("node {}", node.node), "numastat");
            outcome.not_checked(format!("numastat of node {} is unknown{why}", node.node));
            continue;
        };
        if foreign < SOME {
            continue;
        }
        let rate = context.per_second(foreign);
        let severity = if rate >= PER_SECOND { Severity::Warning } else { Severity::Info };
        // What filled it may be gone.
        let is_free = |(free, all): (u64, u64)| free as f64 >= FREE_AGAIN * all as f64;
        let is = match node.free_bytes.zip(node.memory_bytes).is_some_and(is_free) {
            true => "was",
            false => "is",
        };
        let title = format!(
            "node {} {is} full: {} intended for it were allocated on other nodes",
            node.node,
            text::count(foreign, "page")
        );
        let asked = rise(node, "numa_hit").unwrap_or(0).saturating_add(foreign);
        let mut finding = Finding::new(severity, title)
            .share(Some(foreign as f64 / asked.max(1) as f64), "its allocations")
            .about(
                context
                    .nics()
                    .filter(|nic| nic.numa_node == Some(node.node))
                    .map(|nic| Subject::Nic(nic.name.clone())),
            );
        if let (Some(free), Some(all)) = (node.free_bytes, node.memory_bytes) {
            let (free, all) = (text::bytes(free), text::bytes(all));
            finding = finding.evidence(format!("{free} of its {all} are free now."));
        }
        for (size, pages) in node.hugepages.iter().filter(|(_, pages)| pages.free > 0) {
            let unused = text::bytes(size.saturating_mul(pages.free));
            let size = text::bytes(*size);
            finding = finding.evidence(format!("{unused} more are unused hugepages of {size}."));
        }
        for other in nodes.iter().filter(|other| other.node != node.node) {
            if let Some(miss) = rise(other, "numa_miss").filter(|miss| *miss > 0) {
                finding = finding.evidence(format!(
                    "Node {} took {} that were intended for others.",
                    other.node,
                    text::count(miss, "page")
                ));
            }
        }
        outcome.findings.push(finding.evidence(
            "Move a process to another node, shrink its hugepage pool, or find who fills it: nearpath show memory --all.",
        ));
    }
    outcome
}
