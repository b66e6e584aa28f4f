//! Kernel threads that process packets: ksoftirqd, threaded NAPI and vhost.
//!
//! Input: a root and the processes by name. Output: the affinity of each thread, and how long it ran and
//! waited to run (`/proc/PID/schedstat`, Documentation/scheduler/sched-stats.rst). Since 6.4 vhost runs
//! in threads of the process that uses it, which are not included.

use crate::Root;
use crate::processes::{self, parse_status};
use nearpath_model::NetThread;
use std::collections::BTreeMap;

/// Prefixes of their names (kernel/softirq.c, net/core/dev.c `napi_kthread_create`, drivers/vhost/vhost.c).
const PREFIXES: [&str; 3] = ["ksoftirqd/", "napi/", "vhost-"];
/// Maximum threads of a process whose waiting is read.
const MAX_DELAYS: usize = 64;
/// Upper bound: one ksoftirqd per CPU, one NAPI thread per queue.
const MAX_THREADS: usize = 16_384;

/// Selects the threads among the processes, given by id and name.
pub(crate) fn read<'a>(
    root: &Root,
    processes: impl Iterator<Item = (u32, &'a str)>,
) -> Vec<NetThread> {
    let is_one = |comm: &str| PREFIXES.iter().any(|prefix| comm.starts_with(prefix));
    let threads = processes.filter(|(_, comm)| is_one(comm)).take(MAX_THREADS);
    threads.map(|(pid, comm)| read_one(root, pid, comm)).collect()
}

/// The ksoftirqd of each CPU: its process id.
pub fn softirq_threads(root: &Root) -> BTreeMap<u32, u32> {
    let thread = |pid: u32| {
        let comm = processes::comm(root, pid).ok()?;
        Some((comm.strip_prefix("ksoftirqd/")?.parse().ok()?, pid))
    };
    processes::pids(root).unwrap_or_default().into_iter().filter_map(thread).collect()
}

/// How long each thread of a process has waited for a CPU while it could have run, in nanoseconds, by thread id;
/// empty if the kernel does not report it (CONFIG_SCHED_INFO) or the process has exited.
pub fn run_delays(root: &Root, pid: u32) -> BTreeMap<u32, u64> {
    let folder = format!("/proc/{pid}/task");
    let wait = |name: &str| {
        let times = root.text(&format!("{folder}/{name}/schedstat")).ok()?;
        Some((name.parse().ok()?, times.split(' ').nth(1)?.parse().ok()?))
    };
    let tasks = root.list(&folder).unwrap_or_default();
    tasks.iter().take(MAX_DELAYS).filter_map(|task| wait(&task.name)).collect()
}

fn read_one(root: &Root, pid: u32, comm: &str) -> NetThread {
    let status = root.read(&format!("/proc/{pid}/status")).ok();
    let times = root.text(&format!("/proc/{pid}/schedstat")).unwrap_or_default();
    let mut times = times.split(' ').map(|time| time.parse().ok());
    NetThread {
        pid,
        comm: comm.to_owned(),
        cpus: status.and_then(|bytes| parse_status(&bytes).ok()?.cpus),
        run_ns: times.next().flatten(),
        wait_ns: times.next().flatten(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn times_and_cpus_of_the_threads() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("proc/16");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("status"), "Name:\tksoftirqd/1\nCpus_allowed_list:\t1\n").unwrap();
        fs::write(folder.join("schedstat"), "5000 700 12\n").unwrap();
        let root = Root::tree(dir.path()).unwrap();
        let names = [(16, "ksoftirqd/1"), (17, "kworker/1:0"), (18, "napi/eth0-8193")];
        let threads = read(&root, names.into_iter());
        assert_eq!(threads.len(), 2);
        assert_eq!((threads[0].run_ns, threads[0].wait_ns), (Some(5000), Some(700)));
        assert_eq!(threads[0].cpus.as_ref().unwrap().to_string(), "1");
        // It has exited in the meantime.
        assert_eq!((threads[1].run_ns, threads[1].cpus.as_ref()), (None, None));
    }
}
