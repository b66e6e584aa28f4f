//! A thread on a given CPU that works on request, and ends with its owner even if a test fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How a thread is scheduled.
#[derive(Debug, Clone, Copy)]
pub enum Policy {
    /// SCHED_FIFO with a priority from 1 to 99.
    Fifo(i32),
    /// SCHED_OTHER with a nice value.
    Nice(i32),
    /// SCHED_BATCH with a nice value: never runs in place of another because it was woken.
    Batch(i32),
}

/// Pins the calling thread to a CPU.
pub fn pin(cpu: u32) {
    pin_thread(0, cpu);
}

/// Pins a thread, by its id, to a CPU.
pub fn pin_thread(thread: i32, cpu: u32) {
    let mut only = rustix::thread::CpuSet::new();
    only.set(cpu as usize);
    rustix::thread::sched_setaffinity(rustix::thread::Pid::from_raw(thread), &only).unwrap();
}

/// Schedules the calling thread in a way.
pub fn schedule(policy: Policy) {
    let (number, priority, nice) = match policy {
        Policy::Fifo(priority) => (libc::SCHED_FIFO, priority, 0),
        Policy::Nice(nice) => (libc::SCHED_OTHER, 0, nice),
        Policy::Batch(nice) => (libc::SCHED_BATCH, 0, nice),
    };
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: sets the scheduling of the calling thread; the structure is whole.
    let set = unsafe { libc::sched_setscheduler(0, number, &raw const parameters) };
    assert_eq!(set, 0, "{policy:?}: {}", std::io::Error::last_os_error());
    // SAFETY: `who` 0 is the calling thread; no memory is touched.
    let set = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) };
    assert_eq!(set, 0, "{policy:?}: {}", std::io::Error::last_os_error());
}

/// Keeps the CPU busy.
pub fn spin(time: Duration) {
    let begin = Instant::now();
    while begin.elapsed() < time {
        std::hint::spin_loop();
    }
}

#[derive(Default)]
struct Orders {
    asked: AtomicU32,
    begun: AtomicU32,
    done: AtomicU32,
    over: AtomicBool,
    thread: AtomicI32,
}

/// The thread.
pub struct Worker {
    orders: Arc<Orders>,
    handle: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts it; on each request it does `work`, with the number of earlier requests.
    pub fn new(
        name: &str,
        cpu: u32,
        policy: Policy,
        mut work: impl FnMut(u32) + Send + 'static,
    ) -> Self {
        let orders = Arc::new(Orders::default());
        let mine = Arc::clone(&orders);
        let run = move || {
            pin(cpu);
            schedule(policy);
            mine.thread.store(rustix::thread::gettid().as_raw_nonzero().get(), SeqCst);
            let mut done = 0;
            while !mine.over.load(SeqCst) {
                if mine.asked.load(SeqCst) == done {
                    std::thread::park_timeout(Duration::from_millis(50));
                    continue;
                }
                mine.begun.store(done + 1, SeqCst);
                work(done);
                done += 1;
                mine.done.store(done, SeqCst);
            }
        };
        let thread = std::thread::Builder::new().name(name.to_owned());
        Self { orders, handle: Some(thread.spawn(run).unwrap()) }
    }

    /// Its thread id, once it runs.
    pub fn thread(&self) -> i32 {
        self.until("it runs", || self.orders.thread.load(SeqCst) != 0);
        self.orders.thread.load(SeqCst)
    }

    /// Requests work, and returns when it has started.
    pub fn begin(&self) {
        let asked = self.orders.asked.fetch_add(1, SeqCst) + 1;
        self.wake();
        self.until("it begins", || self.orders.begun.load(SeqCst) == asked);
    }

    /// Returns when all requested work is done.
    pub fn end(&self) {
        let asked = self.orders.asked.load(SeqCst);
        self.until("it ends", || self.orders.done.load(SeqCst) == asked);
    }

    fn wake(&self) {
        if let Some(handle) = &self.handle {
            handle.thread().unpark();
        }
    }

    /// Spins, since to sleep would take longer than what is waited for.
    fn until(&self, what: &str, condition: impl Fn() -> bool) {
        let begin = Instant::now();
        while !condition() {
            assert!(begin.elapsed() < nearpath_testing::PATIENCE, "waited too long: {what}");
            assert!(!self.handle.as_ref().is_none_or(JoinHandle::is_finished), "it has failed");
            std::thread::yield_now();
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.orders.over.store(true, SeqCst);
        self.wake();
        // Its failure was reported by the waiting thread.
        let _ = self.handle.take().map(JoinHandle::join);
    }
}
