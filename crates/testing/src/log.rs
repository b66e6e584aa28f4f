//! The log of skipped tests.
//!
//! Input: the calling test, and the reason. Output: a line on standard error and, if
//! `NEARPATH_SKIP_LOG` names a file, one line `test<TAB>reason` appended to it, which `make test` counts.

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
#[expect(clippy::print_stderr, reason = "the test harness shows it beside the test")]
pub fn skip(reason: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("unnamed test");
    let reason: String = one_line(reason).chars().take(LONGEST).collect();
    eprintln!("skipped: {test}: {reason}");
    if let Some(log) = std::env::var_os("NEARPATH_SKIP_LOG") {
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
}
