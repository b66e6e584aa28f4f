//! Hugepages that are missing on the node of a NIC, or of the device of a process.
//!
//! Input: the hugepage pools of each node, the nodes of the NICs, and what processes have in hugetlb pages. Output: one
//! finding for each size of page of which other nodes have some and the device's node has none.
//!
//! It proposes as many pages there as such a process has elsewhere, or, of an unused NIC, as many as another node has.
//!
//! Rule: the chapter on NUMA for SR-IOV paths (hugepages on the node of the virtual function; `--membind` of that
//! node).

use crate::{Check, CheckOutcome, Context, text};
use nearpath_model::memory::page_size_name;
use nearpath_model::{
    Finding, HugepagePools, NodeId, PoolCounts, ProposedChange, Severity, Subject, Target,
};
use std::collections::{BTreeMap, BTreeSet};

pub(super) const CHECK: Check =
    Check::new("hugepages_node", "hugepages on other nodes than the NIC's", run);

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    let nodes = &context.host.topology.nodes;
    let sizes: BTreeSet<u64> = nodes
        .iter()
        .flat_map(|node| node.hugepages.iter())
        .filter(|(_, pages)| pages.total > 0)
        .map(|(size, _)| *size)
        .collect();
    if nodes.len() < 2 {
        return outcome;
    }
    for node in nodes.iter().filter(|node| node.hugepages.is_empty()) {
        let why = context.why_unknown(&format!("node {}", node.node), "hugepages");
        if !why.is_empty() {
            outcome.not_checked(format!("the hugepages of node {} are unknown{why}", node.node));
        }
    }
    if sizes.is_empty() {
        return outcome;
    }
    let mut devices: BTreeMap<NodeId, BTreeSet<String>> = BTreeMap::new();
    for nic in context.hardware_nics() {
        match nic.numa_node {
            Some(node) => drop(devices.entry(node).or_default().insert(nic.name.clone())),
            None => {
                let why = context.why_unknown(&format!("nic {}", nic.name), "numa_node");
                outcome.not_checked(format!("the node of {} is unknown{why}", nic.name));
            }
        }
    }
    let users = context.memory.map(|m| m.processes.as_slice()).unwrap_or_default();
    // Devices that only a process knows (vfio, uio): they are no interfaces any more.
    for device in users.iter().flat_map(|process| &process.devices) {
        if let Some(node) = device.node {
            let name = device.name.as_deref().unwrap_or(&device.device);
            devices.entry(node).or_default().insert(text::clean(name));
        }
    }
    for (node, names) in &devices {
        let Some(here) = nodes.iter().find(|n| n.node == *node) else { continue };
        if here.hugepages.is_empty() {
            continue;
        }
        for &size in &sizes {
            if here.hugepages.get(&size).is_some_and(|pages| pages.total > 0) {
                continue;
            }
            outcome.findings.push(finding(context, *node, names, size));
        }
    }
    outcome
}

fn finding(context: &Context<'_>, node: NodeId, devices: &BTreeSet<String>, size: u64) -> Finding {
    let (name, of_process) = (text::bytes(size), page_size_name(size));
    let elsewhere: Vec<(NodeId, u64, u64)> = context
        .host
        .topology
        .nodes
        .iter()
        .filter_map(|n| n.hugepages.get(&size).map(|pages| (n.node, pages.total, pages.free)))
        .filter(|(_, total, _)| *total > 0)
        .collect();
    let shown: Vec<&str> = devices.iter().take(5).map(String::as_str).collect();
    let title = format!("node {node} has no hugepages of {name} for {}", text::list(&shown));
    let mut needed: u64 = 0;
    let users: Vec<String> = context
        .memory
        .map(|m| m.processes.as_slice())
        .unwrap_or_default()
        .iter()
        .filter(|process| process.device_nodes.contains(&node) && !process.devices.is_empty())
        .filter_map(|process| {
            let bytes = process.hugetlb.get(&of_process)?.values().copied();
            let bytes = bytes.fold(0, u64::saturating_add);
            needed = needed.saturating_add(bytes);
            let comm = text::clean(&process.comm);
            (bytes > 0).then(|| {
                format!(
                    "{comm} (pid {}) uses a device on node {node} and has {} in such pages on other nodes.",
                    process.pid,
                    text::bytes(bytes)
                )
            })
        })
        .collect();
    let severity = if users.is_empty() { Severity::Info } else { Severity::Warning };
    let mut finding = Finding::new(severity, title)
        .about(devices.iter().map(|device| Subject::Nic(device.clone())));
    let mut most = 0;
    for (other, total, free) in elsewhere {
        most = most.max(total);
        finding = finding.evidence(format!("Node {other} has {total} of them, {free} are free."));
    }
    let count = if users.is_empty() { most } else { needed.div_ceil(size) };
    let is_used = !users.is_empty();
    for user in users.into_iter().take(5) {
        finding = finding.evidence(user);
    }
    match change(context, node, size, count, is_used) {
        Some(change) => finding.change(change),
        None => finding,
    }
}

/// The change that gives a node so many pages.
fn change(
    context: &Context<'_>,
    node: NodeId,
    size: u64,
    count: u64,
    is_used: bool,
) -> Option<ProposedChange> {
    let pools = HugepagePools::new(size >> 10)?;
    let nodes = context.host.topology.nodes.iter();
    let mut counts: BTreeMap<NodeId, u64> = nodes
        .filter_map(|n| n.hugepages.get(&size).map(|pages| (n.node, pages)))
        .map(|(node, pages)| (node, pages.total.saturating_sub(pages.surplus)))
        .collect();
    let before = PoolCounts::Nodes(counts.clone()).to_string();
    *counts.get_mut(&node)? = count;
    let after = PoolCounts::Nodes(counts).to_string();
    let why = match is_used {
        true => "Pages on the node of the device; the program takes them when it is started again.",
        false => "Pages on the node of the NIC, for programs that use it without the kernel.",
    };
    Some(ProposedChange::new(Target::Hugepages(pools), Some(before), after, why))
}
