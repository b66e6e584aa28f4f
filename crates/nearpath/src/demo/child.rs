//! Processes of the demonstrations: this program, started again within a namespace.
//!
//! The two talk in lines of JSON over the child's standard input and output: in goes a task, out comes
//! an answer to it; a second line ends the child, out comes what it did. When its input ends before
//! that, because the parent was killed, it ends too.

use super::namespace::Namespace;
use anyhow::{Context, Result, anyhow, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

/// The child's side: the line with its task.
///
/// # Errors
/// There is none, as when a person runs the hidden command.
pub(super) fn first_line() -> Result<String> {
    let line = io::stdin().lines().next().transpose()?;
    line.ok_or_else(|| anyhow!("this command is a part of 'nearpath demo'"))
}

/// The child's side: an answer, or why there is none.
///
/// # Errors
/// The parent has gone.
pub(super) fn say<T: Serialize>(answer: &Result<T, String>) -> Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, answer)?;
    out.write_all(b"\n")?;
    Ok(out.flush()?)
}

/// The parent's side: a running child. Dropped it is killed.
#[derive(Debug)]
pub(super) struct Child {
    process: std::process::Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Child {
    /// Starts `program` with a hidden subcommand within a namespace.
    ///
    /// # Errors
    /// The program cannot be started.
    pub(super) fn start(namespace: &Namespace, program: &OsStr, subcommand: &str) -> Result<Self> {
        let mut process = namespace.run(|| {
            Command::new(program)
                .arg(subcommand)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                // A group of its own: ^C is for the parent, which then ends the load in order.
                .process_group(0)
                .spawn()
                .context("starting the demo's server")
        })?;
        let (Some(input), Some(output)) = (process.stdin.take(), process.stdout.take()) else {
            bail!("the demo's server has no input or output");
        };
        Ok(Self { process, input, output: BufReader::new(output) })
    }

    /// Its process id.
    pub(super) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Ends it; what it did.
    ///
    /// # Errors
    /// It ended before, for instance because somebody killed it.
    pub(super) fn finish<T: DeserializeOwned>(mut self) -> Result<T> {
        let report = self.ask("stop")?;
        self.process.wait().context("waiting for the demo's server")?;
        Ok(report)
    }

    /// Sends a line and waits for the answer.
    ///
    /// # Errors
    /// The child could not do it, or has ended.
    pub(super) fn ask<T: DeserializeOwned>(&mut self, line: &str) -> Result<T> {
        let mut answer = String::new();
        let asked =
            writeln!(self.input, "{line}").and_then(|()| self.output.read_line(&mut answer));
        match asked {
            Ok(1..) => {}
            // A pipe without its other end: the process says more by how it ended.
            _ => bail!("the demo's server ended too early: {}", self.process.wait()?),
        }
        let answer: Result<T, String> = serde_json::from_str(&answer)?;
        answer.map_err(|reason| anyhow!("the demo's server: {reason}"))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Both do nothing when it has ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
