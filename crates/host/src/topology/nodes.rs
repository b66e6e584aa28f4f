//! NUMA nodes: their CPUs, distances, memory and hugepages
//! (`/sys/devices/system/node`, drivers/base/node.c).

use super::files::{self, SetFiles};
use super::unknown::UnknownOfCpus;
use super::{CPUS, MOST_CPUS};
use crate::{Notes, Root};
use nearpath_model::{Cpu, CpuId, CpuSet, Hugepages, Node, NodeId};
use std::collections::{BTreeMap, BTreeSet};

pub(crate) const NODES: &str = "/sys/devices/system/node";
const NODE_CPUS: &[&str] = &["cpulist", "cpumap"];

/// A node, while CPUs are assigned to nodes.
pub(super) struct FoundNode {
    pub(super) node: Node,
    /// Neither `cpulist` nor `cpumap` could be read, and it has no links to CPUs: its CPUs are those that link
    /// to it.
    cpus_unknown: bool,
}

/// Reads the nodes, ascending. Old kernels list CPUs that do not exist; only present ones count.
pub(super) fn read(root: &Root, present: &CpuSet, notes: &mut Notes) -> Vec<FoundNode> {
    let entries = notes.take("host", "nodes", root.list(NODES)).unwrap_or_default();
    let mut ids: Vec<NodeId> =
        entries.iter().filter_map(|e| files::numbered(&e.name, "node")).map(NodeId).collect();
    ids.sort_unstable();
    ids.dedup();
    // The columns of `distance`. Node lists have the format of a cpulist.
    let online = files::cpulist(root, &format!("{NODES}/online"));
    let columns: Vec<NodeId> =
        online.map_or_else(|_| ids.clone(), |o| o.iter().map(|n| NodeId(n.0)).collect());
    let files = SetFiles::new(NODE_CPUS);
    ids.into_iter().map(|node| read_node(root, node, &columns, &files, present, notes)).collect()
}

fn read_node(
    root: &Root,
    node: NodeId,
    columns: &[NodeId],
    files: &SetFiles,
    present: &CpuSet,
    notes: &mut Notes,
) -> FoundNode {
    let (dir, subject) = (format!("{NODES}/node{node}"), format!("node {node}"));
    let cpus = files.read(root, &dir).or_else(|error| linked_cpus(root, &dir).ok_or(error));
    let cpus = notes.take(&subject, "cpus", cpus);
    let distances = match root.text(&format!("{dir}/distance")) {
        Ok(text) => distances(&text, columns),
        Err(error) => Err(error.to_string()),
    };
    let distances = distances.unwrap_or_else(|reason| {
        notes.add(&subject, "distances", &reason);
        BTreeMap::new()
    });
    let meminfo = notes.take(&subject, "memory", root.text(&format!("{dir}/meminfo")));
    let memory = |name| meminfo.as_deref().and_then(|text| meminfo_bytes(text, name));
    let numastat = notes.take(&subject, "numastat", root.text(&format!("{dir}/numastat")));
    let found = Node {
        node,
        cpus: cpus.as_ref().map(|cpus| cpus.intersection(present)).unwrap_or_default(),
        memory_bytes: memory("MemTotal:"),
        free_bytes: memory("MemFree:"),
        distances,
        hugepages: hugepages(root, &dir, &subject, notes),
        numastat: numastat.as_deref().map(counters).unwrap_or_default(),
    };
    FoundNode { node: found, cpus_unknown: cpus.is_none() }
}

/// The CPUs linked in a node's directory, the only information in some captured trees; `None` without any
/// (drivers/base/node.c `register_cpu_under_node`).
fn linked_cpus(root: &Root, dir: &str) -> Option<CpuSet> {
    let names = root.list(dir).ok()?;
    let cpus: CpuSet =
        names.iter().filter_map(|e| files::numbered(&e.name, "cpu")).map(CpuId).collect();
    (!cpus.is_empty()).then_some(cpus)
}

/// `10 21`: one column per online node, ascending, whatever their numbers.
fn distances(text: &str, columns: &[NodeId]) -> Result<BTreeMap<NodeId, u32>, String> {
    let parsed: Result<Vec<u32>, _> = text.split_whitespace().map(str::parse).collect();
    match parsed {
        Ok(values) if values.len() == columns.len() => {
            Ok(columns.iter().copied().zip(values).collect())
        }
        Ok(values) => Err(format!(
            "distance has {} columns, but {} nodes are online",
            values.len(),
            columns.len()
        )),
        Err(_) => Err("distance has a column that is not a number".to_owned()),
    }
}

