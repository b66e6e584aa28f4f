//! Signals that would end the process wait while the host is being changed: half a plan, or half an undo, is worse than a
//! process that takes a moment longer.
//!
//! Input: SIGHUP, SIGINT, SIGQUIT and SIGTERM during the work. Output: a line on standard error that says so, whether one
//! arrived, and the signal itself at the end of the work, with the disposition that it had before.

use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering::SeqCst};

const SIGNALS: [libc::c_int; 4] = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM];
const SAYS: &[u8] = b"nearpath: a signal arrived; finishing the change of the host first\n";

/// The signal that waits, or 0.
static WAITING: AtomicI32 = AtomicI32::new(0);
/// Works in progress: one may be a part of another.
static DEPTH: AtomicUsize = AtomicUsize::new(0);

/// Signals wait until it is dropped.
pub(crate) struct Deferred {
    /// The dispositions before, of those that are deferred; none if an outer one restores them.
    before: Vec<(libc::c_int, libc::sigaction)>,
}

impl Deferred {
    pub fn begin() -> Self {
        if DEPTH.fetch_add(1, SeqCst) > 0 {
            return Self { before: Vec::new() };
        }
        Self { before: SIGNALS.into_iter().filter_map(defer).collect() }
    }

    /// Whether a signal waits: the caller stops after its current step.
    pub fn is_signalled() -> bool {
        WAITING.load(SeqCst) != 0
    }
}

impl Drop for Deferred {
    fn drop(&mut self) {
        for (signal, before) in &self.before {
            // SAFETY: the action was returned by the kernel for this signal.
            unsafe { libc::sigaction(*signal, before, std::ptr::null_mut()) };
        }
        if DEPTH.fetch_sub(1, SeqCst) == 1 {
            let waiting = WAITING.swap(0, SeqCst);
            if waiting != 0 {
                // SAFETY: a signal to this process.
                unsafe { libc::kill(libc::getpid(), waiting) };
            }
        }
    }
}

/// Defers a signal; `None` if it is ignored, as SIGHUP by nohup(1), and stays so.
fn defer(signal: libc::c_int) -> Option<(libc::c_int, libc::sigaction)> {
    // SAFETY: both actions are whole; the handler only uses an atomic and write(2), which are async-signal-safe.
    unsafe {
        let mut before: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(signal, std::ptr::null(), &raw mut before) != 0
            || before.sa_sigaction == libc::SIG_IGN
        {
            return None;
        }
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = note as *const () as libc::sighandler_t;
        action.sa_flags = libc::SA_RESTART;
        libc::sigemptyset(&raw mut action.sa_mask);
        (libc::sigaction(signal, &raw const action, std::ptr::null_mut()) == 0)
            .then_some((signal, before))
    }
}

extern "C" fn note(signal: libc::c_int) {
    // The first one decides; each is answered.
    let _ = WAITING.compare_exchange(0, signal, SeqCst, SeqCst);
    // SAFETY: a constant with its length. A terminal that is gone is not an error here.
    unsafe { libc::write(libc::STDERR_FILENO, SAYS.as_ptr().cast(), SAYS.len()) };
}
