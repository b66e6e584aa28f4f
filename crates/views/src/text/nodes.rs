//! `show nodes`: CPUs, memory and hugepages of each NUMA node, and the distances between nodes.

use super::cpus::count;
use super::table::{Table, left, or_none, right};
use super::units::{bytes, ranges};
use super::unknown::unknown;
use super::{heading, line};
use nearpath_model::{Host, Node, NodeId};
use std::collections::{BTreeMap, BTreeSet};

/// Nodes beyond which distances are listed instead of drawn as a matrix.
const MANY_NODES: usize = 32;

/// NUMA nodes with their CPUs, memory, hugepages and distances.
pub fn nodes(host: &Host) -> String {
    let nodes = &host.topology.nodes;
    let mut out = String::new();
    if nodes.is_empty() {
        line!(out, "no NUMA nodes reported by this kernel");
    } else {
        heading(&mut out, &count(nodes.len(), "node"));
        out.push_str(&memory(nodes));
    }
    let distances = if nodes.len() > MANY_NODES { by_distance(nodes) } else { matrix(nodes) };
    if !distances.is_empty() {
        line!(out);
        heading(&mut out, "distances (10 is local)");
        out.push_str(&distances);
    }
    let unknown = unknown(&host.unknown, &["node", "nodes", "topology"]);
    if !unknown.is_empty() {
        line!(out);
        out.push_str(&unknown);
    }
    out
}

fn memory(nodes: &[Node]) -> String {
    let mut table = Table::new(&[
        right("NODE"),
        left("CPUS"),
        right("MEMORY"),
        right("FREE"),
        left("HUGEPAGES").optional(),
        right("OTHER-NODE").optional(),
    ]);
    for node in nodes {
        table.row([
            node.node.to_string(),
            node.cpus.to_string(),
            or_none(node.memory_bytes.map(bytes)),
            or_none(node.free_bytes.map(bytes)),
            hugepages(node),
            or_none(other_node(node)),
        ]);
    }
    table.render()
}

/// `2 MiB: 64 of 1024 free`, for each size that the node has pages of.
fn hugepages(node: &Node) -> String {
    let sizes = node.hugepages.iter().filter(|(_, pages)| pages.total > 0);
    let parts = sizes
        .map(|(&size, pages)| format!("{}: {} of {} free", bytes(size), pages.free, pages.total));
    parts.collect::<Vec<_>>().join(", ")
}

/// Share of the node's allocations since boot that processes of other nodes made (numastat's
/// other_node of local_node + other_node).
fn other_node(node: &Node) -> Option<String> {
    let local = *node.numastat.get("local_node")?;
    let other = *node.numastat.get("other_node")?;
    let all = local as f64 + other as f64;
    (all > 0.0).then(|| super::units::percent(other as f64 / all))
}

fn matrix(nodes: &[Node]) -> String {
    let columns: BTreeSet<NodeId> =
        nodes.iter().flat_map(|node| node.distances.keys().copied()).collect();
    if columns.is_empty() {
        return String::new();
    }
    let cell = |node: &Node, to: &NodeId| or_none(node.distances.get(to));
    let cells = nodes.iter().flat_map(|node| columns.iter().map(move |to| cell(node, to).len()));
    let width = cells.chain(columns.iter().map(|to| to.to_string().len())).max().unwrap_or(1);
    let first = nodes.iter().map(|node| node.node.to_string().len()).max().unwrap_or(1).max(4);
    let mut out = String::new();
    let heads: Vec<String> = columns.iter().map(|to| format!("{to:>width$}")).collect();
    line!(out, "{:>first$}  {}", "NODE", heads.join("  "));
    for node in nodes {
        let row: Vec<String> =
            columns.iter().map(|to| format!("{:>width$}", cell(node, to))).collect();
        line!(out, "{:>first$}  {}", node.node.to_string(), row.join("  "));
    }
    out
}

/// For each node the nodes at each distance: `node 0  10: 0  12: 1-3  32: 4-63`.
fn by_distance(nodes: &[Node]) -> String {
    let mut out = String::new();
    for node in nodes {
        let mut at: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (to, distance) in &node.distances {
            at.entry(*distance).or_default().push(to.0);
        }
        let parts = at.into_iter().map(|(distance, to)| format!("  {distance}: {}", ranges(to)));
        let text: String = parts.collect();
        if !text.is_empty() {
            line!(out, "node {}{text}", node.node);
        }
    }
    out
}
