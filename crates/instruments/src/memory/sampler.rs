//! Samples on a thread of its own where the threads of processes are, while the measurement waits.
//!
//! A sample of a thousand processes takes milliseconds, so the pause after each is at least fifty times as long: two
//! per cent of a CPU.

use nearpath_host::{RanOn, Root};
use nearpath_model::Topology;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Shortest pause between two samples.
const PAUSE: Duration = Duration::from_millis(50);
/// A pause is at least this many times as long as the sample before it.
const PAUSE_PER_SAMPLE: u32 = 50;

struct Shared {
    ran: Mutex<RanOn>,
    is_stopped: Mutex<bool>,
    stopped: Condvar,
}

/// The sampler; dropping it ends its thread.
pub struct Sampler {
    shared: Arc<Shared>,
    pids: Vec<u32>,
    topology: Topology,
    thread: Option<JoinHandle<()>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sampler {
    /// Takes the first sample, and starts the thread. Without a thread there are only the samples of
    /// [`Sampler::with`].
    pub fn start(root: &Root, topology: &Topology, pids: Vec<u32>) -> Self {
        let mut ran = RanOn::default();
        ran.sample(root, topology, &pids);
        let shared = Arc::new(Shared {
            ran: Mutex::new(ran),
            is_stopped: Mutex::new(false),
            stopped: Condvar::new(),
        });
        let (theirs, of) = (Arc::clone(&shared), (topology.clone(), pids.clone()));
        let run = move || sample_until_stopped(&theirs, &of.0, &of.1);
        let thread = std::thread::Builder::new().name("nearpath-memory".to_owned()).spawn(run);
        Self { shared, pids, topology: topology.clone(), thread: thread.ok() }
    }

    /// Takes a sample, and calls `read` with all of them.
    pub fn with<T>(&self, root: &Root, read: impl FnOnce(&RanOn) -> T) -> T {
        let mut ran = lock(&self.shared.ran);
        ran.sample(root, &self.topology, &self.pids);
        read(&ran)
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        *lock(&self.shared.is_stopped) = true;
        self.shared.stopped.notify_all();
        if let Some(thread) = self.thread.take() {
            // It has nothing to return.
            let _ = thread.join();
        }
    }
}

fn sample_until_stopped(shared: &Shared, topology: &Topology, pids: &[u32]) {
    let root = Root::live();
    let mut pause = PAUSE;
    let mut is_stopped = lock(&shared.is_stopped);
    while !*is_stopped {
        let wait = shared.stopped.wait_timeout_while(is_stopped, pause, |stopped| !*stopped);
        is_stopped = wait.unwrap_or_else(PoisonError::into_inner).0;
        if *is_stopped {
            return;
        }
        drop(is_stopped);
        let began = Instant::now();
        lock(&shared.ran).sample(&root, topology, pids);
        pause = PAUSE.max(began.elapsed() * PAUSE_PER_SAMPLE);
        is_stopped = lock(&shared.is_stopped);
    }
}
