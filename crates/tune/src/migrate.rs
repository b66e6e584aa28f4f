//! Moves the memory of a process to a node, with move_pages(2), in slices and not faster than a limit.
//!
//! Before each slice it is checked that it is still the same process, and that no device may write to the memory. Pages
//! are counted by the kernel's own answers: where each was, where it is afterwards, and why it could not be moved (the
//! `migratepages` program exits with 0 though nothing moved). Pages that several processes map stay (`MPOL_MF_MOVE`),
//! and so do hugetlb pages.
//!
//! It cannot be undone: an undo leaves the memory where it is.

use crate::TuneError;
use crate::find_thread;
use crate::setting::Setting;
use nearpath_host::parse::{Mapping, each_mapping};
use nearpath_host::{Root, memory_is_for_devices, memory_must_stay};
use nearpath_model::{CpuSet, NodeId, ProcessPages};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{Duration, Instant};

/// Pages of a slice: 8 MiB in pages of 4 KiB.
const SLICE: usize = 2048;
/// Bytes moved per second, so that neither the process nor the link between nodes is busy with it.
const RATE: u64 = 256 << 20;
/// Share of the memory that must be on a node for it to be the node of the memory: the chapter on NUMA for SR-IOV paths
/// accepts 5 % elsewhere.
const MOST: f64 = 0.95;
/// Maximum number of mappings of a process (`vm.max_map_count` is 65,530 by default).
const MAX_MAPPINGS: usize = 1 << 20;

/// What moving did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Moved {
    /// Pages that were elsewhere.
    pub elsewhere: u64,
    /// Pages of them that are on the node now.
    pub moved: u64,
    /// The others, by the kernel's error.
    pub failed: BTreeMap<String, u64>,
}

impl Moved {
    fn add(&mut self, other: Self) {
        self.elsewhere += other.elsewhere;
        self.moved += other.moved;
        for (error, pages) in other.failed {
            *self.failed.entry(error).or_default() += pages;
        }
    }

    /// `2048 of 2060 pages moved, 12 not: mapped by several processes`.
    pub fn describe(&self) -> String {
        let Self { elsewhere, moved, failed } = self;
        let failed: Vec<String> =
            failed.iter().map(|(error, pages)| format!("{pages} not: {error}")).collect();
        let failed = failed.iter().map(|text| format!(", {text}")).collect::<String>();
        format!("{moved} of {elsewhere} pages moved{failed}")
    }
}

/// Bytes of anonymous memory of a process by node: of mappings without a file, and not of hugetlb pages.
///
/// # Errors
/// It has exited, or the kernel has no nodes.
pub(crate) fn anonymous(root: &Root, pid: u32) -> Result<BTreeMap<NodeId, u64>, TuneError> {
    let mut anonymous: BTreeMap<NodeId, u64> = BTreeMap::new();
    each_mapping_of(root, pid, |mapping| {
        for (node, bytes) in mapping.bytes()? {
            if mapping.file.is_none() && !mapping.is_huge && bytes > 0 {
                let sum = anonymous.entry(node).or_default();
                *sum = sum.checked_add(bytes)?;
            }
        }
        Some(())
    })?;
    Ok(anonymous)
}

fn each_mapping_of(
    root: &Root,
    pid: u32,
    with: impl FnMut(&Mapping<'_>) -> Option<()>,
) -> Result<(), TuneError> {
    let path = format!("/proc/{pid}/numa_maps");
    let bytes = root.read(&path)?;
    each_mapping(&bytes, with)
        .map_err(|malformed| TuneError::kernel(format!("reading {path}"), malformed))
}

/// The node that all memory is on but a rest of at most so many bytes (by default 5 %), or all nodes with memory, as a
/// list.
pub(crate) fn nodes_of(bytes: &BTreeMap<NodeId, u64>, max_remote: Option<u64>) -> String {
    let all: u64 = bytes.values().sum();
    let is_most = |bytes: u64| match max_remote {
        Some(rest) => all - bytes <= rest,
        None => bytes as f64 >= all as f64 * MOST,
    };
    // The largest: with few bytes in all, each may do.
    let most = bytes.iter().filter(|(_, bytes)| is_most(**bytes)).max_by_key(|(_, bytes)| **bytes);
    match most {
        Some((node, _)) => node.to_string(),
        None => {
            bytes.keys().map(|node| nearpath_model::CpuId(node.0)).collect::<CpuSet>().to_string()
        }
    }
}

/// The memory of a process, as a setting.
#[derive(Debug)]
pub(crate) struct PagesSetting<'a> {
    pub root: &'a Root,
    pub pages: ProcessPages,
    /// What the last write did.
    pub moved: &'a RefCell<Moved>,
}

