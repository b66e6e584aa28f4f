//! The end of the daemon, as all threads see it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Set once; threads wait for it instead of sleeping.
#[derive(Debug)]
pub struct Stop {
    set: Mutex<bool>,
    changed: Condvar,
    /// Hung up when it is set.
    write: Mutex<Option<UnixStream>>,
    read: UnixStream,
}

impl Stop {
    /// Not set yet.
    ///
    /// # Errors
    /// No descriptors are left.
    pub fn new() -> io::Result<Self> {
        let (read, write) = UnixStream::pair()?;
        let write = Mutex::new(Some(write));
        Ok(Self { set: Mutex::new(false), changed: Condvar::new(), write, read })
    }

    /// Sets it.
    pub fn set(&self) {
        *self.set.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
        drop(self.write.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// Whether it is set.
    pub fn is_set(&self) -> bool {
        *self.set.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for this time, or until it is set; returns whether it is.
    pub fn wait(&self, time: Duration) -> bool {
        let end = Instant::now() + time;
        let mut set = self.set.lock().unwrap_or_else(PoisonError::into_inner);
        while !*set {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            set = self.changed.wait_timeout(set, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        *set
    }
}

impl AsFd for Stop {
    /// Hung up once it is set.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.read.as_fd()
    }
}
