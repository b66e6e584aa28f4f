//! A program that runs beside its test.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// Starts a program, with its output to be read, and waits for the first line of its standard error.
///
/// # Panics
/// The line does not contain `said`, or the program cannot be started.
#[allow(clippy::unwrap_used, reason = "part of tests")]
pub fn begin(command: &mut Command, said: &str) -> Child {
    let piped = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains(said), "{line}");
    child
}