/// Whether the process runs: another may have its id.
pub(crate) fn is_there(root: &Root, pages: &ProcessPages) -> bool {
    let thread = find_thread(root, pages.pid, pages.pid);
    thread.is_some_and(|thread| thread.start_ticks == pages.start_ticks)
}

impl PagesSetting<'_> {
    fn nodes(&self, bytes: &BTreeMap<NodeId, u64>) -> String {
        nodes_of(bytes, self.pages.max_remote_bytes)
    }

    fn node(&self, value: &str) -> Result<NodeId, TuneError> {
        let must = || TuneError::Refused(format!("{}: {value:?} must be a node", self.name()));
        value.parse().map_err(|_| must())
    }
}

impl Setting for PagesSetting<'_> {
    fn name(&self) -> String {
        self.pages.to_string()
    }

    fn check(&self, value: &str) -> Result<(), TuneError> {
        self.node(value).map(drop)
    }

    fn is_one_way(&self) -> bool {
        true
    }

    fn may_be_written(&self, _: &str, value: &str) -> Result<(), TuneError> {
        may_move(self.root, self.pages.pid, self.node(value)?)
    }

    fn read(&self) -> Result<Option<String>, TuneError> {
        let bytes = anonymous(self.root, self.pages.pid);
        // Checked after reading: before that the id may have belonged to another process.
        if !is_there(self.root, &self.pages) {
            return Ok(None);
        }
        Ok(Some(self.nodes(&bytes?)))
    }

    fn write(&self, value: &str) -> Result<(), TuneError> {
        let node = self.node(value)?;
        let step = || format!("moving {} to node {node}", self.name());
        self.moved.take();
        move_to(self.root, &self.pages, node, &mut self.moved.borrow_mut())?;
        let now = anonymous(self.root, self.pages.pid)?;
        match self.nodes(&now) {
            on if on == value => Ok(()),
            on => {
                let moved = self.moved.borrow().describe();
                Err(TuneError::kernel(step(), format!("{moved}; it is on {on} now")))
            }
        }
    }

    fn same(&self, now: &str, value: &str) -> bool {
        now == value
    }
}

/// Checks that no device may write to the memory of a process.
///
/// # Errors
/// One may, or that is unknown; the message has the command that starts it on a node instead.
pub(crate) fn may_move(root: &Root, pid: u32, node: NodeId) -> Result<(), TuneError> {
    let refused = |reason: String| {
        let remedy = start_bound(root, pid, Some(node));
        Err(TuneError::Refused(format!(
            "the memory of process {pid} is not moved: {reason}; {remedy}"
        )))
    };
    match memory_must_stay(root, pid) {
        Ok(None) => Ok(()),
        Ok(Some(reason)) => refused(reason),
        Err(error) => refused(format!("whether a device may write to it is unknown: {error}")),
    }
}

