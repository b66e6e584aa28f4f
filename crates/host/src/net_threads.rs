//! Threads that process packets in the kernel: ksoftirqd, threaded NAPI and vhost.
//!
//! Input: a root and the processes by name. Output: the affinity of each thread, and how long it ran and
//! waited to run (`/proc/PID/schedstat`, Documentation/scheduler/sched-stats.rst). Since 6.4 a vhost worker is a
//! thread of the process that uses it (`vhost_task_create` of kernel/vhost_task.c): its name is searched among the
//! threads of all processes, where the vhost module is loaded.

use crate::processes::{self, parse_status};
use crate::{Notes, Root};
use nearpath_model::NetThread;
use std::collections::BTreeMap;

/// Prefixes of their names (kernel/softirq.c, net/core/dev.c `napi_kthread_create`, drivers/vhost/vhost.c).
const PREFIXES: [&str; 3] = ["ksoftirqd/", "napi/", "vhost-"];
/// Maximum threads of a process whose waiting is read.
const MAX_DELAYS: usize = 64;
const VHOST: &str = "vhost-";
/// Exists if vhost is loaded or built in with parameters.
const VHOST_MODULES: [&str; 2] = ["/sys/module/vhost", "/sys/module/vhost_net"];
/// Maximum of threads whose names are read in search of vhost workers, about 10 µs each.
const MAX_NAMES: usize = 20_000;
/// Upper bound: one ksoftirqd per CPU, one NAPI thread per queue.
const MAX_THREADS: usize = 16_384;

/// Selects the threads among the processes, given by id and name.
pub(crate) fn read(root: &Root, notes: &mut Notes, processes: &[(u32, String)]) -> Vec<NetThread> {
    let is_one = |comm: &str| PREFIXES.iter().any(|prefix| comm.starts_with(prefix));
    let (threads, others): (Vec<_>, Vec<_>) = processes.iter().partition(|(_, comm)| is_one(comm));
    let threads = threads.into_iter().take(MAX_THREADS);
    let mut threads: Vec<NetThread> =
        threads.map(|(pid, comm)| read_one(root, *pid, None, comm)).collect();
    if VHOST_MODULES.iter().any(|module| root.list(module).is_ok()) {
        let room = MAX_THREADS.saturating_sub(threads.len());
        let others: Vec<u32> = others.into_iter().map(|(pid, _)| *pid).collect();
        threads.extend(vhost_workers(root, notes, &others, MAX_NAMES).into_iter().take(room));
    }
    threads
}

/// The vhost workers among the threads of processes, of which at most so many names are read.
fn vhost_workers(root: &Root, notes: &mut Notes, pids: &[u32], most: usize) -> Vec<NetThread> {
    let mut workers = Vec::new();
    let mut left = most;
    for &pid in pids {
        let folder = format!("/proc/{pid}/task");
        let tasks = root.list(&folder).unwrap_or_default();
        // The main thread is no worker.
        let ids = tasks.iter().filter_map(|task| task.name.parse().ok()).filter(|tid| *tid != pid);
        for tid in ids {
            if left == 0 {
                let reason =
                    format!("more than {most} threads: not all were searched for vhost workers");
                notes.add("host", "vhost_workers", &reason);
                return workers;
            }
            left -= 1;
            let comm = root.text(&format!("{folder}/{tid}/comm")).unwrap_or_default();
            if comm.starts_with(VHOST) {
                workers.push(read_one(root, tid, Some(pid), &comm));
            }
        }
    }
    workers
}

/// The vhost workers of a process: its own threads, or before 6.4 kernel threads with its id in their name.
pub fn vhost_threads(root: &Root, pid: u32) -> Vec<NetThread> {
    let mut threads = vhost_workers(root, &mut Notes::default(), &[pid], MAX_NAMES);
    let own = format!("{VHOST}{pid}");
    let pids = processes::pids(root).unwrap_or_default();
    let kernel = pids.into_iter().filter(|pid| processes::comm(root, *pid).is_ok_and(|c| c == own));
    threads.extend(kernel.map(|pid| read_one(root, pid, None, &own)));
    threads
}

/// The ksoftirqd of each CPU: its process id.
pub fn softirq_threads(root: &Root) -> BTreeMap<u32, u32> {
    let thread = |pid: u32| {
        let comm = processes::comm(root, pid).ok()?;
        Some((comm.strip_prefix("ksoftirqd/")?.parse().ok()?, pid))
    };
    processes::pids(root).unwrap_or_default().into_iter().filter_map(thread).collect()
}

/// How long a thread has waited for a CPU while it could have run, and has run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RunDelay {
    /// In nanoseconds, without a wait that still goes on.
    pub ns: u64,
    /// Time on a CPU, in nanoseconds.
    pub run_ns: u64,
    /// How often it has run.
    pub runs: u64,
}

