//! Which CPUs to give work to: the nearest ones to a node or a CPU, one hardware thread of each
//! core before their SMT siblings, isolated CPUs spared.
//!
//! Checks propose changes with it, and so do the planners.

use nearpath_model::{CpuId, CpuSet, Host, Nearness, NodeId, SocketOwner, Topology};

/// The CPUs that may do the kernel's work: online and neither isolated nor `nohz_full`. All
/// online ones when that leaves none.
pub fn housekeeping(host: &Host) -> CpuSet {
    let spared = spared(host);
    let rest = host.topology.online.difference(&spared);
    if rest.is_empty() { host.topology.online.clone() } else { rest }
}

/// The CPUs that were taken out of the kernel's hands: isolated at boot or by cgroups, or `nohz_full`; empty when none
/// is or when it is unknown.
pub(crate) fn spared(host: &Host) -> CpuSet {
    [host.kernel.all_isolated().as_ref(), host.kernel.nohz_full.as_ref()]
        .into_iter()
        .flatten()
        .fold(CpuSet::new(), |all, cpus| all.union(cpus))
}

/// The online CPUs of a node; of the nearest nodes that have some when it has none (a node of
/// memory only); all online CPUs when the node or the distances are unknown.
pub fn cpus_near_node(topology: &Topology, node: Option<NodeId>) -> CpuSet {
    let online = &topology.online;
    let Some(node) = node.and_then(|node| topology.node(node)) else { return online.clone() };
    let own = node.cpus.intersection(online);
    if !own.is_empty() {
        return own;
    }
    let with_cpus = || {
        topology.nodes.iter().filter_map(|other| {
            let cpus = other.cpus.intersection(online);
            let distance = *node.distances.get(&other.node)?;
            (!cpus.is_empty()).then_some((distance, cpus))
        })
    };
    let Some(nearest) = with_cpus().map(|(distance, _)| distance).min() else {
        return online.clone();
    };
    with_cpus()
        .filter(|(distance, _)| *distance == nearest)
        .fold(CpuSet::new(), |all, (_, cpus)| all.union(&cpus))
}

/// The node whose CPUs are near a node: itself, or the only one nearest to a node of memory only.
pub fn node_with_cpus(topology: &Topology, node: NodeId) -> Option<NodeId> {
    if !topology.is_cpuless(node) {
        return Some(node);
    }
    match topology.nodes_of(&cpus_near_node(topology, Some(node)))[..] {
        [nearest] => Some(nearest),
        _ => None,
    }
}

/// Why a CPU is near what has this name and is on a node, after "CPU 3": `is on node 0, as eth0 is`.
pub fn why_near(topology: &Topology, cpu: CpuId, node: Option<NodeId>, name: &str) -> String {
    match (topology.node_of(cpu), node) {
        (Some(own), Some(node)) if own == node => format!("is on node {node}, as {name} is"),
        (Some(own), Some(node)) if topology.is_cpuless(node) => {
            format!("is on node {own}, near node {node} of {name}, which has no CPUs")
        }
        (Some(own), Some(node)) => format!("is on node {own}, and {name} on node {node}"),
        _ => "is as near as any".to_owned(),
    }
}

/// The housekeeping CPUs near a node, best first: the biggest cores first, one CPU of each core
/// before any SMT sibling, then ascending.
pub fn nearest_cpus(host: &Host, node: Option<NodeId>) -> Vec<CpuId> {
    let near = cpus_near_node(&host.topology, node);
    let kept = near.intersection(&housekeeping(host));
    let near = if kept.is_empty() { near } else { kept };
    let mut cpus: Vec<_> = near.iter().map(|cpu| (rank(&host.topology, &near, cpu), cpu)).collect();
    cpus.sort_unstable();
    cpus.into_iter().map(|(_, cpu)| cpu).collect()
}

/// Lower is better: how many siblings of the set come before it, then the size of its core.
fn rank(topology: &Topology, among: &CpuSet, cpu: CpuId) -> (usize, std::cmp::Reverse<u32>) {
    let Some(facts) = topology.cpu(cpu) else { return (0, std::cmp::Reverse(0)) };
    let before = facts.siblings.iter().filter(|&s| s < cpu && among.contains(s)).count();
    let size = match (facts.capacity, facts.kind.as_deref()) {
        (Some(capacity), _) => capacity,
        (None, Some("atom")) => 512,
        (None, _) => 1024,
    };
    (before, std::cmp::Reverse(size))
}

/// Of some CPUs those that a process may be moved to: in its cpuset, on a node that it takes its memory from, and
/// not isolated unless it runs on isolated CPUs already. `None` when none is left: then it is not to be moved there.
pub(crate) fn allowed(host: &Host, owner: &SocketOwner, cpus: &CpuSet) -> Option<CpuSet> {
    let mut left = cpus.intersection(&host.topology.online);
    if let Some(cpuset) = &owner.cpuset {
        left = left.intersection(cpuset);
    }
    // A list of nodes has the form of one of CPUs.
    let nodes = owner.mems_allowed.as_deref().and_then(|list| CpuSet::from_list(list).ok());
    if let Some(nodes) = nodes {
        let on_them = |cpu: &CpuId| {
            host.topology.node_of(*cpu).is_none_or(|node| nodes.contains(CpuId(node.0)))
        };
        left = left.iter().filter(on_them).collect();
    }
    let spared = spared(host);
    let own = owner.threads.values().chain(&owner.affinity);
    let is_isolated = own.clone().next().is_some() && own.clone().all(|c| c.is_subset(&spared));
    if !is_isolated {
        left = left.difference(&spared);
    }
    (!left.is_empty()).then_some(left)
}

