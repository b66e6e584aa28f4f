//! Threads that poll: by their names, or by what their process has open; and what the kernel counts of each.
//!
//! A thread's times are in `/proc/PID/task/TID/schedstat` (Documentation/scheduler/sched-stats.rst): ran, waited.

use crate::{Root, thread_cpus};
use nearpath_model::WorkerCounts;

/// Maximum number of threads of a process whose names are read.
const MAX_THREADS: usize = 4096;
/// Maximum number of descriptors that are read in search of devices.
const MAX_DESCRIPTORS: usize = 4096;

/// A thread that polls, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Polls {
    /// `rte-worker-3` (DPDK 22.11), `dpdk-worker3` (23.11), `lcore-worker-3` (21.11), `lcore-slave-3`.
    Lcore(u32),
    /// `pmd-c03/id:8`.
    Pmd(u32),
    /// A thread that every DPDK process has: `eal-intr-thread`, `dpdk-intr`, `rte_mp_handle`, `dpdk-mp-msg`.
    Eal,
}

/// The threads of a process that poll, or that only DPDK has.
pub(super) fn of(root: &Root, pid: u32) -> Vec<(u32, Polls)> {
    ids(root, pid)
        .filter_map(|tid| {
            let name = root.text(&format!("/proc/{pid}/task/{tid}/comm")).ok()?;
            Some((tid, polls(&name)?))
        })
        .collect()
}

/// The threads of a process that drives a device by itself and uses hugepages, but names its threads as it likes: those
/// that may run on one CPU only. As EAL numbers them by default, the lcore is the CPU. A virtual machine has
/// such devices for its guest, and does not poll them.
pub(super) fn without_names(root: &Root, pid: u32) -> Vec<(u32, Polls)> {
    let status = root.text(&format!("/proc/{pid}/status")).unwrap_or_default();
    let huge = status.lines().find_map(|line| line.strip_prefix("HugetlbPages:"));
    let huge = huge.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    if huge.is_none_or(|kib| kib == 0) {
        return Vec::new();
    }
    let files = descriptors(root, pid);
    let drives = files.iter().any(|file| is_driver(file));
    if !drives || files.iter().any(|file| file == "anon_inode:kvm-vm") {
        return Vec::new();
    }
    let pinned = |tid: u32| {
        let cpus = thread_cpus(root, pid, tid).filter(|cpus| cpus.len() == 1)?;
        Some((tid, Polls::Lcore(cpus.first()?.0)))
    };
    ids(root, pid).filter_map(pinned).collect()
}

fn ids(root: &Root, pid: u32) -> impl Iterator<Item = u32> {
    let tasks = root.list(&format!("/proc/{pid}/task")).unwrap_or_default();
    tasks.into_iter().take(MAX_THREADS).filter_map(|entry| entry.name.parse().ok())
}

fn is_driver(file: &str) -> bool {
    file.starts_with("/dev/uio") || file.starts_with("/dev/vfio/") || file.contains("[vfio-device]")
}

/// What a process has open.
pub(super) fn descriptors(root: &Root, pid: u32) -> Vec<String> {
    let folder = format!("/proc/{pid}/fd");
    let entries = root.list(&folder).unwrap_or_default();
    let links = entries.iter().take(MAX_DESCRIPTORS);
    links.filter_map(|entry| root.link(&format!("{folder}/{}", entry.name)).ok()).collect()
}

/// Adds what the kernel counts of a thread.
pub(super) fn count(root: &Root, pid: u32, tid: u32, counts: &mut WorkerCounts) {
    let folder = format!("/proc/{pid}/task/{tid}");
    let times = root.text(&format!("{folder}/schedstat")).unwrap_or_default();
    let mut times = times.split_whitespace().map(|time| time.parse().ok());
    counts.run_ns = times.next().flatten();
    counts.delay_ns = times.next().flatten();
    let status = root.text(&format!("{folder}/status")).unwrap_or_default();
    let switches = status.lines().find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"));
    counts.involuntary_switches = switches.and_then(|count| count.trim().parse().ok());
}

fn polls(name: &str) -> Option<Polls> {
    let lcore = ["rte-worker-", "lcore-worker-", "lcore-slave-", "dpdk-worker"];
    let id = lcore.iter().find_map(|prefix| name.strip_prefix(prefix)?.parse().ok());
    let core = || name.strip_prefix("pmd-c")?.split('/').next()?.parse().ok();
    let eal = ["eal-intr-thread", "dpdk-intr", "rte_mp_handle", "dpdk-mp-msg"];
    id.map(Polls::Lcore)
        .or_else(|| core().map(Polls::Pmd))
        .or_else(|| eal.contains(&name).then_some(Polls::Eal))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_known_by_their_names() {
        for (name, expected) in [
            ("rte-worker-1", Some(Polls::Lcore(1))),
            ("dpdk-worker12", Some(Polls::Lcore(12))),
            ("lcore-worker-3", Some(Polls::Lcore(3))),
            ("lcore-slave-3", Some(Polls::Lcore(3))),
            ("pmd-c03/id:8", Some(Polls::Pmd(3))),
            ("dpdk-intr", Some(Polls::Eal)),
            ("kworker/0:1", None),
            ("rte-worker-", None),
        ] {
            assert_eq!(polls(name), expected, "{name}");
        }
    }

    #[test]
    fn times_and_switches_of_a_thread() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("proc/70/task/71");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("schedstat"), "500 20 3\n").unwrap();
        std::fs::write(folder.join("status"), "nonvoluntary_ctxt_switches:\t7\n").unwrap();
        let root = Root::tree(dir.path()).unwrap();
        let mut counts = WorkerCounts::default();
        count(&root, 70, 71, &mut counts);
        assert_eq!((counts.run_ns, counts.delay_ns), (Some(500), Some(20)));
        assert_eq!(counts.involuntary_switches, Some(7));
        count(&root, 70, 99, &mut counts);
        assert_eq!(counts, WorkerCounts::default(), "it has exited");
    }
}