/// `Node 0 MemTotal:   16384 kB` in bytes.
pub(crate) fn meminfo_bytes(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip_while(|word| *word != name).skip(1);
        let kib = words.next()?.parse::<u64>().ok()?;
        kib.checked_mul(1024)
    })
}

/// Lines of a name and a number.
pub(crate) fn counters(text: &str) -> BTreeMap<String, u64> {
    let counter = |line: &str| {
        let (name, value) = line.split_once(char::is_whitespace)?;
        Some((name.to_owned(), value.trim().parse().ok()?))
    };
    text.lines().filter_map(counter).collect()
}

pub(crate) fn hugepages(
    root: &Root,
    node: &str,
    subject: &str,
    notes: &mut Notes,
) -> BTreeMap<u64, Hugepages> {
    let dir = format!("{node}/hugepages");
    let entries = notes.take(subject, "hugepages", root.list(&dir)).unwrap_or_default();
    let mut sizes = BTreeMap::new();
    for entry in &entries {
        let size = entry.name.strip_prefix("hugepages-").and_then(|s| s.strip_suffix("kB"));
        let size = size.and_then(|kib| kib.parse::<u64>().ok()?.checked_mul(1024));
        let Some(size) = size else { continue };
        let mut count = |file: &str| {
            let path = format!("{dir}/{}/{file}", entry.name);
            let text = notes.take(subject, "hugepages", root.text(&path))?;
            text.parse::<u64>().ok()
        };
        let counts = (count("nr_hugepages"), count("free_hugepages"), count("surplus_hugepages"));
        if let (Some(total), Some(free), Some(surplus)) = counts {
            sizes.insert(size, Hugepages { total, free, surplus });
        }
    }
    sizes
}

/// Sets the node of each CPU: from the nodes' lists, else from the link `cpuN/nodeM`, which offline CPUs also
/// have (drivers/base/node.c `register_cpu_under_node`).
pub(super) fn place(
    root: &Root,
    nodes: &mut [FoundNode],
    folders: &CpuSet,
    cpus: &mut BTreeMap<CpuId, Cpu>,
    unknown: &mut UnknownOfCpus,
) {
    for found in nodes.iter() {
        for cpu in found.node.cpus.iter() {
            if let Some(cpu) = cpus.get_mut(&cpu) {
                cpu.node.get_or_insert(found.node.node);
            }
        }
    }
    let ids: BTreeSet<NodeId> = nodes.iter().map(|found| found.node.node).collect();
    let folders: CpuSet = folders.iter().take(MOST_CPUS).collect();
    for (&number, cpu) in cpus.iter_mut().filter(|(_, cpu)| cpu.node.is_none()) {
        if ids.is_empty() {
            unknown.add(number, "node", format!("no nodes in {NODES}"));
            continue;
        }
        let names = if folders.contains(number) {
            root.list(&format!("{CPUS}/cpu{number}")).unwrap_or_default()
        } else {
            Vec::new()
        };
        let mut linked = names.iter().filter_map(|e| files::numbered(&e.name, "node")).map(NodeId);
        cpu.node = linked.find(|node| ids.contains(node));
        match cpu.node {
            None => unknown.add(number, "node", "not listed by any node".to_owned()),
            Some(node) if cpu.online => {
                let of_links = nodes.iter_mut().find(|f| f.node.node == node && f.cpus_unknown);
                of_links.into_iter().for_each(|found| found.node.cpus.insert(number));
            }
            Some(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_of_distance_are_the_online_nodes() {
        let nodes = [NodeId(0), NodeId(8), NodeId(252)];
        let read = distances(" 10 40 80", &nodes).unwrap();
        assert_eq!(read, BTreeMap::from([(nodes[0], 10), (nodes[1], 40), (nodes[2], 80)]));
        assert!(distances("10 40", &nodes).is_err());
        assert!(distances("10 x 40", &nodes).is_err());
    }

    #[test]
    fn memory_of_a_node() {
        let text = "Node 0 MemTotal:       16384 kB\nNode 0 MemFree: 99999999999999999999 kB\n";
        assert_eq!(meminfo_bytes(text, "MemTotal:"), Some(16 << 20));
        assert_eq!(meminfo_bytes(text, "MemFree:"), None);
        assert_eq!(meminfo_bytes(text, "MemUsed:"), None);
    }
}
