//! The logs of skipped tests and of reruns.
//!
//! Input: the calling test, and the reason. Output: a line on standard error and, if an
//! environment variable names a file, one line `test<TAB>reason` appended to it, which `make test` counts.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;

/// Characters of a reason that are logged.
const LONGEST: usize = 200;

/// Records that the calling test is skipped, and why; the caller then returns.
///
/// Tests skipped for the same cause pass the same `reason`, word for word, since skips are counted
/// by it. Keep it short: `no root`, `ethtool is not on the PATH`.
///
/// # Panics
/// If the log `NEARPATH_SKIP_LOG` cannot be written: a skip that is not counted
/// would look like a pass.
pub fn skip(reason: &str) {
    report("skipped", "NEARPATH_SKIP_LOG", reason);
}

/// Records that the calling test retries after a failure, and the failure.
///
/// # Panics
/// If the log `NEARPATH_RERUN_LOG` cannot be written: a failure that is not counted would
/// look like none.
pub fn rerun(cause: &str) {
    report("run again", "NEARPATH_RERUN_LOG", cause);
}

/// Tries up to `times` times until `trial` succeeds. Each failure but the last is recorded with its cause.
///
/// Only for what a machine may disturb, and if a fault of nearpath would show each time.
///
/// # Panics
/// If all fail, with each failure.
pub fn up_to<T>(times: usize, trial: impl FnMut() -> Result<T, String>) -> T {
    retry(times, trial, rerun)
}

/// Like [`up_to`]; `rerun` records a failure.
fn retry<T>(
    times: usize,
    mut trial: impl FnMut() -> Result<T, String>,
    mut rerun: impl FnMut(&str),
) -> T {
    let mut wrong = Vec::new();
    loop {
        match trial() {
            Ok(result) => return result,
            Err(cause) => wrong.push(cause),
        }
        assert!(wrong.len() < times, "wrong each time:\n{}", wrong.join("\n"));
        rerun(&wrong[wrong.len() - 1]);
    }
}

#[expect(clippy::print_stderr, reason = "the test harness shows it beside the test")]
fn report(what: &str, log: &str, reason: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("unnamed test");
    let reason: String = one_line(reason).chars().take(LONGEST).collect();
    eprintln!("{what}: {test}: {reason}");
    if let Some(log) = std::env::var_os(log) {
        let log = Path::new(&log);
        if let Err(error) = record(log, test, &reason) {
            panic!("{}: cannot be written: {error}", log.display());
        }
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Appends one line in a single write, so that lines of test threads and processes do not mix.
fn record(log: &Path, test: &str, reason: &str) -> io::Result<()> {
    let line = format!("{}\t{}\n", one_line(test), one_line(reason));
    OpenOptions::new().append(true).create(true).open(log)?.write_all(line.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_skip_is_one_line() {
        let log = std::env::temp_dir().join(format!("nearpath-skip-{}", std::process::id()));
        record(&log, "a::test", "no root").unwrap();
        record(&log, "b", "two\nlines\tand a tab").unwrap();
        let written = std::fs::read_to_string(&log).unwrap();
        std::fs::remove_file(&log).unwrap();
        assert_eq!(written, "a::test\tno root\nb\ttwo lines and a tab\n");
    }

    #[test]
    fn a_log_that_cannot_be_written_is_an_error() {
        assert!(record(Path::new("/proc/no/such/folder"), "a", "b").is_err());
    }

    #[test]
    fn a_failure_is_retried_up_to_the_limit() {
        let mut tries = 0;
        let mut fails_until = |last: usize| {
            tries += 1;
            if tries < last { Err(format!("try {tries}")) } else { Ok(tries) }
        };
        // Not into the log of this run: `make test` would count them.
        let mut causes = Vec::new();
        assert_eq!(retry(3, || fails_until(3), |cause| causes.push(cause.to_owned())), 3);
        assert_eq!(causes, ["try 1", "try 2"], "each is recorded with its cause");
    }

    #[test]
    #[should_panic(expected = "wrong each time:\nfirst\nfirst")]
    fn a_persistent_failure_fails_the_test() {
        retry(2, || Err::<(), _>("first".to_owned()), |_| ());
    }
}
