//! Where the memory of processes is, by node and kind, where they ran, and which devices they use.
//!
//! Input: a root, the host, and which processes. Output: a [`MemoryMeasurement`] without what only the kernel can
//! report while it happens (the instrument `memory` adds that).
//!
//! The kernel walks the page tables of a process for `numa_maps`, and holds the lock of its mappings for reading
//! meanwhile. So a large process is read only if an option selects it, and each for a limited time. `smaps_rollup`, another
//! such walk, is read only on request.

pub(crate) mod devices;
mod maps;
mod nodes;
mod status;
mod threads;

pub(crate) use devices::used_devices;
pub use maps::{Mapping, MemoryMaps, each_mapping, parse_memory_maps};
pub use status::{MemoryStatus, parse_memory_status};
pub use threads::{RanOn, ThreadStat, parse_schedstat, parse_thread_stat};

use crate::memory::MOST_PAGES;
use crate::{Notes, ReadError, Root, processes};
use nearpath_model::memory::{
    CgroupMemory, MEMORY_MEASUREMENT_SCHEMA, MemoryMeasurement, NotAvailable, ProcessPlacement,
    page_size_name,
};
use nearpath_model::{Host, NicKind, NodeId, Topology};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Time limit for reading the mappings of one process; of one that is selected by an option.
const TIME: Duration = Duration::from_millis(500);
const TIME_SELECTED: Duration = Duration::from_secs(10);
/// Without an option, processes are read of which this much is resident: below, it is mostly libraries that all share.
const SMALL: u64 = 16 << 20;
/// Maximum number of processes read.
const MAX_PROCESSES: usize = 10_000;
/// Bytes of a page, for limits only.
const PAGE: u64 = 4096;
/// Maximum number of cgroups whose counters are read.
const MAX_CGROUPS: usize = 1024;

/// Which processes are read. Without any condition, those of which more than 16 MiB are resident.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemorySelection {
    /// These.
    pub pids: Vec<u32>,
    /// Those of these systemd units: `nginx`, `nginx.service`, `user.slice`.
    pub units: Vec<String>,
    /// Those in these cgroups and below.
    pub cgroups: Vec<String>,
    /// Those with these names.
    pub comms: Vec<String>,
    /// All that have memory.
    pub all: bool,
    /// Read also how much is in transparent hugepages (`smaps_rollup`).
    pub thp: bool,
}

/// No process matches a condition.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no process {0}")]
pub struct NoProcess(String);

/// A chosen process.
#[derive(Debug, Clone)]
struct Chosen {
    pid: u32,
    status: MemoryStatus,
    /// An option selects it.
    is_selected: bool,
}

/// Reads the memory of processes.
#[derive(Debug)]
pub struct MemoryReader {
    topology: Topology,
    selection: MemorySelection,
    /// Nodes of the interfaces that packets arrive on.
    nic_nodes: BTreeSet<NodeId>,
    /// Processes with sockets that hear more than the loopback address.
    receivers: BTreeSet<u32>,
    chosen: Vec<Chosen>,
    small_processes: u64,
    began: Option<Counters>,
}

/// Counters at the start.
#[derive(Debug)]
struct Counters {
    nodes: Vec<nearpath_model::memory::NodeMemory>,
    vmstat: BTreeMap<String, u64>,
}

impl MemoryReader {
    /// Chooses the processes. The sockets of `host` say which of them receive packets.
    ///
    /// # Errors
    /// No process is in `/proc`, or an option matches none.
    pub fn new(root: &Root, host: &Host, selection: &MemorySelection) -> Result<Self, NoProcess> {
        let of_nics = host.nics.iter().filter(|nic| {
            matches!(nic.kind, NicKind::Physical | NicKind::Vf | NicKind::Virtio)
                && nic.state.as_deref() != Some("down")
        });
        let sockets = host.sockets.iter().filter(|socket| !socket.address.is_loopback());
        let mut reader = Self {
            topology: host.topology.clone(),
            selection: selection.clone(),
            nic_nodes: of_nics.filter_map(|nic| nic.numa_node).collect(),
            receivers: sockets.flat_map(|socket| socket.pids.iter().copied()).collect(),
            chosen: Vec::new(),
            small_processes: 0,
            began: None,
        };
        reader.choose(root)?;
        Ok(reader)
    }