/// The nearest of some CPUs to one, the lowest of equals; `None` when there are none.
pub fn nearest_of(topology: &Topology, to: CpuId, among: &CpuSet) -> Option<CpuId> {
    among.iter().min_by_key(|&cpu| {
        // Unknown distances count as far.
        (topology.nearness(to, cpu).unwrap_or(Nearness::OtherNode), cpu)
    })
}

/// One CPU for each of `n` queues: the CPUs in their order, again from the first when there are
/// fewer. Empty when there is no CPU.
pub fn spread(cpus: &[CpuId], n: usize) -> Vec<CpuId> {
    cpus.iter().copied().cycle().take(if cpus.is_empty() { 0 } else { n }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_model::{Cpu, Node};
    use std::collections::BTreeMap;

    fn set(list: &str) -> CpuSet {
        CpuSet::from_list(list).unwrap()
    }

    /// Two nodes of two cores with two threads each (core 0: 0 and 4, …), and a third node of
    /// memory only, which is nearer to the second.
    fn host() -> Host {
        let mut host = Host::default();
        let topology = &mut host.topology;
        topology.online = set("0-7");
        topology.cpus = (0..8u32)
            .map(|cpu| Cpu {
                cpu: CpuId(cpu),
                online: true,
                core: Some(cpu % 4),
                package: Some(0),
                die: None,
                cluster: None,
                llc: None,
                node: Some(NodeId(cpu % 4 / 2)),
                siblings: [CpuId(cpu % 4), CpuId(cpu % 4 + 4)].into_iter().collect(),
                kind: None,
                capacity: None,
            })
            .collect();
        topology.nodes = [("0-1,4-5", [10, 20, 30]), ("2-3,6-7", [20, 10, 25]), ("", [30, 25, 10])]
            .into_iter()
            .zip(0..)
            .map(|((cpus, distances), node)| Node {
                node: NodeId(node),
                cpus: set(cpus),
                memory_bytes: None,
                free_bytes: None,
                distances: (0..).map(NodeId).zip(distances).collect(),
                hugepages: BTreeMap::new(),
                numastat: BTreeMap::new(),
            })
            .collect();
        host
    }

    fn nearest(host: &Host, node: Option<u32>) -> Vec<u32> {
        nearest_cpus(host, node.map(NodeId)).into_iter().map(|cpu| cpu.0).collect()
    }

    #[test]
    fn siblings_come_last() {
        assert_eq!(nearest(&host(), Some(1)), [2, 3, 6, 7]);
        assert_eq!(nearest(&host(), None), [0, 1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn a_node_without_cpus_is_served_by_the_nearest() {
        assert_eq!(nearest(&host(), Some(2)), [2, 3, 6, 7]);
        assert_eq!(nearest(&host(), Some(9)), [0, 1, 2, 3, 4, 5, 6, 7], "no such node");
    }

    #[test]
    fn a_reader_is_moved_within_its_cpuset_its_nodes_and_off_isolated_cpus() {
        let mut host = host();
        let mut reader = SocketOwner {
            pid: 7,
            comm: "nginx".to_owned(),
            affinity: Some(set("0")),
            ..SocketOwner::default()
        };
        let to = |host: &Host, reader: &SocketOwner| {
            allowed(host, reader, &set("1-3")).map(|cpus| cpus.to_string())
        };
        assert_eq!(to(&host, &reader).as_deref(), Some("1-3"));
        host.kernel.isolated = Some(set("3"));
        assert_eq!(to(&host, &reader).as_deref(), Some("1-2"));
        reader.mems_allowed = Some("0".to_owned());
        assert_eq!(to(&host, &reader).as_deref(), Some("1"), "2 is on node 1");
        reader.cpuset = Some(set("0,4"));
        assert_eq!(to(&host, &reader), None, "outside of its cpuset");
        let isolated =
            SocketOwner { affinity: Some(set("3")), mems_allowed: None, cpuset: None, ..reader };
        assert_eq!(to(&host, &isolated).as_deref(), Some("1-3"), "it runs on isolated CPUs");
    }

    #[test]
    fn isolated_cpus_are_spared_unless_there_are_no_others() {
        let mut host = host();
        host.kernel.isolated = Some(set("2"));
        host.kernel.nohz_full = Some(set("6"));
        assert_eq!(nearest(&host, Some(1)), [3, 7]);
        host.kernel.isolated = Some(set("2-3"));
        host.kernel.nohz_full = Some(set("6-7"));
        assert_eq!(nearest(&host, Some(1)), [2, 3, 6, 7], "all of the node are isolated");
        assert_eq!(housekeeping(&host), set("0-1,4-5"));
        // By a cgroup since boot.
        host.kernel.isolated = Some(set(""));
        host.kernel.isolated_by_cgroups = Some(set("3"));
        assert_eq!(nearest(&host, Some(1)), [2]);
    }

    #[test]
    fn big_cores_come_first_and_the_nearest_cpu_wins() {
        let mut host = host();
        host.topology.cpus[2].kind = Some("atom".to_owned());
        assert_eq!(nearest(&host, Some(1)), [3, 2, 6, 7]);
        assert_eq!(nearest_of(&host.topology, CpuId(3), &set("0,2,7")), Some(CpuId(7)));
        assert_eq!(nearest_of(&host.topology, CpuId(3), &set("")), None);
        assert_eq!(spread(&[CpuId(1), CpuId(2)], 3), [CpuId(1), CpuId(2), CpuId(1)]);
        assert!(spread(&[], 3).is_empty());
    }
}
