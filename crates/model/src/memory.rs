//! Where the memory of processes is: results of `show memory` and of the instrument `memory`.
//!
//! A node with memory and without CPUs (CXL, persistent memory) is nobody's own: memory on it is counted by itself
//! ([`ProcessPlacement::cpuless_bytes`]), neither as local nor as remote.

use crate::{AccessEstimates, EventCost, LoadSamples, NodeId, Topology};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Version of the JSON form of [`MemoryMeasurement`].
pub const MEMORY_MEASUREMENT_SCHEMA: u32 = 1;

/// Share of a process's CPU time on a node from which memory there is local to it.
pub const RAN_ON_SHARE: f64 = 0.05;

/// Memory by process and node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct MemoryMeasurement {
    /// [`MEMORY_MEASUREMENT_SCHEMA`] of the nearpath that wrote this.
    pub schema: u32,
    /// Duration of the measurement, in seconds; `None` of a still picture.
    pub duration_s: Option<f64>,
    /// The processes, most remote bytes first.
    pub processes: Vec<ProcessPlacement>,
    /// Sums by cgroup, of the processes in `processes`.
    pub cgroups: Vec<CgroupMemory>,
    /// Processes that were not read because little of their memory is resident, and no option selected them.
    pub small_processes: u64,
    /// The nodes.
    pub nodes: Vec<NodeMemory>,
    /// Pages moved between nodes on this host, by reason and by the process that moved them; empty of a still picture.
    pub moves: Vec<PageMoves>,
    /// Page moves that did not fit in the map.
    pub moves_lost: u64,
    /// `vm.numa_hint_faults`, `vm.numa_pages_migrated` and the like: the increase in the interval, since boot of a
    /// still picture.
    pub vmstat: BTreeMap<String, u64>,
    /// Loads that the PMU sampled in the interval; `None` without such a PMU, and of a still picture.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loads: Option<LoadSamples>,
    /// How much memory was accessed, as DAMON estimates it; `None` where it is not running, and of a still picture.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accesses: Option<AccessEstimates>,
    /// Kernel memory of sockets, for which the kernel reports no nodes.
    pub sockets: SocketsMemory,
    /// What is not available, with the reason.
    pub not_available: Vec<NotAvailable>,
    /// What reading cost.
    pub cost: MemoryCost,
}

