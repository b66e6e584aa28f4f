//! SIGINT, SIGTERM and SIGHUP as an event, so that results are still printed, programs detached and plans undone.
//! Another signal more than a second later ends the process immediately; not while the host is being changed
//! (`crates/tune/src/deferred.rs`).

use anyhow::Context;
use rustix::time::{ClockId, clock_gettime};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::{exit, pipe, register};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

/// A second signal within this time counts as the same request: timeout(1) sends one to the process and one to
/// its group.
const SAME_REQUEST_S: i64 = 1;
/// Time of the first signal before there was one.
const NEVER: i64 = i64::MIN;

/// Listens for signals from its creation to the end of the process.
#[derive(Debug)]
pub struct Interrupt {
    /// Time of the first signal, in seconds on the monotonic clock.
    first_s: Arc<AtomicI64>,
    woken: UnixStream,
}

impl Interrupt {
    /// Starts to listen.
    ///
    /// # Errors
    /// The process has no file descriptors left.
    pub fn listen() -> anyhow::Result<Self> {
        // A terminal that goes does not end what nohup(1) has started.
        let signals: &[i32] =
            if is_ignored(SIGHUP) { &[SIGINT, SIGTERM] } else { &[SIGINT, SIGTERM, SIGHUP] };
        Self::of(signals).context("cannot listen for signals")
    }

    fn of(signals: &[i32]) -> io::Result<Self> {
        let first_s = Arc::new(AtomicI64::new(NEVER));
        let (woken, write) = UnixStream::pair()?;
        for &signal in signals {
            let first_s = Arc::clone(&first_s);
            let note = move || {
                let now_s = clock_gettime(ClockId::Monotonic).tv_sec;
                let first =
                    first_s.compare_exchange(NEVER, now_s, Ordering::Relaxed, Ordering::Relaxed);
                if first.is_err_and(|first_s| now_s - first_s > SAME_REQUEST_S) {
                    exit(128 + signal);
                }
            };
            // SAFETY: it reads a clock, swaps an atomic and may call _exit, which are all
            // async-signal-safe; it cannot panic.
            unsafe { register(signal, note) }?;
            pipe::register(signal, write.try_clone()?)?;
        }
        Ok(Self { first_s, woken })
    }

    /// Whether a signal arrived.
    pub fn happened(&self) -> bool {
        self.first_s.load(Ordering::Relaxed) != NEVER
    }

    /// Waits for this time or until a signal arrives; returns whether one arrived.
    pub fn wait(&self, time: Duration) -> bool {
        let begin = Instant::now();
        while !self.happened() {
            let left = time.saturating_sub(begin.elapsed());
            // A timeout of zero would mean no timeout.
            if left.is_zero() || self.woken.set_read_timeout(Some(left)).is_err() {
                break;
            }
            let _ = (&self.woken).read(&mut [0]);
        }
        self.happened()
    }
}

/// Whether this process ignores a signal.
pub fn is_ignored(signal: i32) -> bool {
    // SAFETY: the kernel writes a whole action, and nothing is changed.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &raw mut action) == 0
            && action.sa_sigaction == libc::SIG_IGN
    }
}

impl AsFd for Interrupt {
    /// Becomes readable when a signal arrives.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.woken.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use signal_hook::consts::{SIGUSR1, SIGUSR2};
    use signal_hook::low_level::raise;

    #[test]
    fn a_signal_ends_the_wait() {
        let interrupt = Interrupt::of(&[SIGUSR1]).unwrap();
        let begin = Instant::now();
        std::thread::spawn(|| raise(SIGUSR1).unwrap());
        assert!(interrupt.wait(Duration::from_secs(20)));
        assert!(begin.elapsed() < Duration::from_secs(10));
        assert!(interrupt.happened() && interrupt.wait(Duration::from_secs(20)));
        // A repeated signal does not end the process.
        raise(SIGUSR1).unwrap();
    }

    #[test]
    fn without_a_signal_it_waits_the_full_time() {
        let (interrupt, begin) = (Interrupt::of(&[SIGUSR2]).unwrap(), Instant::now());
        assert!(!interrupt.wait(Duration::from_millis(30)));
        assert!(begin.elapsed() >= Duration::from_millis(30));
    }
}
