//! Whether this machine runs programs of BPF wherever it calls tracepoints. The kernels of some sandboxes do not run
//! them on behalf of their first process (`current->tgid == 1` at the start of `bpf_trace_run`), nor do they count
//! this as a miss: while one of its threads is on a CPU, the softirqs that interrupt it are not seen there.
//!
//! Input: a trial. Output: its result, if a program on the tracepoint `irq/softirq_entry` was run as often as perf
//! counted calls of this tracepoint.

use crate::bpf::Counted;
use crate::calls::Calls;
use std::io;

/// Both counts of softirqs.
#[derive(Debug)]
struct Canary {
    program: Counted,
    calls: Calls,
    /// Calls and runs at the start.
    before: (u64, u64),
}

impl Canary {
    fn begin() -> io::Result<Self> {
        let program = Counted::attach(c"softirq_entry")?;
        let mut calls = Calls::begin("irq/softirq_entry", "")?;
        let before = (calls.count()?, program.runs()?);
        Ok(Self { program, calls, before })
    }

    /// Softirqs in which no program was run, and one or two that came between the two readings.
    fn hidden(mut self) -> io::Result<u64> {
        let runs = self.program.runs()? - self.before.1;
        Ok((self.calls.count()? - self.before.0).saturating_sub(runs))
    }
}

/// Runs a trial whose counts must be exact, once. A difference is a failure, unless the machine hid softirqs from
/// programs in the same run: then the test is skipped with their number, and there is no result.
///
/// # Panics
/// If the trial fails, and no softirq was hidden.
pub fn counted<T>(trial: impl FnOnce() -> Result<T, String>) -> Option<T> {
    let canary = Canary::begin();
    let wrong = match trial() {
        Ok(result) => return Some(result),
        Err(wrong) => wrong,
    };
    match canary.and_then(Canary::hidden) {
        Ok(0) => panic!("{wrong}\n(this machine hid no softirqs)"),
        Err(error) => panic!("{wrong}\n(whether this machine hid softirqs is unknown: {error})"),
        Ok(hidden) => {
            crate::skip(&format!("this machine hid {hidden} softirqs from BPF: {wrong}"));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn most_softirqs_are_seen_by_programs() {
        if !crate::require_bpf() {
            return;
        }
        let canary = match Canary::begin() {
            Ok(canary) => canary,
            Err(reason) => return crate::skip(&format!("no perf counters ({reason})")),
        };
        std::thread::sleep(Duration::from_millis(200));
        let seen = canary.program.runs().unwrap() - canary.before.1;
        assert!(seen > 0, "timers go on");
        let hidden = canary.hidden().unwrap();
        assert!(hidden < seen, "{hidden} hidden, {seen} seen: an excuse for everything");
    }

    #[test]
    fn a_difference_is_not_a_result() {
        let failed = || counted(|| Err::<(), _>("one is missing".to_owned()));
        match std::panic::catch_unwind(failed) {
            Ok(result) => assert_eq!(result, None),
            Err(panic) => {
                assert!(panic.downcast_ref::<String>().unwrap().contains("one is missing"))
            }
        }
        assert_eq!(counted(|| Ok::<_, String>(1)), Some(1));
    }
}