/// Where the memory of a process is, and where it ran.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessPlacement {
    /// Process id.
    pub pid: u32,
    /// Its name.
    pub comm: String,
    /// Its cgroup, as in `/proc/PID/cgroup`; `None` if unknown.
    pub cgroup: Option<String>,
    /// Bytes by node.
    pub nodes: BTreeMap<NodeId, NodeBytes>,
    /// Bytes in hugetlb pages by page size (`2MiB`) and node; part of `nodes`.
    pub hugetlb: BTreeMap<String, BTreeMap<NodeId, u64>>,
    /// Bytes of `nodes` in mappings that have both anonymous and file pages on several nodes: the kernel reports the
    /// nodes of their sum only, so that the kinds by node are estimated. The totals are exact.
    pub estimated_bytes: u64,
    /// Bytes in transparent hugepages; `None` unless requested (`smaps_rollup`, a walk of its own).
    pub thp_bytes: Option<u64>,
    /// Bytes on nodes with CPUs on which it ran for less than [`RAN_ON_SHARE`] of its time; `None` if it is unknown where
    /// it ran.
    pub remote_bytes: Option<u64>,
    /// Their share of all its bytes.
    pub remote_share: Option<f64>,
    /// Bytes on nodes without CPUs.
    pub cpuless_bytes: u64,
    /// Share of its CPU time by node.
    pub ran_on_nodes: BTreeMap<NodeId, f64>,
    /// How `ran_on_nodes` is known; `None` if it is empty.
    pub ran_on_basis: Option<RanOnBasis>,
    /// The same by the name of its threads, most CPU time first.
    pub threads: Vec<ThreadGroup>,
    /// Nodes that its threads may run on, from their affinity.
    pub allowed_nodes: Vec<NodeId>,
    /// Nodes that it may allocate on (`Mems_allowed_list`); empty if unknown.
    pub mems_allowed: Vec<NodeId>,
    /// Nodes of the devices that it uses: opened through vfio or uio, or interfaces its sockets are bound to.
    pub device_nodes: Vec<NodeId>,
    /// Those devices.
    pub devices: Vec<UsedDevice>,
    /// Bytes on nodes other than `device_nodes`, those without CPUs excepted; `None` without such a device.
    pub device_remote_bytes: Option<u64>,
    /// Whether a device may read or write its memory by itself, so that its pages must not be moved: `None` if unknown.
    pub dma_mapped: Option<bool>,
    /// Why, or why it is unknown.
    pub dma_reason: Option<String>,
    /// Memory policy of the process (`default`, `bind:0`, `prefer:1`, `interleave:0-1`): that of its stack.
    pub policy: Option<String>,
    /// Bytes by policy of the mapping.
    pub mapping_policies: BTreeMap<String, u64>,
    /// Pages moved between nodes in the interval, by reason.
    pub moved_pages: BTreeMap<String, MovedPages>,
    /// NUMA hint faults in the interval; `None` if not available.
    pub hint_faults: Option<HintFaults>,
    /// Page tables (`VmPTE`).
    pub page_table_bytes: Option<u64>,
    /// Pinned (`VmPin`) and locked (`VmLck`).
    pub pinned_bytes: Option<u64>,
    /// Locked.
    pub locked_bytes: Option<u64>,
    /// Swapped out (`VmSwap`): on no node.
    pub swap_bytes: Option<u64>,
    /// Mappings.
    pub mappings: u64,
    /// Time it took to read `numa_maps`: the kernel walks its page tables.
    pub read_ns: u64,
}

/// Bytes on one node. Each page is in one of the four.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeBytes {
    /// Anonymous memory: heap, stacks, private copies of file pages; transparent hugepages included.
    pub anon_bytes: u64,
    /// Pages of files, in the page cache.
    pub file_bytes: u64,
    /// Shared memory: /dev/shm, memfd, System V, shared anonymous mappings.
    pub shared_bytes: u64,
    /// hugetlb pages, whatever they hold.
    pub hugetlb_bytes: u64,
}

/// How it is known where a process ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RanOnBasis {
    /// CPU time used in the interval, by the node on which the thread was at each sample.
    Interval,
    /// The CPU that each thread ran on last, weighted by the CPU time since it started.
    LastCpu,
}

/// Threads of a process with the same name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ThreadGroup {
    /// Their name.
    pub comm: String,
    /// Number of threads.
    pub threads: u64,
    /// CPU time in seconds: in the interval, since their start of a still picture.
    pub cpu_s: f64,
    /// Share of it by node.
    pub ran_on_nodes: BTreeMap<NodeId, f64>,
}

/// A device that a process uses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsedDevice {
    /// `/dev/vfio/12`, `/dev/uio0`.
    pub device: String,
    /// Its PCI address or interface; `None` if unknown.
    pub name: Option<String>,
    /// Its node; `None` if the firmware reports none.
    pub node: Option<NodeId>,
}

/// Pages moved for a reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MovedPages {
    /// Pages moved.
    pub moved: u64,
    /// Pages that could not be moved.
    pub failed: u64,
}

/// Pages moved for a reason, by the process whose thread moved them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageMoves {
    /// The kernel's reason: `numa_misplaced` (AutoNUMA), `syscall` (migrate_pages, move_pages, cpusets), `compaction`,
    /// `mempolicy_mbind`, `memory_hotplug`, `demotion`, …
    pub reason: String,
    /// The process that did it.
    pub by_pid: u32,
    /// Its name.
    pub by_comm: String,
    /// The process whose memory it was, if that is known.
    pub pid: Option<u32>,
    /// The pages.
    #[serde(flatten)]
    pub pages: MovedPages,
}

