//! Failures of a command, and their message: one line on standard error.

use nearpath_views::text::printable;
use std::io::Write;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Lines on standard error so far.
static SAID: AtomicUsize = AtomicUsize::new(0);

/// Statuses of `diagnose --exit-code` where others are 1 and 2, which report findings there.
const ERROR: u8 = 3;
const WRONG_USAGE: u8 = 4;

/// Why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// Options that cannot be combined: exit status 2.
    Usage(String),
    /// An outcome of clap for a command (`nearpath show`): requested help or version (status 0), or wrong
    /// usage (2).
    Clap(Box<clap::Error>, String),
    /// The command failed: exit status 1.
    Error(anyhow::Error),
    /// The command succeeded, and its exit status reports what it found (`--exit-code`).
    Found(u8),
    /// Another failure of `diagnose --exit-code`, whose status must differ from those of findings: [`ERROR`] or
    /// [`WRONG_USAGE`].
    NotDiagnosed(Box<Failure>),
    /// The reader of the output closed the pipe (`| head`); not an error.
    BrokenPipe,
}

impl Failure {
    /// Prints the message and returns the exit status.
    pub fn report(self) -> ExitCode {
        match self {
            Self::Usage(message) => {
                say(&message);
                ExitCode::from(2)
            }
            Self::Clap(error, command) => report_clap(&error, &command),
            Self::Error(error) => {
                say(&format!("{error:#}"));
                ExitCode::FAILURE
            }
            Self::Found(status) => ExitCode::from(status),
            Self::NotDiagnosed(failure) => {
                let is_success = failure.is_success();
                let is_usage = matches!(*failure, Self::Usage(_) | Self::Clap(..));
                let status = failure.report();
                match (is_success, is_usage) {
                    (true, _) => status,
                    (false, true) => ExitCode::from(WRONG_USAGE),
                    (false, false) => ExitCode::from(ERROR),
                }
            }
            Self::BrokenPipe => ExitCode::SUCCESS,
        }
    }
}

impl Failure {
    /// Whether the exit status is 0: help or the version was requested, or the reader of the output has enough.
    fn is_success(&self) -> bool {
        match self {
            Self::Clap(error, _) => !error.use_stderr(),
            Self::BrokenPipe => true,
            _ => false,
        }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Error(error)
    }
}

/// Prints `nearpath: message` as one line on standard error. Errors are ignored, as there is nowhere left to
/// report them.
pub fn say(message: &str) {
    SAID.fetch_add(1, Ordering::Relaxed);
    let one_line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    let _ = writeln!(std::io::stderr(), "nearpath: {}", printable(&one_line));
}

/// How many lines [`say`] has printed: they are on the screen with what follows.
pub fn lines_said() -> usize {
    SAID.load(Ordering::Relaxed)
}

fn report_clap(error: &clap::Error, command: &str) -> ExitCode {
    use clap::error::ErrorKind::{
        DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion,
    };
    match error.kind() {
        DisplayHelp | DisplayVersion => match error.print() {
            Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
                say(&format!("cannot write to standard output: {error}"));
                ExitCode::FAILURE
            }
            _ => ExitCode::SUCCESS,
        },
        DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            ExitCode::from(2)
        }
        _ => {
            say(&usage_line(&error.to_string(), command));
            ExitCode::from(2)
        }
    }
}

/// Joins clap's lines into one: the error, its tip, and a pointer to the help.
fn usage_line(message: &str, command: &str) -> String {
    let said = message
        .lines()
        .map(str::trim)
        .take_while(|line| {
            !line.starts_with("Usage: ") && !line.starts_with("For more information")
        })
        .filter(|line| !line.is_empty())
        .map(|line| line.trim_start_matches("error: "));
    let said = said.collect::<Vec<_>>().join(" ").replace(" tip: ", "; ");
    format!("{said}; see '{command} --help'")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_errors_are_one_line() {
        let message = "error: unexpected argument '--jsn' found\n\n  tip: a similar argument \
                       exists: '--json'\n\nUsage: nearpath show --json [SUBJECT]\n\nFor more \
                       information, try '--help'.\n";
        assert_eq!(
            usage_line(message, "nearpath show"),
            "unexpected argument '--jsn' found; a similar argument exists: '--json'; see \
             'nearpath show --help'"
        );
    }
}
