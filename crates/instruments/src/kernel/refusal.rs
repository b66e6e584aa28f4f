//! Turns the kernel's errors on loading into one line, from libbpf's warnings.

use crate::InstrumentError;
use libbpf_rs::PrintLevel;
use nearpath_host::Root;
use std::sync::Mutex;

/// Path of the lockdown state (security/lockdown/lockdown.c).
const LOCKDOWN: &str = "/sys/kernel/security/lockdown";

/// libbpf's last warning while loading.
static LAST_WORDS: Mutex<String> = Mutex::new(String::new());

/// Runs `load` and captures libbpf's warnings, which would otherwise go to standard error.
pub fn listening<T>(load: impl FnOnce() -> T) -> T {
    if let Ok(mut last) = LAST_WORDS.lock() {
        last.clear();
    }
    let printer = libbpf_rs::set_print(Some((PrintLevel::Warn, remember)));
    let result = load();
    libbpf_rs::set_print(printer);
    result
}

/// Stores a warning. The verifier's message takes precedence over libbpf's.
fn remember(_level: PrintLevel, message: String) {
    let Ok(mut last) = LAST_WORDS.lock() else { return };
    if let Some(line) = verdict_of_verifier(&message) {
        *last = format!("the verifier says: {line}");
    } else if !last.starts_with("the verifier") && !message.trim().is_empty() {
        message.trim().clone_into(&mut last);
    }
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
    let said = LAST_WORDS.lock().map(|last| last.clone()).unwrap_or_default();
    let denied = error.kind() == libbpf_rs::ErrorKind::PermissionDenied;
    // The verifier also refuses with EACCES, but that concerns the program.
    if denied && !said.starts_with("the verifier") {
        return InstrumentError::Privilege("measuring packets".to_owned());
    }
    let locked = Root::live().text(LOCKDOWN).is_ok_and(|mode| mode.contains("[confidentiality]"));
    let reason = if locked {
        format!("{error}: not permitted with lockdown=confidentiality ({LOCKDOWN})")
    } else if said.is_empty() {
        error.to_string()
    } else {
        format!("{error}: {said}")
    };
    InstrumentError::Refused { step: step.to_owned(), reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_of_the_verifier_is_reported() {
        let log = "libbpf: prog 'x': -- BEGIN PROG LOAD LOG --\n0: R1=ctx() R10=fp0\n\
                   unknown func bpf_probe_read#4\nprocessed 5 insns (limit 1000000)\n\
                   -- END PROG LOAD LOG --\n";
        assert_eq!(verdict_of_verifier(log), Some("unknown func bpf_probe_read#4"));
        assert_eq!(verdict_of_verifier("libbpf: failed to load object 'stages_bpf'"), None);
    }
}
