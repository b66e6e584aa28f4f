//! Where threads ran: the CPU time that each has used, and the CPU that it is on (`/proc/PID/task/TID/schedstat` and
//! `stat`, fs/proc/base.c and fs/proc/array.c). Nothing is attached to the kernel.
//!
//! A sample reads the time of each thread, and the CPU of those whose time has changed. The time since the sample before
//! counts for the node of that CPU; if the thread has changed nodes in between, half of it for each.

use crate::Root;
use crate::cpu_table::printable;
use nearpath_model::memory::{RanOnBasis, ThreadGroup};
use nearpath_model::{CpuId, NodeId, Topology};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

/// Maximum number of threads read per process, and in total.
const MAX_THREADS: usize = 1024;
const MAX_THREADS_IN_ALL: usize = 65_536;
/// Maximum number of names of threads per process; the others count as `others`.
const MAX_NAMES: usize = 64;
/// Nanoseconds of a tick of `utime` and `stime` (`USER_HZ`).
const TICK_NS: u64 = 10_000_000;

/// What `/proc/PID/task/TID/stat` says of a thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadStat {
    /// Its name.
    pub comm: String,
    /// CPU time, in ticks of 10 ms.
    pub ticks: u64,
    /// When it started, in clock ticks since boot.
    pub start_ticks: u64,
    /// The CPU that it is on, or ran on last.
    pub cpu: CpuId,
}

/// Parses `/proc/PID/task/TID/stat`; `None` if it is malformed. The name is in parentheses and may contain blanks and
/// parentheses.
pub fn parse_thread_stat(bytes: &[u8]) -> Option<ThreadStat> {
    let open = bytes.iter().position(|&b| b == b'(')?;
    let close = bytes.iter().rposition(|&b| b == b')')?;
    let comm = printable(bytes.get(open + 1..close)?);
    // The third field is the first one here.
    let mut fields = str::from_utf8(bytes.get(close + 1..)?).ok()?.split_ascii_whitespace();
    let utime: u64 = fields.nth(14 - 3)?.parse().ok()?;
    let stime: u64 = fields.next()?.parse().ok()?;
    let start_ticks = fields.nth(22 - 15 - 1)?.parse().ok()?;
    let cpu = fields.nth(39 - 22 - 1)?.parse().ok()?;
    Some(ThreadStat { comm, ticks: utime.saturating_add(stime), start_ticks, cpu: CpuId(cpu) })
}

/// The CPU time in nanoseconds of `schedstat`; `None` if it is malformed, or the kernel counts none
/// (CONFIG_SCHED_INFO).
pub fn parse_schedstat(bytes: &[u8]) -> Option<u64> {
    let text = str::from_utf8(bytes).ok()?;
    text.split_ascii_whitespace().next()?.parse().ok().filter(|&ns| ns > 0)
}

/// The last sample of a thread.
struct Seen {
    run_ns: u64,
    cpu: CpuId,
    /// Index in `Process::groups`.
    group: usize,
}

#[derive(Default)]
struct Process {
    threads: HashMap<u32, Seen>,
    groups: Vec<Group>,
}

struct Group {
    comm: String,
    threads: u64,
    ns: BTreeMap<NodeId, u64>,
}

/// CPU time of processes by node.
#[derive(Default)]
pub struct RanOn {
    processes: HashMap<u32, Process>,
    samples: u64,
    spent: Duration,
}

impl RanOn {
    /// Samples all threads of these processes. The first sample of a process is the reference for those that follow.
    pub fn sample(&mut self, root: &Root, topology: &Topology, pids: &[u32]) {
        let began = Instant::now();
        let mut left = MAX_THREADS_IN_ALL;
        for &pid in pids {
            let folder = format!("/proc/{pid}/task");
            // It has exited, or is not accessible.
            let Ok(tasks) = root.list(&folder) else { continue };
            let is_new = !self.processes.contains_key(&pid);
            let process = self.processes.entry(pid).or_default();
            let tids = tasks.iter().filter_map(|task| task.name.parse::<u32>().ok());
            for tid in tids.take(MAX_THREADS.min(left)) {
                left -= 1;
                process.sample(root, topology, &format!("{folder}/{tid}"), tid, is_new);
            }
        }
        self.samples += 1;
        self.spent += began.elapsed();
    }

