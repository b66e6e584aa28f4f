//! The record of skipped tests.
//!
//! Goes in: the reason that a test cannot run here. Comes out: a line on standard error and,
//! where `NEARPATH_SKIP_LOG` names a file, one line `test<TAB>reason` at its end, from which
//! `make test` counts.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;

/// Records that the calling test is skipped, and why; the caller then returns.
///
/// Tests skipped for the same cause give the same `reason`, word for word: they are counted
/// by it. Keep it short: `no root`, `ethtool is not on the PATH`.
///
/// # Panics
/// If the log that `NEARPATH_SKIP_LOG` names cannot be written: a skip that is not counted
/// would look like a pass.
#[expect(clippy::print_stderr, reason = "the test harness shows it beside the test")]
pub fn skip(reason: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("unnamed test");
    eprintln!("skipped: {test}: {reason}");
    if let Some(log) = std::env::var_os("NEARPATH_SKIP_LOG") {
        let log = Path::new(&log);
        if let Err(error) = record(log, test, reason) {
            panic!("{}: the skipped test cannot be recorded: {error}", log.display());
        }
    }
}

/// Appends one line in a single write, so that test threads and processes do not mix theirs.
fn record(log: &Path, test: &str, reason: &str) -> io::Result<()> {
    let one_line = |text: &str| text.replace(['\n', '\t'], " ");
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
}
