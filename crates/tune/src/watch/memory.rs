//! Moves memory that drifts away from the node of its process (document 002, exercise 1).
//!
//! Input: the processes whose threads may all run on the CPUs of one node only. Output: what was moved, and what was not,
//! and why, each reason once. Memory that a device may write to is never moved. Nothing is journalled, as it cannot be
//! undone.

use crate::migrate::{anonymous, move_to};
use nearpath_host::{Root, thread_cpus};
use nearpath_model::{CpuSet, MemoryMoved, NodeId};
use std::collections::BTreeMap;

/// Maximum number of threads of a process that are looked at.
const MAX_THREADS: usize = 65_536;

/// Watches the memory of processes.
#[derive(Debug)]
pub struct MemoryWatch {
    /// The most anonymous memory on other nodes that is left there, in bytes.
    limit: u64,
    /// Why the memory of a process was last not moved.
    reported: BTreeMap<u32, String>,
}

impl MemoryWatch {
    /// Moves the memory of a process if more than this many bytes are elsewhere.
    pub fn new(limit: u64) -> Self {
        Self { limit, reported: BTreeMap::new() }
    }

    /// Looks once at all processes.
    pub fn look(&mut self, root: &Root) -> Vec<MemoryMoved> {
        let nodes = nodes(root);
        let mut all = Vec::new();
        if nodes.len() < 2 {
            return all;
        }
        let names = root.list("/proc").unwrap_or_default();
        let pids: Vec<u32> = names.iter().filter_map(|entry| entry.name.parse().ok()).collect();
        self.reported.retain(|pid, _| pids.contains(pid));
        for pid in pids {
            let Some(node) = self.may_drift(root, pid).then(|| home(root, pid, &nodes)).flatten()
            else {
                continue;
            };
            let Some(moved) = self.bring_back(root, pid, node) else { continue };
            let news = match &moved.reason {
                Some(reason) if moved.pages_moved == 0 => {
                    self.reported.insert(pid, reason.clone()).as_ref() != Some(reason)
                }
                _ => true,
            };
            if news {
                all.push(moved);
            }
        }
        all
    }

    /// Whether it has so much memory at all: reading it by node walks its page tables.
    fn may_drift(&self, root: &Root, pid: u32) -> bool {
        let statm = root.text(&format!("/proc/{pid}/statm")).unwrap_or_default();
        let resident = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
        let bytes = resident.unwrap_or_default().saturating_mul(rustix::param::page_size() as u64);
        bytes > self.limit
    }

    /// Moves what is elsewhere; `None` if it is little, or the process has exited.
    fn bring_back(&self, root: &Root, pid: u32, node: NodeId) -> Option<MemoryMoved> {
        let remote = || -> Option<u64> {
            let bytes = anonymous(root, pid).ok()?;
            Some(bytes.iter().filter(|(its, _)| **its != node).map(|(_, bytes)| bytes).sum())
        };
        let before = remote().filter(|bytes| *bytes > self.limit)?;
        let comm = root.text(&format!("/proc/{pid}/comm")).ok()?;
        let (pages_elsewhere, pages_moved, reason) = match move_to(root, pid, node) {
            Ok(moved) if moved.failed.is_empty() => (moved.elsewhere, moved.moved, None),
            Ok(moved) => (moved.elsewhere, moved.moved, Some(moved.describe())),
            Err(error) => (0, 0, Some(error.to_string())),
        };
        let after = remote().unwrap_or_default();
        Some(MemoryMoved {
            pid,
            comm,
            node: node.0,
            remote_bytes_before: before,
            remote_bytes_after: after,
            pages_elsewhere,
            pages_moved,
            reason,
        })
    }
}

/// The nodes with CPUs.
fn nodes(root: &Root) -> BTreeMap<NodeId, CpuSet> {
    let entries = root.list("/sys/devices/system/node").unwrap_or_default();
    let node = |name: &str| {
        let node: u32 = name.strip_prefix("node")?.parse().ok()?;
        let list = root.text(&format!("/sys/devices/system/node/{name}/cpulist")).ok()?;
        let cpus = CpuSet::from_list(&list).ok().filter(|cpus| !cpus.is_empty())?;
        Some((NodeId(node), cpus))
    };
    entries.iter().filter_map(|entry| node(&entry.name)).collect()
}

