//! Moves memory that drifts away from the node of its process (the chapter on NUMA for SR-IOV paths, exercise 1).
//!
//! Input: the processes whose threads may all run on the CPUs of one node only. Output: what was moved, and what was
//! not, and why, each reason once. Memory that a device may write to is never moved.
//!
//! Each move is a change of the executor, and in the journal like all changes, though an undo leaves the memory where
//! it is: the last one of each process, as long as the process runs.

use crate::migrate::{anonymous, is_there, may_move, nodes_of};
use crate::{Executor, Journal, Live, TuneError, find_thread};
use nearpath_host::{Root, thread_cpus};
use nearpath_model::{
    Change, CpuSet, Entry, MemoryMoved, NodeId, ProcessPages, Step, Target, units,
};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// How the reason of such a change begins, so that it is recognized in the journal, also by a later watch.
const DRIFTED: &str = "memory drifted: ";
/// Maximum number of threads of a process that are looked at.
const MAX_THREADS: usize = 65_536;

/// Watches the memory of processes.
#[derive(Debug)]
pub struct MemoryWatch {
    folder: PathBuf,
    boot: String,
    /// The most anonymous memory on other nodes that is left there, in bytes.
    limit: u64,
    /// Why the memory of a process was last not moved.
    reported: BTreeMap<u32, String>,
}

impl MemoryWatch {
    /// Moves the memory of a process if more than this many bytes are elsewhere, with the journal in a directory.
    pub fn new(limit: u64, folder: PathBuf, boot: String) -> Self {
        Self { folder, boot, limit, reported: BTreeMap::new() }
    }

    /// Looks once at all processes.
    ///
    /// # Errors
    /// The journal cannot be read, or is locked.
    pub fn look(&mut self, root: &Root) -> Result<Vec<MemoryMoved>, TuneError> {
        self.drop_gone(root)?;
        let nodes = nodes(root);
        let mut all = Vec::new();
        if nodes.len() < 2 {
            return Ok(all);
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
        Ok(all)
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
        let start_ticks = find_thread(root, pid, pid)?.start_ticks;
        let pages = ProcessPages {
            max_remote_bytes: Some(self.limit),
            ..ProcessPages::new(pid, start_ticks)
        };
        let bytes = anonymous(root, pid).ok()?;
        let remote = |bytes: &BTreeMap<NodeId, u64>| -> u64 {
            bytes.iter().filter(|(its, _)| **its != node).map(|(_, bytes)| bytes).sum()
        };
        let before = remote(&bytes);
        if before <= self.limit {
            return None;
        }
        let comm = root.text(&format!("/proc/{pid}/comm")).ok()?;
        let mut news = MemoryMoved {
            pid,
            comm,
            node: node.0,
            remote_bytes_before: before,
            remote_bytes_after: before,
            pages_elsewhere: 0,
            pages_moved: 0,
            reason: None,
        };
        let before = nodes_of(&bytes, pages.max_remote_bytes);
        // Refused without a record: nothing is begun.
        match may_move(root, pid, node).and_then(|()| self.apply(pages, &before, &mut news)) {
            Ok(()) => {}
            Err(error) => news.reason = Some(error.to_string()),
        }
        news.remote_bytes_after = anonymous(root, pid).map(|bytes| remote(&bytes)).unwrap_or(0);
        Some(news)
    }

    /// Moves it as a change: recorded first, checked, and read back.
    fn apply(
        &self,
        pages: ProcessPages,
        before: &str,
        news: &mut MemoryMoved,
    ) -> Result<(), TuneError> {
        let target = Target::Memory(pages);
        let MemoryMoved { comm, node, remote_bytes_before, .. } = &*news;
        let change = Change {
            persistence: target.persistence(),
            before: before.into(),
            after: node.to_string().into(),
            why: format!(
                "{DRIFTED}{} of {comm} ({}) were not on node {node}, which its threads are bound to",
                units::bytes(*remote_bytes_before),
                pages.pid
            ),
            snapshot: Vec::new(),
            target,
        };
        let mut executor = Executor::new(Journal::open(&self.folder, &self.boot)?, Live::new());
        let result = executor.apply_steps(vec![Step { change, optional: false }]);
        let moved = executor.writer().moved.take();
        (news.pages_elsewhere, news.pages_moved) = (moved.elsewhere, moved.moved);
        if !moved.failed.is_empty() {
            news.reason = Some(moved.describe());
        }
        result?;
        let entries = executor.entries();
        let last = entries.last().map_or(0, |entry| entry.id);
        let is_older = |entry: &&Entry| {
            entry.id != last && process_of(entry).is_some_and(|its| its.pid == pages.pid)
        };
        entries.iter().filter(is_older).try_for_each(|entry| executor.forget(entry))
    }

    /// Drops the moves of processes that have exited from the journal.
    ///
    /// # Errors
    /// The journal cannot be read, or is locked.
    fn drop_gone(&self, root: &Root) -> Result<(), TuneError> {
        let is_gone = |entry: &Entry| {
            process_of(entry)
                .is_some_and(|pages| entry.boot != self.boot || !is_there(root, &pages))
        };
        if !Journal::read(&self.folder)?.iter().any(is_gone) {
            return Ok(());
        }
        let mut executor = Executor::new(Journal::open(&self.folder, &self.boot)?, Live::new());
        let entries = executor.entries();
        entries.iter().filter(|entry| is_gone(entry)).try_for_each(|entry| executor.forget(entry))
    }
}

/// The process whose memory a watch has moved; `None` of other changes.
pub(super) fn process_of(entry: &Entry) -> Option<ProcessPages> {
    match entry.change.target {
        Target::Memory(pages) if entry.change.why.starts_with(DRIFTED) => Some(pages),
        _ => None,
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
        let stat = format!("{pid} (app) S 1 1 1 0 -1 0{} 99 0 0\n", " 0".repeat(12));
        write(tree, &format!("proc/{pid}/task/{pid}/stat"), &stat);
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
        let journal = tempfile::tempdir().unwrap();
        let watch = |limit| MemoryWatch::new(limit, journal.path().to_owned(), "boot".to_owned());
        let mut small = watch(50_000_000);
        let notices = small.look(&root).unwrap();
        let [notice] = &notices[..] else { panic!("{notices:?}") };
        assert_eq!((notice.pid, notice.node, notice.pages_moved), (70, 1, 0));
        let reason = notice.reason.as_ref().unwrap();
        assert!(reason.contains("/dev/uio0") && reason.contains("start it bound"), "{reason}");
        assert_eq!(small.look(&root).unwrap(), []);
        // Little memory is left where it is.
        assert_eq!(watch(1 << 30).look(&root).unwrap(), []);
        assert_eq!(Journal::read(journal.path()).unwrap(), [], "nothing was begun");
    }
}
