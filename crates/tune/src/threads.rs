//! The affinity of a thread.
//!
//! A thread is identified by process id, thread id and start time: ids are reused, and another thread must never be
//! moved instead. Its affinity is read from its `status`, which includes offline CPUs, and written with
//! sched_setaffinity(2).

use crate::TuneError;
use crate::hotplug::{CpuEvents, left_by_kernel, online, possible};
use crate::setting::{Possible, Setting};
use nearpath_host::{Root, thread_cpus};
use nearpath_model::{CpuId, CpuSet, MAX_CPUS, Thread};
use std::io;

/// The thread that has this id now; `None` if the process has no such thread.
pub fn find_thread(root: &Root, pid: u32, tid: u32) -> Option<Thread> {
    let stat = root.read(&format!("/proc/{pid}/task/{tid}/stat")).ok()?;
    let thread = Thread::new(pid, tid, start_of(&stat)?);
    Some(Thread { process_start_ticks: process_start(root, pid), ..thread })
}

/// When the process that has this id now was started: the start of its main thread, also when that has exited.
pub(crate) fn process_start(root: &Root, pid: u32) -> Option<u64> {
    start_of(&root.read(&format!("/proc/{pid}/stat")).ok()?)
}

/// The current time in the clock ticks of thread start times (USER_HZ, 100 per second).
pub fn ticks_since_boot(root: &Root) -> Option<u64> {
    let uptime = root.text("/proc/uptime").ok()?;
    let (seconds, rest) = uptime.split_once('.')?;
    let hundredths: u64 = rest.get(..2)?.parse().ok()?;
    seconds.parse::<u64>().ok()?.checked_mul(100)?.checked_add(hundredths)
}

/// Whether a thread still exists.
fn is_there(root: &Root, thread: &Thread) -> bool {
    find_thread(root, thread.pid, thread.tid).is_some_and(|now| now.same_place(thread))
}

/// Field 22 of a `stat`; the name, in parentheses, may hold anything.
fn start_of(stat: &[u8]) -> Option<u64> {
    let name_ends = stat.iter().rposition(|&b| b == b')')?;
    let rest = std::str::from_utf8(stat.get(name_ends + 1..)?).ok()?;
    // Field 3 follows the name.
    rest.split_ascii_whitespace().nth(22 - 3)?.parse().ok()
}

/// The affinity of a thread, as a cpulist.
#[derive(Debug)]
pub(crate) struct ThreadSetting<'a> {
    root: &'a Root,
    thread: &'a Thread,
    /// What happened to CPUs since it was changed; `None` if unknown.
    events: Option<CpuEvents>,
}

impl<'a> ThreadSetting<'a> {
    /// That of a thread of which no change is known.
    pub fn new(root: &'a Root, thread: &'a Thread) -> Self {
        Self { root, thread, events: None }
    }

    /// The same with what happened to CPUs since it was changed.
    pub fn with_events(self, events: Option<CpuEvents>) -> Self {
        Self { events, ..self }
    }
}