    /// Number of samples.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Time that they took.
    pub fn spent(&self) -> Duration {
        self.spent
    }

    /// Share of a process's CPU time by node, and the same by name of its threads. If it used none between two samples,
    /// the CPUs that its threads ran on last, weighted by all of their CPU time.
    pub fn of(
        &self,
        topology: &Topology,
        pid: u32,
    ) -> (BTreeMap<NodeId, f64>, Option<RanOnBasis>, Vec<ThreadGroup>) {
        let Some(process) = self.processes.get(&pid) else { return Default::default() };
        let in_interval: Vec<&Group> =
            process.groups.iter().filter(|group| group.ns.values().any(|&ns| ns > 0)).collect();
        if !in_interval.is_empty() {
            return shares(in_interval.into_iter(), RanOnBasis::Interval);
        }
        let mut last: Vec<Group> = process
            .groups
            .iter()
            .map(|g| Group { comm: g.comm.clone(), threads: g.threads, ns: BTreeMap::new() })
            .collect();
        for thread in process.threads.values() {
            let group = last.get_mut(thread.group);
            if let (Some(group), Some(node)) = (group, topology.node_of(thread.cpu)) {
                let sum = group.ns.entry(node).or_default();
                // One that hardly ran counts, too: it may be the only one.
                *sum = sum.saturating_add(thread.run_ns.max(1));
            }
        }
        shares(last.iter().filter(|group| !group.ns.is_empty()), RanOnBasis::LastCpu)
    }
}

impl Process {
    fn sample(&mut self, root: &Root, topology: &Topology, folder: &str, tid: u32, is_new: bool) {
        let schedstat = root.read(&format!("{folder}/schedstat"));
        let run_ns = schedstat.ok().and_then(|bytes| parse_schedstat(&bytes));
        if let (Some(run_ns), Some(seen)) = (run_ns, self.threads.get(&tid))
            && seen.run_ns == run_ns
        {
            return;
        }
        let stat = root.read(&format!("{folder}/stat"));
        let Some(stat) = stat.ok().and_then(|bytes| parse_thread_stat(&bytes)) else { return };
        let run_ns = run_ns.unwrap_or_else(|| stat.ticks.saturating_mul(TICK_NS));
        let before = self.threads.get(&tid).map(|seen| (seen.run_ns, seen.cpu));
        let is_another_thread = before.is_some_and(|(before, _)| run_ns < before);
        let (used, from) = match before {
            Some((before, cpu)) if !is_another_thread => (run_ns - before, cpu),
            // Started after the first sample: all of its time is of the interval.
            _ if !is_new => (run_ns, stat.cpu),
            _ => (0, stat.cpu),
        };
        let group = self.group(&stat.comm, before.is_none() || is_another_thread);
        if used > 0
            && let Some(group) = self.groups.get_mut(group)
        {
            let halves = [(from, used / 2), (stat.cpu, used - used / 2)];
            for (cpu, ns) in halves {
                if let Some(node) = topology.node_of(cpu) {
                    let sum = group.ns.entry(node).or_default();
                    *sum = sum.saturating_add(ns);
                }
            }
        }
        self.threads.insert(tid, Seen { run_ns, cpu: stat.cpu, group });
    }

    fn group(&mut self, comm: &str, is_new_thread: bool) -> usize {
        let full = self.groups.len() >= MAX_NAMES;
        let at = self.groups.iter().position(|group| group.comm == comm).unwrap_or_else(|| {
            if full {
                return MAX_NAMES - 1;
            }
            let comm = if self.groups.len() == MAX_NAMES - 1 { "others" } else { comm };
            self.groups.push(Group { comm: comm.to_owned(), threads: 0, ns: BTreeMap::new() });
            self.groups.len() - 1
        });
        if is_new_thread && let Some(group) = self.groups.get_mut(at) {
            group.threads += 1;
        }
        at
    }
}