/// How long each thread of a process has waited for a CPU so far, by thread id; empty if the kernel does not report it
/// (CONFIG_SCHED_INFO) or the process has exited.
pub fn run_delays(root: &Root, pid: u32) -> BTreeMap<u32, RunDelay> {
    let tasks = root.list(&format!("/proc/{pid}/task")).unwrap_or_default();
    let threads = tasks.iter().take(MAX_DELAYS).filter_map(|task| task.name.parse().ok());
    threads.filter_map(|thread| Some((thread, run_delay(root, pid, thread)?))).collect()
}

/// The same of one thread; `None` also if it is of another process.
pub fn run_delay(root: &Root, pid: u32, thread: u32) -> Option<RunDelay> {
    let times = root.text(&format!("/proc/{pid}/task/{thread}/schedstat")).ok()?;
    let mut times = times.split_ascii_whitespace().map(|number| number.parse().ok());
    Some(RunDelay { run_ns: times.next()??, ns: times.next()??, runs: times.next()?? })
}

fn read_one(root: &Root, pid: u32, process: Option<u32>, comm: &str) -> NetThread {
    let folder = match process {
        Some(process) => format!("/proc/{process}/task/{pid}"),
        None => format!("/proc/{pid}"),
    };
    let status = root.read(&format!("{folder}/status")).ok();
    let times = root.text(&format!("{folder}/schedstat")).unwrap_or_default();
    let mut times = times.split(' ').map(|time| time.parse().ok());
    NetThread {
        pid,
        process,
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
    fn vhost_threads_are_of_the_process_or_of_the_kernel() {
        let dir = tempfile::tempdir().unwrap();
        // Of the process itself, of another process, of the kernel for it, and for another.
        let names = [
            ("7/task/7", "vhost-7"),
            ("7/task/8", "vhost-7"),
            ("9/task/10", "vhost-9"),
            ("20", "vhost-7"),
            ("21", "vhost-77"),
            ("7", "dpdk-testpmd"),
        ];
        for (folder, comm) in names {
            let folder = dir.path().join("proc").join(folder);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("comm"), format!("{comm}\n")).unwrap();
        }
        let threads = vhost_threads(&Root::tree(dir.path()).unwrap(), 7);
        let ids: Vec<_> = threads.iter().map(|thread| (thread.pid, thread.process)).collect();
        assert_eq!(ids, [(8, Some(7)), (20, None)]);
    }

    #[test]
    fn times_and_cpus_of_the_threads() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("proc/16");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("status"), "Name:\tksoftirqd/1\nCpus_allowed_list:\t1\n").unwrap();
        fs::write(folder.join("schedstat"), "5000 700 12\n").unwrap();
        let root = Root::tree(dir.path()).unwrap();
        let names = [(16, "ksoftirqd/1"), (17, "kworker/1:0"), (18, "napi/eth0-8193")];
        let names = names.map(|(pid, comm)| (pid, comm.to_owned()));
        let threads = read(&root, &mut Notes::default(), &names);
        assert_eq!(threads.len(), 2);
        assert_eq!((threads[0].run_ns, threads[0].wait_ns), (Some(5000), Some(700)));
        assert_eq!(threads[0].cpus.as_ref().unwrap().to_string(), "1");
        // It has exited in the meantime.
        assert_eq!((threads[1].run_ns, threads[1].cpus.as_ref()), (None, None));
    }

    #[test]
    fn vhost_workers_are_threads_of_their_process() {
        let dir = tempfile::tempdir().unwrap();
        for (tid, comm) in [(700, "qemu-system-x86"), (701, "CPU 0/KVM"), (702, "vhost-700")] {
            let folder = dir.path().join(format!("proc/700/task/{tid}"));
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("comm"), format!("{comm}\n")).unwrap();
            fs::write(folder.join("status"), "Cpus_allowed_list:\t0-3\n").unwrap();
        }
        let root = Root::tree(dir.path()).unwrap();
        let names = [(700, "qemu-system-x86".to_owned())];
        let mut notes = Notes::default();
        assert_eq!(read(&root, &mut notes, &names), [], "vhost is not loaded");
        fs::create_dir_all(dir.path().join("sys/module/vhost")).unwrap();
        let root = Root::tree(dir.path()).unwrap();
        let workers = read(&root, &mut notes, &names);
        let found: Vec<_> = workers.iter().map(|w| (w.pid, w.process, w.comm.as_str())).collect();
        assert_eq!(found, [(702, Some(700), "vhost-700")]);
        assert_eq!(workers[0].cpus.as_ref().unwrap().to_string(), "0-3");
        assert!(notes.unknown().is_empty());
        // The search ends at its limit, and says so.
        assert_eq!(vhost_workers(&root, &mut notes, &[700], 1), []);
        assert_eq!(notes.unknown()[0].fact, "vhost_workers");
    }
}