impl Setting for ThreadSetting<'_> {
    fn name(&self) -> String {
        self.thread.to_string()
    }

    fn check(&self, value: &str) -> Result<(), TuneError> {
        self.cpus(value).map(drop)
    }

    fn read(&self) -> Result<Option<String>, TuneError> {
        let cpus = thread_cpus(self.root, self.thread.pid, self.thread.tid);
        // Checked after reading: before that the id may have belonged to another thread.
        if !is_there(self.root, self.thread) {
            return Ok(None);
        }
        match cpus {
            Some(cpus) => Ok(Some(cpus.to_string())),
            None => Err(TuneError::kernel(
                format!("reading {}", self.thread),
                "no CPU list in its status",
            )),
        }
    }

    fn write(&self, value: &str) -> Result<(), TuneError> {
        let step = || format!("setting {} to {value}", self.thread);
        let cpus = self.cpus(value)?;
        if !is_there(self.root, self.thread) {
            return Err(TuneError::kernel(step(), "it has exited"));
        }
        set_affinity(self.thread.tid, &cpus).map_err(|error| {
            let more = match error.raw_os_error() {
                Some(libc::EPERM) => "; requires root (CAP_SYS_NICE)",
                Some(libc::EINVAL) => "; none of these CPUs is online and in its cpuset",
                Some(libc::ESRCH) => "; it has exited",
                _ => "",
            };
            TuneError::kernel(step(), format!("{error}{more}"))
        })
    }

    fn is_left_by_kernel(&self, now: &str, was: &str) -> bool {
        left_by_kernel(self.root, now, was)
            || self.events.as_ref().is_some_and(|events| events.left_thread(now, was))
    }

    fn cpus_changed(&self) -> bool {
        self.events.as_ref().is_some_and(CpuEvents::happened)
    }

    fn possible(&self, value: &str) -> Possible {
        let as_it_is = Possible { text: value.to_owned(), replaced: false };
        let (Ok(cpus), Some(online)) = (CpuSet::from_list(value), online(self.root)) else {
            return as_it_is;
        };
        // All CPUs, as select_fallback_rq of kernel/sched/core.c.
        match possible(self.root) {
            Some(all) if cpus.intersection(&online).is_empty() => {
                Possible { text: all.to_string(), replaced: true }
            }
            _ => as_it_is,
        }
    }

    fn follow(&self, from: &str, to: &str) -> Result<(), TuneError> {
        let Some(since) = self.thread.since_ticks else { return Ok(()) };
        // The threads of another process that has the id by now are not its own.
        let is_its_process = match self.thread.process_start_ticks {
            Some(started) => process_start(self.root, self.thread.pid) == Some(started),
            None => is_there(self.root, self.thread),
        };
        if !is_its_process {
            return Ok(());
        }
        // Threads created meanwhile by threads not changed yet are found in the next round.
        for _ in 0..ROUNDS {
            let mut changed = false;
            for thread in self.born_since(since) {
                let its = ThreadSetting::new(self.root, &thread);
                if !its.read()?.is_some_and(|now| self.same(&now, from)) {
                    continue;
                }
                match its.write(to) {
                    Ok(()) => changed = true,
                    Err(_) if !is_there(self.root, &thread) => {}
                    Err(error) => return Err(error),
                }
            }
            if !changed {
                break;
            }
        }
        Ok(())
    }

    fn same(&self, a: &str, b: &str) -> bool {
        let (Ok(a), Ok(b)) = (CpuSet::from_list(a), CpuSet::from_list(b)) else { return a == b };
        // Before 6.2 the kernel drops offline CPUs when it sets an affinity.
        match online(self.root) {
            Some(online) => a == b || same_of(&online, &a, &b),
            None => a == b,
        }
    }
}

/// Whether two sets have the same, non-empty set of online CPUs.
fn same_of(online: &CpuSet, a: &CpuSet, b: &CpuSet) -> bool {
    let a = a.intersection(online);
    !a.is_empty() && a == b.intersection(online)
}

/// More rounds than threads that create threads need, but bounded.
const ROUNDS: usize = 64;

impl ThreadSetting<'_> {
    /// The other threads of its process that were created at this time or later, and have no change of their own.
    fn born_since(&self, since: u64) -> Vec<Thread> {
        let pid = self.thread.pid;
        let tasks = self.root.list(&format!("/proc/{pid}/task")).unwrap_or_default();
        let tids = tasks.iter().filter_map(|task| task.name.parse().ok());
        tids.filter_map(|tid| find_thread(self.root, pid, tid))
            .filter(|thread| thread.start_ticks >= since && thread.tid != self.thread.tid)
            .filter(|thread| !self.thread.planned.contains(&(thread.tid, thread.start_ticks)))
            .collect()
    }

    fn cpus(&self, value: &str) -> Result<CpuSet, TuneError> {
        match CpuSet::from_list(value) {
            Ok(cpus) if !cpus.is_empty() => Ok(cpus),
            Ok(_) => Err(TuneError::Refused(format!("{}: must name a CPU", self.thread))),
            Err(error) => Err(TuneError::Refused(format!("{}: {error}", self.thread))),
        }
    }
}