    /// Remembers the counters of now: those of the result are then the increase.
    pub fn begin(&mut self, root: &Root) {
        let nodes = nodes::read(root, &self.topology, &mut Notes::default());
        self.began = Some(Counters { nodes, vmstat: nodes::vmstat(root) });
    }

    /// Ids of the chosen processes.
    pub fn pids(&self) -> Vec<u32> {
        self.chosen.iter().map(|chosen| chosen.pid).collect()
    }

    /// The CPUs and nodes.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    fn choose(&mut self, root: &Root) -> Result<(), NoProcess> {
        let MemorySelection { pids, units, cgroups, comms, all, .. } = &self.selection;
        let has_condition =
            !(pids.is_empty() && units.is_empty() && cgroups.is_empty() && comms.is_empty());
        let mut matched = BTreeSet::new();
        let everything = match processes::pids(root) {
            Ok(everything) => everything,
            Err(_) if !pids.is_empty() => pids.clone(),
            Err(error) => return Err(NoProcess(format!("can be read: {error}"))),
        };
        for pid in everything {
            let is_selected = has_condition && {
                let conditions = self.conditions_of(root, pid);
                let matches = !conditions.is_empty();
                matched.extend(conditions);
                matches
            };
            if (has_condition && !is_selected) || self.chosen.len() >= MAX_PROCESSES {
                continue;
            }
            // It has exited in the meantime, or is not in the snapshot.
            let Ok(bytes) = root.read(&format!("/proc/{pid}/status")) else { continue };
            let status = parse_memory_status(&bytes);
            // A kernel thread.
            if status.resident_bytes.is_none() {
                continue;
            }
            if !is_selected && !all && status.all_bytes() < SMALL {
                self.small_processes += 1;
                continue;
            }
            self.chosen.push(Chosen { pid, status, is_selected });
        }
        let conditions = self.conditions();
        match conditions.into_iter().find(|condition| !matched.contains(condition)) {
            Some(condition) => Err(NoProcess(condition)),
            None => Ok(()),
        }
    }

    /// All conditions, as in an error.
    fn conditions(&self) -> Vec<String> {
        let MemorySelection { pids, units, cgroups, comms, .. } = &self.selection;
        let mut all: Vec<String> = pids.iter().map(|pid| format!("has the id {pid}")).collect();
        all.extend(units.iter().map(|unit| format!("belongs to the unit {unit}")));
        all.extend(cgroups.iter().map(|cgroup| format!("is in the cgroup {cgroup}")));
        all.extend(comms.iter().map(|comm| format!("has the name {comm}")));
        all
    }

    /// Those that a process meets.
    fn conditions_of(&self, root: &Root, pid: u32) -> Vec<String> {
        let MemorySelection { pids, units, cgroups, comms, .. } = &self.selection;
        let mut met = Vec::new();
        if pids.contains(&pid) {
            met.push(format!("has the id {pid}"));
        }
        if !units.is_empty() || !cgroups.is_empty() {
            let path = processes::cgroup_of(root, pid).unwrap_or_default();
            let of_unit = units.iter().filter(|unit| unit_of_cgroup(&path, unit).is_some());
            met.extend(of_unit.map(|unit| format!("belongs to the unit {unit}")));
            let within = cgroups.iter().filter(|cgroup| is_within(&path, cgroup));
            met.extend(within.map(|cgroup| format!("is in the cgroup {cgroup}")));
        }
        if !comms.is_empty()
            && let Ok(comm) = processes::comm(root, pid)
            && comms.contains(&comm)
        {
            met.push(format!("has the name {comm}"));
        }
        met
    }

    /// Reads the memory of the chosen processes, and the nodes. `ran` says where they ran.
    pub fn read(&self, root: &Root, ran: &RanOn) -> MemoryMeasurement {
        let mut notes = Notes::default();
        let began = Instant::now();
        let mut m = MemoryMeasurement {
            schema: MEMORY_MEASUREMENT_SCHEMA,
            small_processes: self.small_processes,
            ..MemoryMeasurement::default()
        };
        // First: reading processes takes a while, in which the counters go on.
        m.nodes = nodes::read(root, &self.topology, &mut notes);
        m.vmstat = nodes::vmstat(root);
        self.subtract(&mut m);
        for chosen in &self.chosen {
            match self.process(root, chosen, ran) {
                Ok(process) => {
                    let cost = &mut m.cost;
                    cost.mappings += process.mappings;
                    cost.numa_maps_ns += process.read_ns;
                    if process.read_ns > cost.slowest_ns {
                        cost.slowest_ns = process.read_ns;
                        cost.slowest_pid = Some(process.pid);
                    }
                    m.processes.push(process);
                }
                // It has exited. In a snapshot, it was not read.
                Err(error) if error.absent && root.is_live() => {}
                Err(error) => m.not_available.push(NotAvailable {
                    what: format!("memory of process {}", chosen.pid),
                    reason: error.to_string(),
                }),
            }
        }
        m.sockets = nodes::sockets(root);
        m.cgroups = cgroups(root, &m.processes);
        m.not_available.push(NotAvailable {
            what: "kernel memory of sockets by node".to_owned(),
            reason: "the kernel counts it per protocol and cgroup, not per node".to_owned(),
        });
        m.not_available.extend(notes.unknown().iter().map(|unknown| NotAvailable {
            what: format!("{} of {}", unknown.fact, unknown.subject),
            reason: unknown.reason.clone(),
        }));
        let all = cost_ns(root, began.elapsed());
        let sampled = cost_ns(root, ran.spent());
        m.cost.other_ns = all.saturating_sub(m.cost.numa_maps_ns).saturating_add(sampled);
        m.finish();
        m
    }

    /// A still picture: with the CPUs that threads ran on last.
    pub fn still(&self, root: &Root) -> MemoryMeasurement {
        let mut ran = RanOn::default();
        ran.sample(root, &self.topology, &self.pids());
        self.read(root, &ran)
    }

    fn process(
        &self,
        root: &Root,
        chosen: &Chosen,
        ran: &RanOn,
    ) -> Result<ProcessPlacement, ReadError> {
        let Chosen { pid, status, is_selected } = chosen;
        let pid = *pid;
        let path = format!("/proc/{pid}/numa_maps");
        let began = Instant::now();
        let bytes = numa_maps(root, &path, status, *is_selected)?;
        let read_ns = cost_ns(root, began.elapsed());
        let maps = parse_memory_maps(&bytes)
            .map_err(|malformed| ReadError::new(&path, &malformed.to_string()))?;
        let comm = processes::comm(root, pid)?;
        let mut process = ProcessPlacement {
            pid,
            comm,
            cgroup: processes::cgroup_of(root, pid),
            nodes: maps.nodes.clone(),
            estimated_bytes: maps.estimated,
            policy: maps.policy.clone(),
            mapping_policies: maps.policies.clone(),
            mappings: maps.mappings,
            mems_allowed: status.mems.clone(),
            page_table_bytes: status.page_table_bytes,
            pinned_bytes: status.pinned_bytes,
            locked_bytes: status.locked_bytes,
            swap_bytes: status.swap_bytes,
            read_ns,
            ..ProcessPlacement::default()
        };
        process.hugetlb = maps
            .hugetlb
            .iter()
            .map(|(&size, nodes)| (page_size_name(size), nodes.clone()))
            .collect();
        if let Some(cpus) = &status.cpus {
            process.allowed_nodes =
                self.topology.nodes_of(&cpus.intersection(&self.topology.online));
        }
        (process.ran_on_nodes, process.ran_on_basis, process.threads) = ran.of(&self.topology, pid);
        devices::read(root, &mut process, &maps, status);
        let mut nodes: BTreeSet<NodeId> = process.devices.iter().filter_map(|d| d.node).collect();
        if self.receivers.contains(&pid) {
            nodes.extend(&self.nic_nodes);
        }
        process.device_nodes = nodes.into_iter().collect();
        if self.selection.thp {
            process.thp_bytes = thp_bytes(root, pid);
        }
        process.compare(&self.topology);
        Ok(process)
    }

    /// The increase of counters since [`MemoryReader::begin`].
    fn subtract(&self, m: &mut MemoryMeasurement) {
        let Some(Counters { nodes, vmstat }) = &self.began else { return };
        for node in &mut m.nodes {
            let before = nodes.iter().find(|before| before.node == node.node);
            let since = |now: Option<u64>, before: Option<u64>| now?.checked_sub(before?);
            node.numa_miss = since(node.numa_miss, before.and_then(|b| b.numa_miss));
            node.numa_foreign = since(node.numa_foreign, before.and_then(|b| b.numa_foreign));
            node.numa_hit = since(node.numa_hit, before.and_then(|b| b.numa_hit));
            node.other_node = since(node.other_node, before.and_then(|b| b.other_node));
        }
        for (name, now) in &mut m.vmstat {
            *now = now.saturating_sub(vmstat.get(name).copied().unwrap_or(0));
        }
    }
}