/// The node that all threads of a process are bound to; `None` if they may run on several.
fn home(root: &Root, pid: u32, nodes: &BTreeMap<NodeId, CpuSet>) -> Option<NodeId> {
    let threads = root.list(&format!("/proc/{pid}/task")).ok()?;
    let tids = threads.iter().filter_map(|entry| entry.name.parse::<u32>().ok());
    let mut all = CpuSet::new();
    for tid in tids.take(MAX_THREADS) {
        // One that has exited binds nothing.
        if let Some(cpus) = thread_cpus(root, pid, tid) {
            all = all.union(&cpus);
        }
    }
    nodes.iter().find(|(_, cpus)| !all.is_empty() && all.is_subset(cpus)).map(|(node, _)| *node)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    fn write(tree: &Path, path: &str, text: &str) {
        let file = tree.join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    fn process(tree: &Path, pid: u32, threads: &[&str], maps: &str) {
        for (at, cpus) in threads.iter().enumerate() {
            let status = format!("proc/{pid}/task/{}/status", pid as usize + at);
            write(tree, &status, &format!("Cpus_allowed_list:\t{cpus}\n"));
        }
        write(tree, &format!("proc/{pid}/statm"), "90000 60000 10 1 0 5 0\n");
        write(tree, &format!("proc/{pid}/comm"), "app\n");
        write(tree, &format!("proc/{pid}/status"), "VmPin:\t0 kB\n");
        write(tree, &format!("proc/{pid}/numa_maps"), maps);
        write(tree, &format!("proc/{pid}/maps"), "");
        fs::create_dir_all(tree.join(format!("proc/{pid}/fd"))).unwrap();
    }

    #[test]
    fn only_bound_processes_have_a_home() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path();
        write(tree, "sys/devices/system/node/node0/cpulist", "0-1\n");
        write(tree, "sys/devices/system/node/node1/cpulist", "2-3\n");
        // A node with memory only, as of CXL.
        write(tree, "sys/devices/system/node/node2/cpulist", "\n");
        process(tree, 70, &["0", "1"], "");
        process(tree, 71, &["0", "2"], "");
        process(tree, 72, &["2-3"], "");
        let root = Root::tree(tree).unwrap();
        let nodes = nodes(&root);
        assert_eq!(nodes.len(), 2);
        let homes = [70, 71, 72, 73].map(|pid| home(&root, pid, &nodes).map(|node| node.0));
        assert_eq!(homes, [Some(0), None, Some(1), None]);
    }

    #[test]
    fn memory_of_devices_is_reported_once_and_never_moved() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path();
        write(tree, "sys/devices/system/node/node0/cpulist", "0-1\n");
        write(tree, "sys/devices/system/node/node1/cpulist", "2-3\n");
        let maps = "7f00 default anon=50000 N0=50000 kernelpagesize_kB=4\n";
        process(tree, 70, &["2"], maps);
        std::os::unix::fs::symlink("/dev/uio0", tree.join("proc/70/fd/3")).unwrap();
        process(tree, 71, &["0"], maps);
        let root = Root::tree(tree).unwrap();
        let mut watch = MemoryWatch::new(50_000_000);
        let notices = watch.look(&root);
        let [notice] = &notices[..] else { panic!("{notices:?}") };
        assert_eq!((notice.pid, notice.node, notice.pages_moved), (70, 1, 0));
        let reason = notice.reason.as_ref().unwrap();
        assert!(reason.contains("/dev/uio0") && reason.contains("start it bound"), "{reason}");
        assert_eq!(watch.look(&root), []);
        // Little memory is left where it is.
        assert_eq!(MemoryWatch::new(1 << 30).look(&root), []);
    }
}