/// Page faults taken to find out which node uses a page.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HintFaults {
    /// Pages.
    pub pages: u64,
    /// Of them on the node of the CPU.
    pub local: u64,
}

/// Memory of the processes of a cgroup.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CgroupMemory {
    /// Its path.
    pub cgroup: String,
    /// Processes of `processes` in it.
    pub processes: u64,
    /// Their bytes by node. A page that two processes map is counted in both.
    pub nodes: BTreeMap<NodeId, NodeBytes>,
    /// Sum of their remote bytes.
    pub remote_bytes: u64,
    /// Bytes in transparent hugepages by node (`anon_thp`, `file_thp`, `shmem_thp` of the cgroup's `memory.numa_stat`):
    /// each page once, also of other processes in the cgroup; `None` if not available.
    pub thp: Option<BTreeMap<NodeId, u64>>,
    /// Page tables by node (`pagetables` of `memory.numa_stat`, Linux 5.19).
    pub page_tables: Option<BTreeMap<NodeId, u64>>,
}

/// A node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeMemory {
    /// Its number.
    pub node: NodeId,
    /// Whether it has CPUs that are online.
    pub has_cpus: bool,
    /// `MemTotal`.
    pub memory_bytes: Option<u64>,
    /// `MemFree`.
    pub free_bytes: Option<u64>,
    /// What can be taken back without swapping, roughly: `FilePages` without `Shmem`, and `SReclaimable`.
    pub reclaimable_bytes: Option<u64>,
    /// `PageTables`.
    pub page_table_bytes: Option<u64>,
    /// `Slab`.
    pub slab_bytes: Option<u64>,
    /// Hugepage pools by page size (`2MiB`), in pages.
    pub hugepages: BTreeMap<String, HugepagePool>,
    /// Pages that were to be allocated elsewhere, and were allocated here as that node was full: in the interval, since
    /// boot of a still picture.
    pub numa_miss: Option<u64>,
    /// Pages that were to be allocated here, and were allocated elsewhere.
    pub numa_foreign: Option<u64>,
    /// Pages allocated here as intended.
    pub numa_hit: Option<u64>,
    /// Pages allocated here by a thread on another node.
    pub other_node: Option<u64>,
}

/// Hugepages of a size on a node, in pages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HugepagePool {
    /// `nr_hugepages`.
    pub total: u64,
    /// `free_hugepages`.
    pub free: u64,
}

/// Kernel memory of the sockets of the network namespace, from `/proc/net/sockstat`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketsMemory {
    /// TCP; `None` if unknown.
    pub tcp_bytes: Option<u64>,
    /// UDP.
    pub udp_bytes: Option<u64>,
}

/// Something that is not available.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NotAvailable {
    /// What: `remote loads`, `process 812`.
    pub what: String,
    /// Why.
    pub reason: String,
}

/// What reading cost the host: nothing of a snapshot.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct MemoryCost {
    /// Time spent reading `numa_maps`, in which the kernel holds the lock of the process's mappings for reading.
    pub numa_maps_ns: u64,
    /// The longest of these.
    pub slowest_ns: u64,
    /// The process that took it.
    pub slowest_pid: Option<u32>,
    /// Time spent reading where threads ran, descriptors, and status.
    pub other_ns: u64,
    /// Mappings read.
    pub mappings: u64,
    /// Cost of the kernel programs, per event; `None` if there was no event.
    pub events: Option<EventCost>,
}

impl NodeBytes {
    /// All kinds.
    pub fn total(&self) -> u64 {
        let two = self.anon_bytes.saturating_add(self.file_bytes);
        two.saturating_add(self.shared_bytes).saturating_add(self.hugetlb_bytes)
    }