/// How to start a process on a node, with its command line.
pub(crate) fn start_bound(root: &Root, pid: u32, node: Option<NodeId>) -> String {
    let node = node.map_or_else(|| "NODE".to_owned(), |node| node.to_string());
    let cgroup = nearpath_host::cgroup_of(root, pid).unwrap_or_default();
    let unit = cgroup.split('/').rfind(|part| nearpath_model::is_service(part));
    if let Some(unit) = unit {
        return format!(
            "start it bound: systemctl edit {unit} with [Service] NUMAPolicy=bind NUMAMask={node} \
             CPUAffinity=numa, then systemctl restart {unit}"
        );
    }
    let bytes = root.read(&format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<String> = bytes
        .split(|&b| b == 0)
        .filter(|word| !word.is_empty())
        .map(|word| nearpath_model::shell::word(&String::from_utf8_lossy(word)).to_string())
        .collect();
    let command = if words.is_empty() { "COMMAND".to_owned() } else { words.join(" ") };
    format!("start it bound: numactl --cpunodebind={node} --membind={node} {command}")
}

/// Moves the pages of a process that are not on a node to it, and counts them, also those before an error.
///
/// # Errors
/// A device may write to its memory, or it has exited, which is checked before each slice; or the kernel refuses.
fn move_to(
    root: &Root,
    process: &ProcessPages,
    node: NodeId,
    moved: &mut Moved,
) -> Result<(), TuneError> {
    let pid = process.pid;
    let step = || format!("moving the memory of process {pid} to node {node}");
    may_move(root, pid, node)?;
    let page = rustix::param::page_size();
    for (start, end) in ranges(root, pid, node)? {
        let mut at = start;
        while at < end {
            let slice_end = end.min(at.saturating_add((SLICE * page) as u64));
            let addresses: Vec<u64> = (at..slice_end).step_by(page).collect();
            at = slice_end;
            // Not present pages and those that are there already cost no check.
            let elsewhere = elsewhere(pid, &addresses, node).map_err(|e| refusal(step(), &e))?;
            if elsewhere.is_empty() {
                continue;
            }
            check_slice(root, process, node, moved)?;
            let begun = Instant::now();
            let slice = move_slice(pid, &elsewhere, node).map_err(|e| refusal(step(), &e))?;
            let bytes = slice.moved * page as u64;
            moved.add(slice);
            let least = Duration::from_secs_f64(bytes as f64 / RATE as f64);
            std::thread::sleep(least.saturating_sub(begun.elapsed()));
        }
    }
    Ok(())
}

/// Checks before each slice that the process has not opened a device since, and that it is still the same: its id may
/// be another's, whose pages are at other addresses, and may be a device's.
fn check_slice(
    root: &Root,
    process: &ProcessPages,
    node: NodeId,
    moved: &Moved,
) -> Result<(), TuneError> {
    let pid = process.pid;
    let stopped = |reason: String| {
        let step = format!("moving the memory of process {pid} to node {node}");
        TuneError::Refused(format!("{step}: stopped after {}: {reason}", moved.describe()))
    };
    let reason = memory_is_for_devices(root, pid);
    // Checked after reading: what was read is of this process then.
    if !is_there(root, process) {
        return Err(stopped("it has exited".to_owned()));
    }
    match reason? {
        Some(reason) => Err(stopped(format!("{reason}; {}", start_bound(root, pid, Some(node))))),
        None => Ok(()),
    }
}

fn refusal(step: String, error: &io::Error) -> TuneError {
    let more = match error.raw_os_error() {
        Some(libc::EPERM) => "; requires root (CAP_SYS_PTRACE, CAP_SYS_NICE)",
        Some(libc::ESRCH) => "; it has exited",
        Some(libc::EACCES) => "; its cpuset does not have the node",
        Some(libc::ENODEV) => "; the node is not online",
        _ => "",
    };
    TuneError::kernel(step, format!("{error}{more}"))
}

/// The mappings with pages on other nodes, without those of hugetlb pages and of the kernel.
fn ranges(root: &Root, pid: u32, node: NodeId) -> Result<Vec<(u64, u64)>, TuneError> {
    let mut starts = BTreeSet::new();
    each_mapping_of(root, pid, |mapping| {
        if has_pages_elsewhere(mapping, node) {
            starts.insert(mapping.start);
        }
        Some(())
    })?;
    let maps = root.read(&format!("/proc/{pid}/maps"))?;
    let range = |line: &str| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let of_kernel = ["[vdso]", "[vvar]", "[vsyscall]", "[vvar_vclock]"];
        let number = |text: &str| u64::from_str_radix(text, 16).ok();
        (!of_kernel.iter().any(|name| rest.ends_with(name))).then_some(())?;
        Some((number(start)?, number(end)?))
    };
    let maps = String::from_utf8_lossy(&maps);
    let all = maps.lines().filter_map(range).take(MAX_MAPPINGS);
    Ok(all.filter(|(start, _)| starts.contains(start)).collect())
}

/// Whether a mapping has pages on another node that can be moved.
fn has_pages_elsewhere(mapping: &Mapping<'_>, node: NodeId) -> bool {
    !mapping.is_huge && mapping.pages.iter().any(|(its, pages)| *its != node && *pages > 0)
}

