//! The node of physical memory, by its blocks (Documentation/admin-guide/mm/memory-hotplug.rst).

use nearpath_host::Root;
use nearpath_model::NodeId;
use std::collections::BTreeMap;

const NODES: &str = "/sys/devices/system/node";
const BLOCK_BYTES: &str = "/sys/devices/system/memory/block_size_bytes";

/// The blocks of all nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Blocks {
    /// Size of a block; `None` if the kernel reports no blocks (no memory hot-plug).
    bytes: Option<u64>,
    nodes: BTreeMap<u64, NodeId>,
}

impl Blocks {
    /// Those of the host behind a root.
    pub fn read(root: &Root) -> Self {
        let bytes = root.text(BLOCK_BYTES).ok();
        let bytes = bytes.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
        let mut nodes = BTreeMap::new();
        for entry in root.list(NODES).unwrap_or_default() {
            let Some(node) = entry.name.strip_prefix("node").and_then(|n| n.parse().ok()) else {
                continue;
            };
            let folder = format!("{NODES}/{}", entry.name);
            for block in root.list(&folder).unwrap_or_default() {
                let number = block.name.strip_prefix("memory").and_then(|n| n.parse().ok());
                number.and_then(|number| nodes.insert(number, NodeId(node)));
            }
        }
        Self { bytes: bytes.filter(|bytes| *bytes > 0), nodes }
    }

    /// The node of a physical address; `None` if it is unknown.
    pub fn node(&self, physical: u64) -> Option<NodeId> {
        let block = physical.checked_div(self.bytes?)?;
        self.nodes.get(&block).copied()
    }

    /// Bytes of a physical range by node; what is in no block is on none.
    pub fn split(&self, start: u64, end: u64) -> BTreeMap<NodeId, u64> {
        let mut by_node = BTreeMap::new();
        let Some(size) = self.bytes.filter(|_| start < end) else { return by_node };
        // Only blocks that exist are visited, however large the range.
        for (&block, &node) in self.nodes.range(start / size..=(end - 1) / size) {
            let begin = block.saturating_mul(size);
            let part = end.min(begin.saturating_add(size)).saturating_sub(start.max(begin));
            *by_node.entry(node).or_default() += part;
        }
        by_node
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_split_at_its_blocks() {
        let dir = tempfile::tempdir().unwrap();
        let folder = |path: &str| std::fs::create_dir_all(dir.path().join(path)).unwrap();
        folder("sys/devices/system/memory");
        let size = dir.path().join("sys/devices/system/memory/block_size_bytes");
        std::fs::write(size, "8000000\n").unwrap();
        for block in ["node0/memory0", "node0/memory1", "node1/memory2", "node1/memory33"] {
            folder(&format!("sys/devices/system/node/{block}"));
        }
        folder("sys/devices/system/node/power");
        let blocks = Blocks::read(&Root::tree(dir.path()).unwrap());
        let size = 0x800_0000;
        assert_eq!(blocks.node(size), Some(NodeId(0)));
        assert_eq!(blocks.node(3 * size), None, "a hole");
        let of = |start, end| {
            blocks.split(start, end).into_iter().map(|(n, b)| (n.0, b)).collect::<Vec<_>>()
        };
        assert_eq!(of(size / 2, 2 * size + 5), [(0, size / 2 + size), (1, 5)]);
        assert_eq!(of(0, u64::MAX), [(0, 2 * size), (1, 2 * size)]);
        assert_eq!(of(7, 7), []);
        assert_eq!(of(9, 7), []);
        assert_eq!(Blocks::default().split(0, size), BTreeMap::new());
    }
}
