//! SIGINT and SIGTERM as an event, so that what was gathered is still shown and what was attached
//! is taken off. A second signal ends the process at once.

use anyhow::Context;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::{flag, low_level::pipe};
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Listens for signals from its making to the end of the process.
#[derive(Debug)]
pub struct Interrupt {
    seen: Arc<AtomicBool>,
    woken: UnixStream,
}

impl Interrupt {
    /// Begins to listen.
    ///
    /// # Errors
    /// No file can be opened any more.
    pub fn listen() -> anyhow::Result<Self> {
        Self::of(&[SIGINT, SIGTERM]).context("cannot listen for signals")
    }

    fn of(signals: &[i32]) -> io::Result<Self> {
        let seen = Arc::new(AtomicBool::new(false));
        let (woken, write) = UnixStream::pair()?;
        for &signal in signals {
            // In this order: the first signal finds the flag not set yet.
            flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&seen))?;
            flag::register(signal, Arc::clone(&seen))?;
            pipe::register(signal, write.try_clone()?)?;
        }
        Ok(Self { seen, woken })
    }

    /// Whether a signal came.
    pub fn happened(&self) -> bool {
        self.seen.load(Ordering::Relaxed)
    }

    /// Waits that long, or until a signal comes; whether one came.
    pub fn wait(&self, time: Duration) -> bool {
        let begin = Instant::now();
        while !self.happened() {
            let left = time.saturating_sub(begin.elapsed());
            // A timeout of zero would mean none at all.
            if left.is_zero() || self.woken.set_read_timeout(Some(left)).is_err() {
                break;
            }
            let _ = (&self.woken).read(&mut [0]);
        }
        self.happened()
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
    }

    #[test]
    fn without_a_signal_the_time_passes() {
        let (interrupt, begin) = (Interrupt::of(&[SIGUSR2]).unwrap(), Instant::now());
        assert!(!interrupt.wait(Duration::from_millis(30)));
        assert!(begin.elapsed() >= Duration::from_millis(30));
    }
}