/// The text of `numa_maps`.
fn numa_maps(
    root: &Root,
    path: &str,
    status: &MemoryStatus,
    is_selected: bool,
) -> Result<Vec<u8>, ReadError> {
    let pages = status.resident_bytes.unwrap_or(0) / PAGE;
    if pages > MOST_PAGES && !is_selected {
        let reason = format!(
            "not read: the kernel would walk {pages} resident pages for it; select the process to read it"
        );
        return Err(ReadError::new(path, &reason));
    }
    root.read_within(path, if is_selected { TIME_SELECTED } else { TIME })
}

/// The sum of the transparent hugepages of `smaps_rollup` (fs/proc/task_mmu.c, `show_smaps_rollup`).
fn thp_bytes(root: &Root, pid: u32) -> Option<u64> {
    let text = root.text(&format!("/proc/{pid}/smaps_rollup")).ok()?;
    let kinds = ["AnonHugePages:", "ShmemPmdMapped:", "FilePmdMapped:"];
    let bytes = |kind: &str| crate::topology::nodes::meminfo_bytes(&text, kind);
    kinds.iter().filter_map(|kind| bytes(kind)).reduce(u64::saturating_add)
}

/// Transparent hugepages and page tables of the processes' cgroups, by node (Documentation/admin-guide/cgroup-v2.rst,
/// `memory.numa_stat`).
fn cgroups(root: &Root, processes: &[ProcessPlacement]) -> Vec<CgroupMemory> {
    let paths: BTreeSet<&str> = processes.iter().filter_map(|p| p.cgroup.as_deref()).collect();
    let read = |path: &str| {
        let is_plain = path.starts_with('/') && !path.split('/').any(|part| part == "..");
        let file = format!("/sys/fs/cgroup{path}/memory.numa_stat");
        let text = is_plain.then(|| root.text(&file).ok()).flatten().unwrap_or_default();
        let sum = |names: &[&str]| {
            let mut nodes: Option<BTreeMap<NodeId, u64>> = None;
            for line in text.lines() {
                let Some((name, values)) = line.split_once(' ') else { continue };
                if !names.contains(&name) {
                    continue;
                }
                let nodes = nodes.get_or_insert_default();
                for value in values.split_ascii_whitespace() {
                    let parsed = value.strip_prefix('N').and_then(|v| v.split_once('='));
                    let parsed = parsed.and_then(|(n, b)| Some((n.parse().ok()?, b.parse().ok()?)));
                    if let Some((node, bytes)) = parsed {
                        let sum = nodes.entry(NodeId(node)).or_default();
                        *sum = u64::saturating_add(*sum, bytes);
                    }
                }
            }
            nodes
        };
        CgroupMemory {
            cgroup: path.to_owned(),
            thp: sum(&["anon_thp", "file_thp", "shmem_thp"]),
            page_tables: sum(&["pagetables"]),
            ..CgroupMemory::default()
        }
    };
    paths.into_iter().take(MAX_CGROUPS).map(read).collect()
}

/// The systemd unit with this name that a cgroup belongs to; `nginx` is `nginx.service`.
pub fn unit_of_cgroup<'a>(cgroup: &'a str, name: &str) -> Option<&'a str> {
    let mut parts = cgroup.split('/').filter(|part| !part.is_empty());
    parts.find(|part| *part == name || part.strip_suffix(".service") == Some(name))
}

/// Whether a cgroup is another one, or below it.
fn is_within(path: &str, cgroup: &str) -> bool {
    let cgroup = cgroup.trim_end_matches('/');
    let rest = path.strip_prefix(cgroup);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// What reading for so long costs the host: nothing, if a snapshot of it is read.
fn cost_ns(root: &Root, spent: Duration) -> u64 {
    if root.is_live() { u64::try_from(spent.as_nanos()).unwrap_or(u64::MAX) } else { 0 }
}

#[cfg(test)]
mod tests;
