//! Hugepages by node, from the need of the application's packet buffers.

use nearpath_model::{DpdkApplication, DpdkHugepages, NodeId, Topology};
use std::collections::BTreeSet;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// Bytes of a packet buffer in its pool: 128 of the mbuf, 128 of headroom, 2,048 of data, the pool's header and padding
/// (lib/mbuf/rte_mbuf_core.h, lib/mempool/rte_mempool.h).
const BUFFER: u64 = 2560;
/// Packet buffers of DPVS on each node: `pktpool_size` of the configuration that is written.
pub(super) const DPVS_BUFFERS: u64 = 524_287;
/// DPVS's connections (`conn_pool_size` 2,097,152) and tables on each node.
const DPVS_OTHERS: u64 = 1280 * MIB;
/// testpmd's buffers: of 32 ports with 2,048 + 2,048 descriptors, 512 of a burst, 250 in the cache of each lcore
/// (app/test-pmd/testpmd.c).
const TESTPMD_PORTS: u64 = 32;
/// Buffers of a port of Open vSwitch (lib/netdev-dpdk.c, `MAX_NB_MBUF`), of up to 3 KiB.
const OVS_PORT: u64 = 262_144 * 3072;

/// The page size to use: 1 GiB where the kernel has it on every node.
pub(super) fn page_size(topology: &Topology) -> u64 {
    let has = |size: u64| {
        let mut nodes = topology.nodes.iter();
        !topology.nodes.is_empty() && nodes.all(|node| node.hugepages.contains_key(&size))
    };
    if has(GIB) { GIB } else { 2 * MIB }
}

/// The pages of each node, by node.
pub(super) fn hugepages(
    application: DpdkApplication,
    topology: &Topology,
    near: &BTreeSet<NodeId>,
    ports: u64,
    lcores: u64,
) -> Vec<DpdkHugepages> {
    let all: BTreeSet<NodeId> = topology.nodes.iter().map(|node| node.node).collect();
    let with_memory = |node: &NodeId| {
        let node = topology.nodes.iter().find(|known| known.node == *node);
        node.is_none_or(|node| node.memory_bytes != Some(0))
    };
    let (bytes, why, nodes) = match application {
        DpdkApplication::Dpvs => (
            DPVS_BUFFERS * BUFFER + DPVS_OTHERS,
            format!(
                "DPVS has a pool of {DPVS_BUFFERS} packet buffers of {BUFFER} bytes and its connections on each node"
            ),
            if all.is_empty() { [NodeId(0)].into() } else { all },
        ),
        DpdkApplication::Testpmd => (
            (2048 + 2048 + 512 + 250 * lcores) * TESTPMD_PORTS * BUFFER,
            format!(
                "testpmd has a pool for 32 ports and {lcores} lcores on the node of its ports and workers"
            ),
            near.clone(),
        ),
        DpdkApplication::Ovs => (
            OVS_PORT.max(ports * OVS_PORT / 4),
            "Open vSwitch has 262,144 packet buffers for ports of the same MTU on a node"
                .to_owned(),
            near.clone(),
        ),
    };
    let size_bytes = page_size(topology);
    let nodes = if nodes.is_empty() { [NodeId(0)].into() } else { nodes };
    nodes
        .into_iter()
        .filter(with_memory)
        .map(|node| DpdkHugepages {
            node,
            size_bytes,
            count: bytes.div_ceil(size_bytes),
            why: why.clone(),
        })
        .collect()
}

/// `--socket-mem` and `dpdk-socket-mem`: MiB by node, from node 0 on.
pub(super) fn socket_mem(pages: &[DpdkHugepages]) -> String {
    let last = pages.iter().map(|pages| pages.node.0).max().unwrap_or(0);
    let of = |node: u32| {
        let pages = pages.iter().find(|pages| pages.node.0 == node);
        pages.map_or(0, |pages| pages.count * pages.size_bytes / MIB).to_string()
    };
    (0..=last).map(of).collect::<Vec<_>>().join(",")
}

/// The size of a page as the kernel command line has it.
pub(super) fn size_name(bytes: u64) -> &'static str {
    if bytes >= GIB { "1G" } else { "2M" }
}
