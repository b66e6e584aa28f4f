//! Makes way for those whose packets are measured: the measuring thread runs with SCHED_IDLE, so that any other task that
//! wakes up has its CPU at once. Where CPUs are never idle it would not run at all; so it is watched, and has its policy
//! back for a while whenever it has waited for too long.

use std::fs;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// How often it is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// It has waited for too long if it was ready for this part of the time, and did not run.
const TOO_LONG: f64 = 0.7;
/// Then it has its policy back for so many looks,
const BACK_FOR: u32 = 3;
/// with this slice, so that a task that wakes up need not wait for longer (EEVDF, since Linux 6.12).
const SLICE: Duration = Duration::from_micros(100);

/// The calling thread runs in the background until this is dropped.
#[derive(Debug)]
pub struct Background {
    thread: libc::pid_t,
    before: libc::c_int,
    stop: Option<Sender<()>>,
    watcher: Option<JoinHandle<()>>,
}

impl Background {
    /// `None` where that is not possible, or it is there already: it then runs as before.
    pub fn enter() -> Option<Self> {
        // SAFETY: both have no preconditions.
        let (thread, before) = unsafe { (libc::gettid(), libc::sched_getscheduler(0)) };
        if before != libc::SCHED_OTHER {
            return None;
        }
        waited_ns(thread)?;
        let (stop, stopped) = channel();
        let watch = move || {
            let mut waited = waited_ns(thread);
            let mut back_for = 0u32;
            while stopped.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                let now = waited_ns(thread);
                let more = now.zip(waited).map_or(0, |(now, then)| now.saturating_sub(then));
                waited = now;
                if back_for > 0 {
                    back_for -= 1;
                    if back_for == 0 {
                        set_policy(thread, libc::SCHED_IDLE, Duration::ZERO);
                    }
                } else if more as f64 > TOO_LONG * LOOK.as_nanos() as f64 {
                    set_policy(thread, libc::SCHED_OTHER, SLICE);
                    back_for = BACK_FOR;
                }
            }
        };
        let watcher = thread::Builder::new().name("background".to_owned()).spawn(watch).ok()?;
        set_policy(thread, libc::SCHED_IDLE, Duration::ZERO);
        Some(Self { thread, before, stop: Some(stop), watcher: Some(watcher) })
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(watcher) = self.watcher.take() {
            // Its panic was reported where it happened.
            let _ = watcher.join();
        }
        set_policy(self.thread, self.before, Duration::ZERO);
    }
}

/// `struct sched_attr` of its first version (`include/uapi/linux/sched/types.h`).
#[repr(C)]
#[derive(Default)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// Sets the policy and the slice, where zero is the kernel's default; the nice value stays. A refusal changes nothing.
fn set_policy(thread: libc::pid_t, policy: libc::c_int, slice: Duration) {
    let attributes = Attributes {
        size: size_of::<Attributes>() as u32,
        policy: policy.cast_unsigned(),
        nice: nice(thread),
        runtime: u64::try_from(slice.as_nanos()).unwrap_or(0),
        ..Attributes::default()
    };
    // SAFETY: the attributes are of the given size and outlive the call, which only reads them.
    let _ = unsafe { libc::syscall(libc::SYS_sched_setattr, thread, &raw const attributes, 0) };
}

/// Its nice value; 0 if it cannot be read.
fn nice(thread: libc::pid_t) -> i32 {
    let thread = rustix::process::Pid::from_raw(thread);
    rustix::process::getpriority_process(thread).unwrap_or(0)
}

/// How long a thread of this process has been ready without running: the second field of its schedstat
/// (`Documentation/scheduler/sched-stats.rst`).
fn waited_ns(thread: libc::pid_t) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).ok()?;
    text.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Instant;

    fn policy() -> libc::c_int {
        // SAFETY: it has no preconditions.
        unsafe { libc::sched_getscheduler(0) }
    }

    #[test]
    fn the_thread_makes_way_and_has_its_policy_back() {
        let background = Background::enter().unwrap();
        assert_eq!(policy(), libc::SCHED_IDLE);
        assert!(Background::enter().is_none(), "it is there already");
        drop(background);
        assert_eq!(policy(), libc::SCHED_OTHER);
    }

    #[test]
    fn it_goes_on_where_no_cpu_is_ever_idle() {
        let stop = Arc::new(AtomicBool::new(false));
        let busy = || {
            let stop = Arc::clone(&stop);
            thread::spawn(move || while !stop.load(Ordering::Relaxed) {})
        };
        let cpus = thread::available_parallelism().unwrap().get();
        let others: Vec<_> = (0..2 * cpus).map(|_| busy()).collect();
        let background = Background::enter();
        let began = Instant::now();
        let cpu_time = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        let before = cpu_time();
        while (cpu_time() - before).tv_nsec < 200_000_000 && began.elapsed().as_secs() < 60 {}
        let took = began.elapsed();
        drop(background);
        stop.store(true, Ordering::Relaxed);
        others.into_iter().for_each(|other| other.join().unwrap());
        // A third of the time is its own in half of it; alone with weight 3 of 1,024 it would take minutes.
        assert!(took < Duration::from_secs(20), "{took:?}");
    }
}
