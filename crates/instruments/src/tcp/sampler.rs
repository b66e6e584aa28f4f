//! Reads the sockets several times per interval, and the ends of connections more often, on a thread of its own.
//!
//! The time between two readings grows with what a reading costs, so that the limit on overhead is kept.

use super::Options;
use super::events::Ends;
use super::state::{OWNERS_MAX, State, refused};
use super::track::Track;
use crate::InstrumentError;
use crate::limited::own_time;
use libbpf_rs::MapHandle;
use nearpath_host::{TcpSocket, connection_owners};
use std::collections::HashSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The thread; dropping it ends the readings.
pub(super) struct Sampler {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    /// Wakes the thread; and whoever waits until it has received all ends so far.
    wake: Condvar,
    received: Condvar,
}

/// Interval between two looks for connections that have ended: their ring holds some 21,000.
const RECEIVE: Duration = Duration::from_millis(50);

/// During a reading, so many sockets between two looks.
const SOCKETS_PER_LOOK: u32 = 8192;

/// Priority of the thread (nice(2)): a tenth of the weight of other tasks.
const NICE: i32 = 10;

impl Sampler {
    /// Reads the sockets once, and from then on again and again; and the ends of connections from a ring, if there is
    /// one.
    ///
    /// # Errors
    /// The kernel has no sock_diag for TCP.
    pub fn start(options: &Options, ring: Option<MapHandle>) -> Result<Self, InstrumentError> {
        let mut state = State::new(options.filter.clone())?;
        state.read_all(|_, _| {}).map_err(|error| refused(&error))?;
        let inodes: HashSet<u64> =
            state.inodes().filter(|&inode| inode != 0).take(OWNERS_MAX).collect();
        // Without privilege some are unknown, which each result says.
        state.set_owners(&connection_owners(&state.root, &inodes).0);
        state.look_at_cpus();
        state.receives_ends = ring.is_some();
        let (wake, received) = (Condvar::new(), Condvar::new());
        let shared = Arc::new(Shared { state: Mutex::new(state), wake, received });
        let (theirs, step, limit) = (Arc::clone(&shared), options.step, options.limit);
        let thread = std::thread::Builder::new()
            .name("tcp-sampler".to_owned())
            .spawn(move || {
                // Packets and their readers come first. Without the permission it runs as all others do.
                let _ = rustix::process::setpriority_process(None, NICE);
                theirs.run(step, limit, ring.as_ref());
            })
            .map_err(|error| refused(&error))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// The state with all ends so far, without the thread reading meanwhile.
    pub fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.shared.lock();
        state.wants_ends = state.receives_ends;
        self.shared.wake.notify_all();
        while state.wants_ends && state.receives_ends {
            let waited = self.shared.received.wait(state);
            state = waited.unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        state
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.shared.lock().is_over = true;
        self.shared.wake.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed; there is nothing to undo.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn run(&self, step: Duration, limit: Option<f64>, ring: Option<&MapHandle>) {
        // Dropped last, also by a panic: nobody may wait for this thread any longer.
        let _over = Over(self);
        let ends = ring.map(Ends::listen);
        let mut state = self.lock();
        if let Some(Err(error)) = &ends {
            state.error = Some(error.to_string());
        }
        let ends = ends.and_then(Result::ok);
        let mut next = Instant::now() + step;
        while !state.is_over {
            let due = next.saturating_duration_since(Instant::now());
            let wait = if ends.is_some() { due.min(RECEIVE) } else { due };
            if !wait.is_zero() && !state.wants_ends {
                let waited = self.wake.wait_timeout(state, wait);
                state = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
            }
            if let Some(ends) = &ends {
                let began = own_time();
                state.end(&ends.take());
                state.spent += own_time().saturating_sub(began);
            }
            // The thread that waits may lock only when this one waits again.
            if std::mem::take(&mut state.wants_ends) {
                self.received.notify_all();
                let waited = self.wake.wait_timeout(state, Duration::from_millis(1));
                state = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
            }
            if Instant::now() < next {
                continue;
            }
            let before = state.spent;
            let mut sockets = 0u32;
            let each = |_: &Track, _: Option<&TcpSocket>| {
                sockets = sockets.wrapping_add(1);
                // A reading of a hundred thousand takes long enough for the ring to fill.
                if sockets.is_multiple_of(SOCKETS_PER_LOOK) {
                    ends.iter().for_each(Ends::collect);
                }
            };
            state.error = state.read_all(each).err().map(|error| error.to_string());
            let cost = state.spent.saturating_sub(before);
            let pause = limit.map_or(Duration::ZERO, |share| cost.div_f64(share.max(1e-3)));
            next = Instant::now() + spread(step.max(pause), state.readings);
        }
    }
}

/// The time until the next reading: on average `step`, but not always the same, as what a connection does often
/// repeats itself in equal times, of which the readings would always meet the same part. The fractions of multiples of
/// the golden ratio are spread evenly.
fn spread(step: Duration, reading: u32) -> Duration {
    let fraction = (f64::from(reading) * 0.618_033_988_749_895).fract();
    step.mul_f64(0.5 + fraction)
}

/// Reports that the thread has ended.
struct Over<'a>(&'a Shared);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.lock().receives_ends = false;
        self.0.received.notify_all();
    }
}
