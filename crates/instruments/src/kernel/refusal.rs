//! Turns the kernel's errors on loading into one line, from libbpf's warnings.

use crate::InstrumentError;
use libbpf_rs::PrintLevel;
use nearpath_host::Root;
use std::cell::{Cell, RefCell};
use std::sync::Once;

/// Path of the lockdown state (security/lockdown/lockdown.c).
const LOCKDOWN: &str = "/sys/kernel/security/lockdown";

// libbpf has one printer for the process, and the monitor's instruments are loaded by several threads.
thread_local! {
    /// Whether warnings of this thread are kept.
    static LISTENS: Cell<bool> = const { Cell::new(false) };
    /// libbpf's last warning while this thread was loading.
    static LAST_WORDS: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Runs `load` and captures libbpf's warnings, which would otherwise go to standard error.
pub fn listening<T>(load: impl FnOnce() -> T) -> T {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        libbpf_rs::set_print(Some((PrintLevel::Warn, keep)));
    });
    LAST_WORDS.take();
    let listened = LISTENS.replace(true);
    let result = load();
    LISTENS.set(listened);
    result
}

/// Stores a warning of a thread that listens; the errors of others are reported by their callers. libbpf calls it in
/// the thread that it warns.
fn keep(_level: PrintLevel, message: String) {
    if !LISTENS.get() {
        return;
    }
    LAST_WORDS.with_borrow_mut(|last| {
        if let Some(line) = verdict_of_verifier(&message) {
            *last = format!("the verifier says: {line}");
        } else if !last.starts_with("the verifier") && !message.trim().is_empty() {
            message.trim().clone_into(last);
        }
    });
}

/// The last line of a verifier log that is not statistics.
fn verdict_of_verifier(message: &str) -> Option<&str> {
    let log = message.split("BEGIN PROG LOAD LOG --").nth(1)?;
    let lines = log.lines().map(str::trim);
    lines.rev().find(|l| {
        !l.is_empty() && !l.starts_with("--") && !l.ends_with("--") && !l.starts_with("processed ")
    })
}

/// A failed step as one line.
pub fn refused(step: &str, error: &libbpf_rs::Error) -> InstrumentError {
    let said = LAST_WORDS.with_borrow(String::clone);
    let denied = error.kind() == libbpf_rs::ErrorKind::PermissionDenied;
    // The verifier also refuses with EACCES, and security modules and lockdown refuse root.
    if denied && !said.starts_with("the verifier") && !may_load() {
        return InstrumentError::Privilege("measuring packets".to_owned());
    }
    InstrumentError::Refused { step: step.to_owned(), reason: reason(error) }
}

/// Whether this thread has what loading programs needs (`bpf_capable()` and `perfmon_capable()`, include/linux/capability.h).
fn may_load() -> bool {
    use rustix::thread::CapabilitySet;
    let own =
        rustix::thread::capabilities(None).map_or(CapabilitySet::empty(), |own| own.effective);
    own.contains(CapabilitySet::SYS_ADMIN)
}

/// Why loading within [`listening`] failed, as one line: the error, and what libbpf or the verifier says of it.
pub fn reason(error: &libbpf_rs::Error) -> String {
    let said = LAST_WORDS.with_borrow(String::clone);
    let locked = Root::live().text(LOCKDOWN).is_ok_and(|mode| mode.contains("[confidentiality]"));
    if locked {
        format!("{error}: not permitted with lockdown=confidentiality ({LOCKDOWN})")
    } else if said.is_empty() {
        error.to_string()
    } else {
        format!("{error}: {said}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_hears_its_own_warnings() {
        let denied = std::io::Error::from_raw_os_error(libc::EINVAL).into();
        let barrier = std::sync::Barrier::new(2);
        let heard = |words: &str| {
            let refused = listening(|| {
                barrier.wait();
                keep(PrintLevel::Warn, words.to_owned());
                barrier.wait();
                refused("loading", &denied)
            });
            barrier.wait();
            refused.to_string()
        };
        std::thread::scope(|scope| {
            let other = scope.spawn(|| heard("libbpf: one"));
            assert!(heard("libbpf: another").ends_with("another"));
            assert!(other.join().unwrap().ends_with("one"));
        });
    }

    #[test]
    fn the_last_line_of_the_verifier_is_reported() {
        let log = "libbpf: prog 'x': -- BEGIN PROG LOAD LOG --\n0: R1=ctx() R10=fp0\n\
                   unknown func bpf_probe_read#4\nprocessed 5 insns (limit 1000000)\n\
                   -- END PROG LOAD LOG --\n";
        assert_eq!(verdict_of_verifier(log), Some("unknown func bpf_probe_read#4"));
        assert_eq!(verdict_of_verifier("libbpf: failed to load object 'stages_bpf'"), None);
    }
}