    /// Adds those of another.
    pub fn add(&mut self, other: &Self) {
        self.anon_bytes = self.anon_bytes.saturating_add(other.anon_bytes);
        self.file_bytes = self.file_bytes.saturating_add(other.file_bytes);
        self.shared_bytes = self.shared_bytes.saturating_add(other.shared_bytes);
        self.hugetlb_bytes = self.hugetlb_bytes.saturating_add(other.hugetlb_bytes);
    }
}

impl ProcessPlacement {
    /// All bytes on nodes.
    pub fn total(&self) -> u64 {
        self.nodes.values().map(NodeBytes::total).fold(0, u64::saturating_add)
    }

    /// Nodes on which it ran for [`RAN_ON_SHARE`] of its time or more.
    pub fn own_nodes(&self) -> Vec<NodeId> {
        let own = self.ran_on_nodes.iter().filter(|(_, share)| **share >= RAN_ON_SHARE);
        own.map(|(node, _)| *node).collect()
    }

    /// Computes what follows from the bytes by node, where it ran, and where its devices are.
    pub fn compare(&mut self, topology: &Topology) {
        let own = self.own_nodes();
        let mut cpuless = 0u64;
        let (mut remote, mut from_device) = (0u64, 0u64);
        for (node, bytes) in &self.nodes {
            let bytes = bytes.total();
            if topology.is_cpuless(*node) {
                cpuless = cpuless.saturating_add(bytes);
                continue;
            }
            if !own.contains(node) {
                remote = remote.saturating_add(bytes);
            }
            if !self.device_nodes.contains(node) {
                from_device = from_device.saturating_add(bytes);
            }
        }
        let total = self.total();
        self.cpuless_bytes = cpuless;
        self.remote_bytes = (!own.is_empty()).then_some(remote);
        self.remote_share = self
            .remote_bytes
            .map(|remote| if total > 0 { remote as f64 / total as f64 } else { 0.0 });
        self.device_remote_bytes = (!self.device_nodes.is_empty()).then_some(from_device);
    }
}

impl MemoryMeasurement {
    /// Sorts the processes, most remote bytes first, and sums them by cgroup.
    pub fn finish(&mut self) {
        self.processes.sort_by_key(|process| {
            (Reverse(process.remote_bytes), Reverse(process.total()), process.pid)
        });
        let known: BTreeMap<String, CgroupMemory> =
            std::mem::take(&mut self.cgroups).into_iter().map(|c| (c.cgroup.clone(), c)).collect();
        let mut sums: BTreeMap<&str, CgroupMemory> = BTreeMap::new();
        for process in &self.processes {
            let Some(cgroup) = process.cgroup.as_deref() else { continue };
            let sum = sums.entry(cgroup).or_insert_with(|| {
                let of = known.get(cgroup);
                CgroupMemory {
                    cgroup: cgroup.to_owned(),
                    thp: of.and_then(|of| of.thp.clone()),
                    page_tables: of.and_then(|of| of.page_tables.clone()),
                    ..CgroupMemory::default()
                }
            });
            sum.processes += 1;
            let remote = process.remote_bytes.unwrap_or(0);
            sum.remote_bytes = sum.remote_bytes.saturating_add(remote);
            for (node, bytes) in &process.nodes {
                sum.nodes.entry(*node).or_default().add(bytes);
            }
        }
        let mut cgroups: Vec<CgroupMemory> = sums.into_values().collect();
        let total = |of: &CgroupMemory| {
            of.nodes.values().map(NodeBytes::total).fold(0, u64::saturating_add)
        };
        cgroups.sort_by_key(|of| (Reverse(of.remote_bytes), Reverse(total(of))));
        self.cgroups = cgroups;
        self.not_available.sort();
        self.not_available.dedup();
    }
}