/// sched_setaffinity(2) with a mask for any number of CPUs.
fn set_affinity(tid: u32, cpus: &CpuSet) -> io::Result<()> {
    let mut mask = vec![0u64; MAX_CPUS as usize / 64];
    for CpuId(cpu) in cpus.iter() {
        if let Some(word) = mask.get_mut(cpu as usize / 64) {
            *word |= 1 << (cpu % 64);
        }
    }
    // Longer than the kernel's own mask is fine: the excess is ignored.
    let bytes = mask.len() * size_of::<u64>();
    // SAFETY: the mask has the given length, and the kernel only reads it.
    let result = unsafe { libc::syscall(libc::SYS_sched_setaffinity, tid, bytes, mask.as_ptr()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ObservedValue;
    use crate::setting;
    use nearpath_model::{Change, Persistence, Target, Value};
    use nearpath_testing::wait_for;
    use rustix::thread::gettid;
    use std::sync::mpsc::channel;

    fn list(text: &str) -> CpuSet {
        CpuSet::from_list(text).unwrap()
    }

    #[test]
    fn the_start_time_is_found_after_any_name() {
        let fields = (3..=52).map(|n| n.to_string()).collect::<Vec<_>>().join(" ");
        assert_eq!(start_of(format!("7 (a) b) {fields}\n").as_bytes()), Some(22));
        assert_eq!(start_of(b"7 (short) S 1"), None);
        assert_eq!(start_of(b""), None);
    }

    #[test]
    fn offline_cpus_make_no_difference() {
        let online = list("0-3");
        assert!(same_of(&online, &list("0-127"), &list("0-3")));
        assert!(!same_of(&online, &list("0-1"), &list("0-3")));
        assert!(!same_of(&online, &list("5"), &list("6")));
    }

    /// A thread that blocks until the sender is dropped.
    fn waiting() -> (Thread, std::sync::mpsc::Sender<()>, std::thread::JoinHandle<()>) {
        let (send, receive) = channel();
        let (end, ended) = channel::<()>();
        let thread = std::thread::spawn(move || {
            let tid = u32::try_from(gettid().as_raw_nonzero().get()).unwrap();
            send.send(tid).unwrap();
            let _ = ended.recv();
        });
        let tid = receive.recv().unwrap();
        (find_thread(&Root::live(), std::process::id(), tid).unwrap(), end, thread)
    }

    #[test]
    fn a_thread_is_moved_and_moved_back() {
        let root = Root::live();
        let (thread, end, handle) = waiting();
        let its = ThreadSetting::new(&root, &thread);
        let before = its.read().unwrap().unwrap();
        let last = CpuSet::from_list(&before).unwrap().iter().last().unwrap();
        let change = Change {
            target: Target::Thread(thread.clone()),
            before: Value::Text(before.clone()),
            after: Value::Text(last.to_string()),
            why: "a test".to_owned(),
            persistence: Persistence::WhileRunning,
            snapshot: Vec::new(),
        };
        let change = setting::prepare(&its, change, false).unwrap();
        setting::write(&its, &change).unwrap();
        assert_eq!(its.read().unwrap(), Some(last.to_string()));
        assert_eq!(setting::look(&its, &change).unwrap(), ObservedValue::After);
        setting::undo(&its, &change, false, false).unwrap();
        assert_eq!(its.read().unwrap(), Some(before));

        // Another thread with its id is not the same.
        let other = Thread { start_ticks: thread.start_ticks + 1, ..thread.clone() };
        let other = ThreadSetting::new(&root, &other);
        assert_eq!(other.read().unwrap(), None);
        assert!(other.write(&last.to_string()).is_err());
        setting::undo(&other, &change, false, false).unwrap();
        drop(end);
        handle.join().unwrap();
        // Joining returns slightly before the kernel has removed it.
        wait_for("the thread's exit", || its.read().unwrap().is_none().then_some(()));
        assert!(matches!(setting::look(&its, &change).unwrap(), ObservedValue::Gone { .. }));
        assert!(its.write("0").unwrap_err().to_string().contains("it has exited"));
    }

    #[test]
    fn threads_created_later_follow_it() {
        let root = Root::live();
        let later = |ticks: u64| {
            let passed = || (ticks_since_boot(&root)? > ticks + 1).then_some(());
            wait_for("the next clock tick", passed);
        };
        let now = || ticks_since_boot(&root).unwrap();
        let (older, end_older, handle_older) = waiting();
        let (thread, end, handle) = waiting();
        later(thread.start_ticks);
        let since = now();
        later(since);
        // Created between the plan and its application.
        let (first, end_first, handle_first) = waiting();
        let thread = Thread { since_ticks: Some(since), ..thread };
        let cpus = |thread: &Thread| ThreadSetting::new(&root, thread).read().unwrap().unwrap();
        let before = cpus(&thread);
        let last = CpuSet::from_list(&before).unwrap().iter().last().unwrap().to_string();
        if before == last {
            return nearpath_testing::skip("requires two CPUs");
        }
        let its = ThreadSetting::new(&root, &thread);
        let change = Change {
            target: Target::Thread(thread.clone()),
            before: Value::Text(before.clone()),
            after: Value::Text(last.clone()),
            snapshot: Vec::new(),
            why: "a test".to_owned(),
            persistence: Persistence::WhileRunning,
        };
        let change = setting::prepare(&its, change, false).unwrap();
        // With a change of its own in the plan it does not follow.
        let planned = vec![(first.tid, first.start_ticks)];
        let alone = Thread { planned, ..thread.clone() };
        let alone = ThreadSetting::new(&root, &alone);
        setting::write(&alone, &change).unwrap();
        assert_eq!([&cpus(&thread), &cpus(&first)], [&last, &before]);
        setting::undo(&alone, &change, false, false).unwrap();
        setting::write(&its, &change).unwrap();
        assert_eq!([cpus(&thread), cpus(&first)], [last.as_str(); 2]);
        assert_eq!(cpus(&older), before, "it existed, and the plan did not move it");
        // Created while the plan is applied, by a thread that has its affinity.
        let (send, receive) = channel();
        let bearer = std::thread::spawn({
            let last = last.clone();
            move || {
                let tid = u32::try_from(gettid().as_raw_nonzero().get()).unwrap();
                set_affinity(tid, &list(&last)).unwrap();
                send.send(waiting()).unwrap();
            }
        });
        bearer.join().unwrap();
        let (second, end_second, handle_second) = receive.recv().unwrap();
        assert_eq!(cpus(&second), last);
        // Those of a process that has got the id of an earlier one stay.
        let earlier = thread.process_start_ticks.map(|ticks| ticks - 1);
        let stranger = Thread { process_start_ticks: earlier, start_ticks: 1, ..thread.clone() };
        let unknown = Thread { process_start_ticks: None, ..stranger.clone() };
        for gone in [stranger, unknown] {
            let gone = ThreadSetting::new(&root, &gone);
            setting::undo(&gone, &change, false, false).unwrap();
            assert_eq!([cpus(&first), cpus(&second)], [last.as_str(); 2]);
        }
        // Even after the thread itself has exited.
        drop(end);
        handle.join().unwrap();
        wait_for("the thread's exit", || its.read().unwrap().is_none().then_some(()));
        setting::undo(&its, &change, false, false).unwrap();
        assert_eq!([cpus(&first), cpus(&second), cpus(&older)], [before.as_str(); 3]);
        drop((end_older, end_first, end_second));
        for handle in [handle_older, handle_first, handle_second] {
            handle.join().unwrap();
        }
    }

    #[test]
    fn an_empty_set_is_refused() {
        let thread = Thread::new(1, 1, 0);
        let root = Root::live();
        let its = ThreadSetting::new(&root, &thread);
        assert!(its.check("").is_err() && its.check("x").is_err() && its.check("0-1").is_ok());
    }
}
