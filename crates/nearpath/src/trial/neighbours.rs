//! The programs that send and receive packets here, watched while a block runs: one that waits for a CPU much longer with
//! the plan than without pays for what others gain. What is late because its sender waits looks as quick as ever to those
//! who measure from its reception.

use nearpath_host::Root;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// A thread that waits for this share of the time more than in any block without the plan pays too much.
const MORE: f64 = 0.05;
/// Threads beyond these are not looked at: reading one takes some ten microseconds.
const MOST: usize = 2000;
/// The tables of sockets that packets come from or go to, in a process's own network namespace.
const TABLES: [&str; 7] = ["udp", "udp6", "tcp", "tcp6", "raw", "raw6", "packet"];

/// A thread: its process, and its own id.
type Thread = (u32, u32);

/// The threads of this host.
pub(super) struct Neighbours {
    /// Those that the plan itself moves: they may wait where they are put.
    moved: BTreeSet<u32>,
    began: Option<(Instant, BTreeMap<Thread, u64>)>,
    /// The largest share of a block without the plan that each waited for.
    worst: BTreeMap<Thread, f64>,
}

impl Neighbours {
    /// Those of a trial that moves these processes or threads.
    pub(super) fn new(moved: impl Iterator<Item = u32>) -> Self {
        Self { moved: moved.collect(), began: None, worst: BTreeMap::new() }
    }

    /// A block begins.
    pub(super) fn begin(&mut self, root: &Root) {
        self.began = Some((Instant::now(), self.waited(root)));
    }

    /// It has ended, with or without the plan: the harm that it has shown.
    pub(super) fn end(&mut self, root: &Root, with: bool) -> Option<String> {
        let (began, before) = self.began.take()?;
        let (passed, after) = (began.elapsed().as_secs_f64(), self.waited(root));
        let share = |(thread, now): (&Thread, &u64)| {
            let waited = now.saturating_sub(*before.get(thread)?) as f64 / 1e9;
            Some((*thread, (waited / passed.max(f64::MIN_POSITIVE)).min(1.0)))
        };
        let shares = after.iter().filter_map(share);
        if !with {
            for (thread, share) in shares {
                let worst = self.worst.entry(thread).or_default();
                *worst = worst.max(share);
            }
            return None;
        }
        let more = |(thread, share): (Thread, f64)| {
            let worst = *self.worst.get(&thread)?;
            Some((share - worst, thread, share, worst)).filter(|(more, ..)| *more > MORE)
        };
        let mut harmed: Vec<_> = shares.filter_map(more).collect();
        harmed.sort_by(|a, b| b.0.total_cmp(&a.0));
        let (_, (pid, thread), share, worst) =
            harmed.into_iter().find(|(_, (pid, _), ..)| has_packets(root, *pid))?;
        let comm = root.text(&format!("/proc/{pid}/task/{thread}/comm")).unwrap_or_default();
        Some(format!(
            "{} (pid {pid}) waits for a CPU {:.0}% of the time, at most {:.0}% without the plan",
            comm.trim().escape_default(),
            100.0 * share,
            100.0 * worst
        ))
    }

    /// How long each thread has waited for a CPU, in nanoseconds: the second field of its schedstat
    /// (`Documentation/scheduler/sched-stats.rst`). Threads that end meanwhile are left out.
    fn waited(&self, root: &Root) -> BTreeMap<Thread, u64> {
        let mut all = BTreeMap::new();
        let own = std::process::id();
        let others = |pid: &u32| *pid != own && !self.moved.contains(pid);
        for pid in numbers(root, "/proc").filter(others) {
            // A kernel thread has no command line.
            if root.text(&format!("/proc/{pid}/cmdline")).is_ok_and(|text| text.is_empty()) {
                continue;
            }
            for thread in numbers(root, &format!("/proc/{pid}/task")) {
                if all.len() >= MOST {
                    return all;
                }
                let file = format!("/proc/{pid}/task/{thread}/schedstat");
                let field = |text: String| text.split_whitespace().nth(1)?.parse().ok();
                let waited = root.text(&file).ok().and_then(field);
                if let Some(ns) = waited.filter(|_| !self.moved.contains(&thread)) {
                    all.insert((pid, thread), ns);
                }
            }
        }
        all
    }
}

/// The numbers among the names in a folder.
fn numbers(root: &Root, folder: &str) -> impl Iterator<Item = u32> + use<> {
    let entries = root.list(folder).unwrap_or_default();
    entries.into_iter().filter_map(|entry| entry.name.parse().ok())
}

/// Whether a process has a socket that packets come from or go to.
fn has_packets(root: &Root, pid: u32) -> bool {
    let inode = |fd: u32| {
        let link = root.link(&format!("/proc/{pid}/fd/{fd}")).ok()?;
        Some(link.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
    };
    let inodes: BTreeSet<String> =
        numbers(root, &format!("/proc/{pid}/fd")).filter_map(inode).collect();
    !inodes.is_empty()
        && TABLES.iter().any(|table| {
            let text = root.text(&format!("/proc/{pid}/net/{table}")).unwrap_or_default();
            text.lines().any(|line| line.split_whitespace().any(|word| inodes.contains(word)))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A process of two threads with a UDP socket.
    fn tree() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for thread in [7, 8] {
            let task = dir.path().join(format!("proc/7/task/{thread}"));
            fs::create_dir_all(&task).unwrap();
            fs::write(task.join("comm"), "sender\n").unwrap();
        }
        let process = dir.path().join("proc/7");
        fs::write(process.join("cmdline"), "sender").unwrap();
        fs::create_dir_all(process.join("fd")).unwrap();
        std::os::unix::fs::symlink("socket:[4711]", process.join("fd/3")).unwrap();
        fs::create_dir_all(process.join("net")).unwrap();
        fs::write(process.join("net/udp"), "0: 0100007F:1388 07 0 4711 2\n").unwrap();
        dir
    }

    fn waited(dir: &tempfile::TempDir, thread: u32, seconds: f64) {
        let text = format!("1 {} 1\n", (seconds * 1e9) as u64);
        fs::write(dir.path().join(format!("proc/7/task/{thread}/schedstat")), text).unwrap();
    }

    #[test]
    fn a_thread_that_waits_only_with_the_plan_is_harm() {
        let dir = tree();
        let root = Root::tree(dir.path()).unwrap();
        let mut neighbours = Neighbours::new([].into_iter());
        // In each block much longer than it takes here.
        let mut block = |with, seconds: f64| {
            waited(&dir, 7, 0.0);
            waited(&dir, 8, 0.0);
            neighbours.begin(&root);
            waited(&dir, 8, seconds);
            neighbours.end(&root, with)
        };
        assert_eq!(block(false, 0.0), None);
        let harm = block(true, 100.0).unwrap();
        let said = "sender (pid 7) waits for a CPU 100% of the time, at most 0% without the plan";
        assert_eq!(harm, said);
        assert_eq!(block(false, 100.0), None, "without the plan it is none");
        assert_eq!(block(true, 100.0), None, "no more than without");
    }

    #[test]
    fn those_that_are_moved_may_wait() {
        let dir = tree();
        let root = Root::tree(dir.path()).unwrap();
        let mut neighbours = Neighbours::new([8].into_iter());
        for (with, seconds) in [(false, 0.0), (true, 100.0)] {
            waited(&dir, 7, 0.0);
            waited(&dir, 8, 0.0);
            neighbours.begin(&root);
            waited(&dir, 8, seconds);
            assert_eq!(neighbours.end(&root, with), None);
        }
    }
}