/// The present pages that are on other nodes.
fn elsewhere(pid: u32, addresses: &[u64], node: NodeId) -> io::Result<Vec<u64>> {
    let status = move_pages(pid, addresses, None)?;
    let is_elsewhere = |status: i32| u32::try_from(status).is_ok_and(|its| its != node.0);
    let pages = addresses.iter().zip(status);
    Ok(pages.filter(|(_, status)| is_elsewhere(*status)).map(|(address, _)| *address).collect())
}

/// Moves pages; a page counts by where it is afterwards.
fn move_slice(pid: u32, addresses: &[u64], node: NodeId) -> io::Result<Moved> {
    let errors = move_pages(pid, addresses, Some(node))?;
    let after = move_pages(pid, addresses, None)?;
    let mut moved = Moved { elsewhere: addresses.len() as u64, ..Moved::default() };
    for (error, after) in errors.into_iter().zip(after) {
        if u32::try_from(after) == Ok(node.0) {
            moved.moved += 1;
            continue;
        }
        let reason = match -error {
            libc::EACCES => "mapped by several processes".to_owned(),
            libc::EBUSY => "in use by the kernel or pinned".to_owned(),
            libc::ENOMEM => "no free memory on the node".to_owned(),
            libc::ENOENT => "already freed".to_owned(),
            errno if errno > 0 => io::Error::from_raw_os_error(errno).to_string(),
            _ => "not moved by the kernel".to_owned(),
        };
        *moved.failed.entry(reason).or_default() += 1;
    }
    Ok(moved)
}

