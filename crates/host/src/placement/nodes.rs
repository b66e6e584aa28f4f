//! The nodes' memory, counters and hugepage pools (drivers/base/node.c), and kernel memory of sockets
//! (net/ipv4/proc.c, `sockstat_seq_show`).

use crate::counters::socket_pages;
use crate::topology::nodes::{NODES, counters, hugepages, meminfo_bytes};
use crate::{Notes, Root};
use nearpath_model::memory::{HugepagePool, NodeMemory, SocketsMemory, page_size_name};
use nearpath_model::{NodeId, Topology};

/// Counters of `/proc/vmstat` about nodes and huge pages.
const COUNTERS: &[&str] = &[
    "numa_pte_updates",
    "numa_hint_faults",
    "numa_hint_faults_local",
    "numa_pages_migrated",
    "pgmigrate_success",
    "pgmigrate_fail",
    "zone_reclaim_success",
    "zone_reclaim_failed",
    "compact_stall",
    "thp_fault_alloc",
    "thp_fault_fallback",
];

/// Reads the nodes that the topology has.
pub(super) fn read(root: &Root, topology: &Topology, notes: &mut Notes) -> Vec<NodeMemory> {
    topology.nodes.iter().map(|node| read_node(root, topology, node.node, notes)).collect()
}

fn read_node(root: &Root, topology: &Topology, node: NodeId, notes: &mut Notes) -> NodeMemory {
    let (folder, subject) = (format!("{NODES}/node{node}"), format!("node {node}"));
    let meminfo = notes.take(&subject, "memory", root.text(&format!("{folder}/meminfo")));
    let bytes = |name| meminfo.as_deref().and_then(|text| meminfo_bytes(text, name));
    let numastat = notes.take(&subject, "numastat", root.text(&format!("{folder}/numastat")));
    let numastat = numastat.as_deref().map(counters).unwrap_or_default();
    let counter = |name: &str| numastat.get(name).copied();
    // Shared memory is among the pages of files, and cannot be dropped.
    let files = bytes("FilePages:").map(|all| all.saturating_sub(bytes("Shmem:").unwrap_or(0)));
    let slab = bytes("SReclaimable:").unwrap_or(0);
    let pools = hugepages(root, &folder, &subject, notes);
    NodeMemory {
        node,
        has_cpus: !topology.is_cpuless(node),
        memory_bytes: bytes("MemTotal:"),
        free_bytes: bytes("MemFree:"),
        reclaimable_bytes: files.map(|files| files.saturating_add(slab)),
        page_table_bytes: bytes("PageTables:"),
        slab_bytes: bytes("Slab:"),
        hugepages: pools
            .into_iter()
            .map(|(size, pool)| {
                (page_size_name(size), HugepagePool { total: pool.total, free: pool.free })
            })
            .collect(),
        numa_miss: counter("numa_miss"),
        numa_foreign: counter("numa_foreign"),
        numa_hit: counter("numa_hit"),
        other_node: counter("other_node"),
    }
}

/// The counters of `/proc/vmstat` that this kernel has.
pub(super) fn vmstat(root: &Root) -> std::collections::BTreeMap<String, u64> {
    let text = root.text("/proc/vmstat").unwrap_or_default();
    let all = counters(&text);
    COUNTERS.iter().filter_map(|name| Some(((*name).to_owned(), *all.get(*name)?))).collect()
}

/// Kernel memory of sockets: buffers charged to TCP and UDP. It is counted in pages (`PAGE_SIZE`; `SK_MEM_QUANTUM` before
/// 6.0, the same).
pub(super) fn sockets(root: &Root) -> SocketsMemory {
    let bytes = |protocol| socket_pages(root, protocol)?.checked_mul(4096);
    SocketsMemory { tcp_bytes: bytes("TCP"), udp_bytes: bytes("UDP") }
}