impl MemoryMeasurement {
    /// What came since an earlier reading: pages moved, faults and counters. Where memory is, and where processes ran, is
    /// that of this reading; cost is that of the whole measurement.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut now = self.clone();
        now.duration_s = self.duration_s.map(|now| now - earlier.duration_s.unwrap_or(0.0));
        now.moves_lost = self.moves_lost.saturating_sub(earlier.moves_lost);
        for (name, count) in &mut now.vmstat {
            *count = count.saturating_sub(earlier.vmstat.get(name).copied().unwrap_or(0));
        }
        let before: BTreeMap<u32, &ProcessPlacement> =
            earlier.processes.iter().map(|process| (process.pid, process)).collect();
        for process in &mut now.processes {
            let Some(before) = before.get(&process.pid) else { continue };
            for (reason, pages) in &mut process.moved_pages {
                *pages = pages.since(before.moved_pages.get(reason).copied());
            }
            process.moved_pages.retain(|_, pages| *pages != MovedPages::default());
            if let (Some(faults), Some(then)) = (&mut process.hint_faults, before.hint_faults) {
                faults.pages = faults.pages.saturating_sub(then.pages);
                faults.local = faults.local.saturating_sub(then.local);
            }
        }
        for node in &mut now.nodes {
            let Some(before) = earlier.nodes.iter().find(|n| n.node == node.node) else { continue };
            let since = |now: Option<u64>, before: Option<u64>| now?.checked_sub(before?);
            node.numa_miss = since(node.numa_miss, before.numa_miss);
            node.numa_foreign = since(node.numa_foreign, before.numa_foreign);
            node.numa_hit = since(node.numa_hit, before.numa_hit);
            node.other_node = since(node.other_node, before.other_node);
        }
        let key = |m: &PageMoves| (m.reason.clone(), m.pid, m.by_pid);
        let moved: BTreeMap<_, _> = earlier.moves.iter().map(|m| (key(m), m.pages)).collect();
        for of in &mut now.moves {
            of.pages = of.pages.since(moved.get(&key(of)).copied());
        }
        now.moves.retain(|of| of.pages != MovedPages::default());
        now
    }
}

impl MovedPages {
    fn since(self, earlier: Option<Self>) -> Self {
        let earlier = earlier.unwrap_or_default();
        Self {
            moved: self.moved.saturating_sub(earlier.moved),
            failed: self.failed.saturating_sub(earlier.failed),
        }
    }
}