/// move_pages(2): the node of each page, or a negative error number; with a node, moves them first.
fn move_pages(pid: u32, addresses: &[u64], node: Option<NodeId>) -> io::Result<Vec<i32>> {
    /// `MPOL_MF_MOVE` of include/uapi/linux/mempolicy.h: only pages that no other process maps.
    const MPOL_MF_MOVE: libc::c_long = 1 << 1;
    let pid = i32::try_from(pid).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
    let pages: Vec<*mut libc::c_void> =
        addresses.iter().map(|address| *address as *mut libc::c_void).collect();
    let target = i32::try_from(node.unwrap_or(NodeId(0)).0).map_err(io::Error::other)?;
    let nodes: Option<Vec<i32>> = node.map(|_| vec![target; addresses.len()]);
    let mut status = vec![-libc::ENOENT; addresses.len()];
    // SAFETY: three arrays of the same length, of which the kernel writes the last; it does not follow the addresses
    // in this process.
    let result = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            libc::c_long::from(pid),
            pages.len(),
            pages.as_ptr(),
            nodes.as_ref().map_or(std::ptr::null(), |nodes| nodes.as_ptr()),
            status.as_mut_ptr(),
            MPOL_MF_MOVE,
        )
    };
    // A positive number is that of pages not moved (since Linux 4.17).
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(status) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearly_all_memory_on_a_node_is_on_it() {
        let of = |bytes: &[(u32, u64)]| {
            nodes_of(&bytes.iter().map(|(node, bytes)| (NodeId(*node), *bytes)).collect(), None)
        };
        assert_eq!(of(&[(0, 5), (1, 95)]), "1");
        assert_eq!(of(&[(0, 6), (1, 94)]), "0-1");
        assert_eq!((of(&[(3, 1)]).as_str(), of(&[]).as_str()), ("3", ""));
    }

    #[test]
    fn a_rest_in_bytes_may_be_elsewhere() {
        let of = |bytes: &[(u32, u64)], rest| {
            let bytes = bytes.iter().map(|(node, bytes)| (NodeId(*node), *bytes)).collect();
            nodes_of(&bytes, Some(rest))
        };
        assert_eq!(of(&[(0, 60), (1, 9_000_000)], 50), "0-1");
        assert_eq!(of(&[(0, 50), (1, 9_000_000)], 50), "1");
        assert_eq!(of(&[(0, 20), (1, 30)], 50), "1", "the largest");
        assert_eq!(of(&[(0, 0)], 0), "0");
    }

    #[test]
    fn only_mappings_with_pages_elsewhere_are_walked() {
        let elsewhere = |line: &str| {
            let mut found = None;
            let each = |mapping: &Mapping<'_>| {
                found = has_pages_elsewhere(mapping, NodeId(1)).then_some(mapping.start);
                Some(())
            };
            each_mapping(line.as_bytes(), each).unwrap();
            found
        };
        let page = "kernelpagesize_kB=4";
        assert_eq!(elsewhere(&format!("7f00 default anon=2 N0=1 N1=1 {page}")), Some(0x7f00));
        assert_eq!(elsewhere(&format!("7f00 default anon=2 N1=2 {page}")), None);
        assert_eq!(elsewhere("7f00 default file=/x huge N0=2 kernelpagesize_kB=2048"), None);
        assert_eq!(elsewhere("7f00 bind:0 stack"), None);
        assert_eq!(elsewhere(""), None);
    }

    #[test]
    fn a_slice_is_moved_of_the_same_process_only() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("proc/70");
        for at in ["fd", "task/70"] {
            std::fs::create_dir_all(folder.join(at)).unwrap();
        }
        let stat = |start: u64| {
            let stat = format!("70 (app) S 1 70 70 0 -1 0{} {start} 0 0\n", " 0".repeat(12));
            std::fs::write(folder.join("stat"), &stat).unwrap();
            std::fs::write(folder.join("task/70/stat"), &stat).unwrap();
        };
        std::fs::write(folder.join("comm"), "app\n").unwrap();
        std::fs::write(folder.join("task/70/comm"), "app\n").unwrap();
        std::fs::write(folder.join("status"), "VmPin:\t0 kB\n").unwrap();
        std::fs::write(folder.join("maps"), "").unwrap();
        let root = Root::tree(dir.path()).unwrap();
        let process = ProcessPages::new(70, 99);
        let moved = Moved { elsewhere: 9, moved: 7, failed: BTreeMap::new() };
        let check = || check_slice(&root, &process, NodeId(1), &moved).map_err(|e| e.to_string());
        stat(99);
        assert_eq!(check(), Ok(()));
        // Its id was given to another.
        stat(100);
        let error = check().unwrap_err();
        assert!(error.contains("7 of 9 pages moved") && error.contains("exited"), "{error}");
        stat(99);
        std::os::unix::fs::symlink("/dev/vfio/12", folder.join("fd/5")).unwrap();
        let error = check().unwrap_err();
        assert!(error.contains("/dev/vfio/12 open") && error.contains("start it bound"), "{error}");
    }

    #[test]
    fn the_kernel_counts_the_pages_of_this_process() {
        // With one node, nothing is elsewhere and nothing is refused.
        let me = std::process::id();
        let pages = vec![7u8; 64 << 12];
        let first = (pages.as_ptr() as u64).next_multiple_of(4096);
        let addresses: Vec<u64> = (0..60).map(|at| first + at * 4096).collect();
        let status = move_pages(me, &addresses, None).unwrap();
        assert!(status.iter().all(|node| *node >= 0), "{status:?}");
        let node = NodeId(u32::try_from(status[0]).unwrap());
        assert_eq!(
            elsewhere(me, &addresses, node).unwrap().len(),
            status.iter().filter(|n| **n != status[0]).count()
        );
        let there = move_pages(me, &addresses, Some(node)).unwrap();
        assert_eq!(there.len(), 60);
        // A node that does not exist, and a process.
        assert!(move_pages(me, &addresses, Some(NodeId(1000))).is_err());
        assert!(move_pages(u32::MAX, &addresses, None).is_err());
        assert_eq!(pages[5000], 7);
    }

    #[test]
    fn the_command_to_start_it_bound_is_exact() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("proc/70");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("cmdline"), b"testpmd\0-l\x000-3\0a b\0").unwrap();
        let root = Root::tree(dir.path()).unwrap();
        assert_eq!(
            start_bound(&root, 70, Some(NodeId(1))),
            "start it bound: numactl --cpunodebind=1 --membind=1 testpmd -l 0-3 'a b'"
        );
        std::fs::write(folder.join("cgroup"), "0::/system.slice/dpdk.service\n").unwrap();
        let said = start_bound(&root, 70, Some(NodeId(1)));
        assert!(
            said.contains("systemctl edit dpdk.service") && said.contains("NUMAMask=1"),
            "{said}"
        );
        // Refused, with it, as its devices are unknown.
        let refused = may_move(&root, 70, NodeId(1)).unwrap_err().to_string();
        assert!(refused.contains("unknown") && refused.contains("start it bound"), "{refused}");
    }
}
