//! `/sys/devices/system/node` (drivers/base/node.c).

use super::write::{Writer, cpulist, mask};
use super::{Machine, Node};

const NODES: &str = "/sys/devices/system/node";

impl Machine {
    pub(super) fn write_nodes(&self, w: &mut Writer) {
        if self.nodes.is_empty() {
            return;
        }
        let all: Vec<u32> = self.nodes.keys().copied().collect();
        let with_cpu: Vec<u32> = all
            .iter()
            .copied()
            .filter(|node| self.cpus.values().any(|c| c.online && c.node == Some(*node)))
            .collect();
        w.line(&format!("{NODES}/possible"), cpulist(&all));
        w.line(&format!("{NODES}/online"), cpulist(&all));
        w.line(&format!("{NODES}/has_cpu"), cpulist(&with_cpu));
        for (&number, node) in &self.nodes {
            self.write_node(w, number, node);
        }
    }

    fn write_node(&self, w: &mut Writer, number: u32, node: &Node) {
        let dir = format!("{NODES}/node{number}");
        let cpus = self.online_where(|cpu| cpu.node == Some(number));
        w.line(&format!("{dir}/cpumap"), mask(&cpus, self.bits()));
        if !self.masks_only {
            w.line(&format!("{dir}/cpulist"), cpulist(&cpus));
        }
        let distances = self.nodes.keys().map(|other| {
            let local = if *other == number { 10 } else { 20 };
            node.distances.get(other).copied().unwrap_or(local).to_string()
        });
        w.line(&format!("{dir}/distance"), distances.collect::<Vec<_>>().join(" "));
        let used = node.memory_kib.saturating_sub(node.free_kib);
        let meminfo = format!(
            "Node {number} MemTotal:       {:8} kB\nNode {number} MemFree:        {:8} kB\n\
             Node {number} MemUsed:        {used:8} kB\nNode {number} HugePages_Total:     0\n",
            node.memory_kib, node.free_kib,
        );
        w.file(&format!("{dir}/meminfo"), meminfo);
        w.file(
            &format!("{dir}/numastat"),
            "numa_hit 1000\nnuma_miss 20\nnuma_foreign 30\ninterleave_hit 40\n\
             local_node 900\nother_node 100\n",
        );
        for (size_kib, counts) in &node.hugepages {
            let dir = format!("{dir}/hugepages/hugepages-{size_kib}kB");
            for (file, count) in
                ["nr_hugepages", "free_hugepages", "surplus_hugepages"].iter().zip(counts)
            {
                w.line(&format!("{dir}/{file}"), count);
            }
        }
    }
}