fn shares<'a>(
    groups: impl Iterator<Item = &'a Group>,
    basis: RanOnBasis,
) -> (BTreeMap<NodeId, f64>, Option<RanOnBasis>, Vec<ThreadGroup>) {
    let share = |ns: &BTreeMap<NodeId, u64>| -> BTreeMap<NodeId, f64> {
        let all = ns.values().fold(0u64, |all, &ns| all.saturating_add(ns));
        let of = |ns: u64| (ns as f64 / all.max(1) as f64 * 10_000.0).round() / 10_000.0;
        ns.iter().map(|(&node, &ns)| (node, of(ns))).filter(|(_, share)| *share > 0.0).collect()
    };
    let mut sums: BTreeMap<NodeId, u64> = BTreeMap::new();
    let mut threads = Vec::new();
    for group in groups {
        for (&node, &ns) in &group.ns {
            let sum = sums.entry(node).or_default();
            *sum = sum.saturating_add(ns);
        }
        let ns = group.ns.values().fold(0u64, |all, &ns| all.saturating_add(ns));
        threads.push(ThreadGroup {
            comm: group.comm.clone(),
            threads: group.threads,
            cpu_s: ns as f64 / 1e9,
            ran_on_nodes: share(&group.ns),
        });
    }
    threads.sort_by_key(|group| Reverse((group.cpu_s * 1e9) as u64));
    let basis = (!sums.is_empty()).then_some(basis);
    (share(&sums), basis, threads)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs;
    use std::path::Path;

    fn thread(tree: &Path, tid: u32, run_ns: u64, cpu: u32) {
        let folder = tree.join(format!("proc/70/task/{tid}"));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("schedstat"), format!("{run_ns} 5 9\n")).unwrap();
        let zeros = "0 ".repeat(23);
        let stat = format!("{tid} (a) b) R 1 1 1 0 -1 0 0 0 0 0 7 8 {zeros}{cpu} 0 0\n");
        fs::write(folder.join("stat"), stat).unwrap();
    }

    fn topology() -> Topology {
        let cpu = |number: u32| serde_json::json!({"cpu": number, "online": true, "siblings": "", "node": number});
        Topology {
            cpus: (0..2).map(|n| serde_json::from_value(cpu(n)).unwrap()).collect(),
            ..Topology::default()
        }
    }

    #[test]
    fn time_counts_for_the_node_of_the_cpu() {
        let dir = tempfile::tempdir().unwrap();
        let (topology, mut ran) = (topology(), RanOn::default());
        let mut sample = || {
            let root = Root::tree(dir.path()).unwrap();
            ran.sample(&root, &topology, &[70]);
            ran.of(&topology, 70)
        };
        thread(dir.path(), 1, 1_000, 0);
        thread(dir.path(), 2, 3_000, 1);
        // Only the last CPU is known.
        let (shares, basis, groups) = sample();
        assert_eq!(shares, BTreeMap::from([(NodeId(0), 0.25), (NodeId(1), 0.75)]));
        assert_eq!((basis, groups.len(), groups[0].threads), (Some(RanOnBasis::LastCpu), 1, 2));
        assert_eq!(groups[0].comm, "a) b");
        // One thread runs on node 0, and another one is born on node 1.
        thread(dir.path(), 1, 4_000, 0);
        thread(dir.path(), 3, 1_000, 1);
        let (shares, basis, _) = sample();
        assert_eq!(shares, BTreeMap::from([(NodeId(0), 0.75), (NodeId(1), 0.25)]));
        assert_eq!(basis, Some(RanOnBasis::Interval));
        // It changes nodes: half of the time for each.
        thread(dir.path(), 1, 8_000, 1);
        let (shares, ..) = sample();
        assert_eq!(shares, BTreeMap::from([(NodeId(0), 0.625), (NodeId(1), 0.375)]));
    }

    #[test]
    fn this_thread_ran_somewhere() {
        let bytes = fs::read("/proc/thread-self/stat").unwrap();
        let stat = parse_thread_stat(&bytes).unwrap();
        let online = fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
        let online = nearpath_model::CpuSet::from_list(online.trim()).unwrap();
        assert!(online.contains(stat.cpu), "{stat:?}");
        for bad in ["", "7 (a", "7 (a) R 1", "7 (a) R 1 x"] {
            assert_eq!(parse_thread_stat(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(parse_schedstat(b"70 1 2\n"), Some(70));
        assert_eq!((parse_schedstat(b"0 0 0\n"), parse_schedstat(b"x")), (None, None));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse_thread_stat(&bytes);
            let _ = parse_thread_stat(&[b"7 (x) R 1 1 1 ", &bytes[..]].concat());
            let _ = parse_schedstat(&bytes);
        }
    }
}