/// A page size, as `2MiB`.
pub fn page_size_name(bytes: u64) -> String {
    match bytes {
        0 => "0".to_owned(),
        _ if bytes.is_multiple_of(1 << 30) => format!("{}GiB", bytes >> 30),
        _ if bytes.is_multiple_of(1 << 20) => format!("{}MiB", bytes >> 20),
        _ => format!("{}KiB", bytes >> 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CpuSet, Node};

    fn topology() -> Topology {
        let node = |number, cpus: &str| Node {
            node: NodeId(number),
            cpus: CpuSet::from_list(cpus).unwrap(),
            memory_bytes: None,
            free_bytes: None,
            distances: BTreeMap::new(),
            hugepages: BTreeMap::new(),
            numastat: BTreeMap::new(),
        };
        Topology {
            online: CpuSet::from_list("0-3").unwrap(),
            nodes: vec![node(0, "0-1"), node(1, "2-3"), node(2, "")],
            ..Topology::default()
        }
    }

    fn process(bytes: &[(u32, u64)], ran: &[(u32, f64)]) -> ProcessPlacement {
        let anon = |&(node, anon_bytes): &(u32, u64)| {
            (NodeId(node), NodeBytes { anon_bytes, ..NodeBytes::default() })
        };
        ProcessPlacement {
            nodes: bytes.iter().map(anon).collect(),
            ran_on_nodes: ran.iter().map(|&(node, share)| (NodeId(node), share)).collect(),
            ..ProcessPlacement::default()
        }
    }

    #[test]
    fn remote_is_where_it_did_not_run_and_nodes_without_cpus_are_apart() {
        let mut p = process(&[(0, 100), (1, 300), (2, 600)], &[(0, 0.98), (1, 0.02)]);
        p.compare(&topology());
        assert_eq!((p.remote_bytes, p.cpuless_bytes), (Some(300), 600));
        assert_eq!(p.remote_share, Some(0.3));
        assert_eq!(p.device_remote_bytes, None);
        // A twentieth of the time is enough for a node to be its own.
        let mut p = process(&[(0, 100), (1, 300)], &[(0, 0.95), (1, 0.05)]);
        p.device_nodes = vec![NodeId(1)];
        p.compare(&topology());
        assert_eq!((p.remote_bytes, p.device_remote_bytes), (Some(0), Some(100)));
        // It is unknown where it ran.
        let mut p = process(&[(0, 100)], &[]);
        p.compare(&topology());
        assert_eq!((p.remote_bytes, p.remote_share), (None, None));
    }

    #[test]
    fn cgroups_are_the_sums_of_their_processes() {
        let mut processes = vec![
            process(&[(0, 10), (1, 20)], &[(0, 1.0)]),
            process(&[(0, 5)], &[(1, 1.0)]),
            process(&[(0, 7)], &[(0, 1.0)]),
        ];
        for (process, cgroup) in processes.iter_mut().zip(["/a", "/a", "/b"]) {
            process.cgroup = Some(cgroup.to_owned());
            process.compare(&topology());
        }
        let thp = Some(BTreeMap::from([(NodeId(0), 4)]));
        let cgroups =
            vec![CgroupMemory { cgroup: "/a".to_owned(), thp, ..CgroupMemory::default() }];
        let mut m = MemoryMeasurement { processes, cgroups, ..MemoryMeasurement::default() };
        m.finish();
        let shown: Vec<_> =
            m.cgroups.iter().map(|c| (&*c.cgroup, c.processes, c.remote_bytes)).collect();
        assert_eq!(shown, [("/a", 2, 25), ("/b", 1, 0)]);
        assert_eq!(m.cgroups[0].nodes[&NodeId(0)].anon_bytes, 15);
        assert!(m.cgroups[0].thp.is_some());
        assert_eq!(m.processes[0].remote_bytes, Some(20));
    }

    #[test]
    fn an_interval_has_its_own_moves_and_the_memory_of_its_end() {
        let pages = |moved| MovedPages { moved, failed: 0 };
        let reading = |seconds, anon, moved, faults| {
            let mut of = process(&[(0, anon)], &[]);
            of.pid = 7;
            of.moved_pages = BTreeMap::from([("syscall".to_owned(), pages(moved))]);
            of.hint_faults = Some(HintFaults { pages: faults, local: 0 });
            let moves = PageMoves {
                reason: "syscall".to_owned(),
                pid: Some(7),
                pages: pages(moved),
                ..PageMoves::default()
            };
            MemoryMeasurement {
                duration_s: Some(seconds),
                processes: vec![of],
                moves: vec![moves],
                ..MemoryMeasurement::default()
            }
        };
        let (first, second) = (reading(1.0, 10, 5, 3), reading(2.5, 20, 8, 3));
        let interval = second.since(&first);
        assert_eq!((interval.duration_s, interval.processes[0].total()), (Some(1.5), 20));
        assert_eq!(interval.processes[0].moved_pages["syscall"], pages(3));
        assert_eq!(interval.processes[0].hint_faults, Some(HintFaults::default()));
        assert_eq!(interval.moves[0].pages, pages(3));
        assert!(second.since(&second).moves.is_empty());
        assert_eq!(second.since(&MemoryMeasurement::default()), second);
    }

    #[test]
    fn page_sizes_have_names() {
        for (bytes, name) in [
            (2 << 20, "2MiB"),
            (1 << 30, "1GiB"),
            (64 << 10, "64KiB"),
            (0, "0"),
            (16 << 30, "16GiB"),
        ] {
            assert_eq!(page_size_name(bytes), name);
        }
    }
}
