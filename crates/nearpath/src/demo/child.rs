//! Child processes of the demonstrations: this program, started again inside a namespace.
//!
//! Parent and child exchange lines of JSON over the child's standard input and output. The first line is the
//! task, which the child answers; a second line ends the child, which replies with a report of what it did.
//! If its input ends earlier, because the parent was killed, the child exits too.

use super::namespace::Namespace;
use anyhow::{Context, Result, anyhow, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

/// Child side: reads the line with the task.
///
/// # Errors
/// There is no line, for instance because a person ran the hidden command.
pub(super) fn first_line() -> Result<String> {
    let line = io::stdin().lines().next().transpose()?;
    line.ok_or_else(|| anyhow!("this command is internal to 'nearpath demo'"))
}

/// Child side: writes an answer, or why there is none.
///
/// # Errors
/// The parent has exited.
pub(super) fn say<T: Serialize>(answer: &Result<T, String>) -> Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, answer)?;
    out.write_all(b"\n")?;
    Ok(out.flush()?)
}

/// Parent side: a running child. It is killed when this is dropped.
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
                // Its own process group: Ctrl-C goes to the parent only, which then stops the load in order.
                .process_group(0)
                .spawn()
                .context("starting the demo's server")
        })?;
        let (Some(input), Some(output)) = (process.stdin.take(), process.stdout.take()) else {
            bail!("the demo's server has no input or output");
        };
        Ok(Self { process, input, output: BufReader::new(output) })
    }

    /// The process id.
    pub(super) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Ends it and returns its report.
    ///
    /// # Errors
    /// It exited earlier, for instance because it was killed.
    pub(super) fn finish<T: DeserializeOwned>(mut self) -> Result<T> {
        let report = self.ask("stop")?;
        self.process.wait().context("waiting for the demo's server")?;
        Ok(report)
    }

    /// Sends a line and waits for its answer.
    ///
    /// # Errors
    /// The child failed, or has exited.
    pub(super) fn ask<T: DeserializeOwned>(&mut self, line: &str) -> Result<T> {
        let mut answer = String::new();
        let asked =
            writeln!(self.input, "{line}").and_then(|()| self.output.read_line(&mut answer));
        match asked {
            Ok(1..) => {}
            // The other end of the pipe is closed: the exit status says more.
            _ => bail!("the demo's server exited early: {}", self.process.wait()?),
        }
        let answer: Result<T, String> = serde_json::from_str(&answer)?;
        answer.map_err(|reason| anyhow!("the demo's server: {reason}"))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // No-ops if it has exited.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
