//! The demo's server as a process of its own, as servers are: its affinity is then a fact of the
//! host that the checks see. It is this program, started again within the server's namespace.
//!
//! The two talk in lines of JSON over the child's standard input and output: in goes a [`Task`],
//! out comes where it listens; a second line ends it, out comes what arrived. When its input ends
//! before that, because the parent was killed, it ends too.

use super::namespace::Namespace;
use anyhow::{Context, Result, anyhow, bail};
use nearpath_host::CpuSet;
use nearpath_trial::affinity;
use nearpath_trial::load::{Endpoint, LoadPlan, LoadReport, Server};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Write};
use std::net::IpAddr;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The hidden subcommand that runs [`serve`].
pub(crate) const SUBCOMMAND: &str = "demo-server";

/// What the server is to do.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Task {
    pub(super) plan: LoadPlan,
    pub(super) addresses: Vec<IpAddr>,
    pub(super) cpus: CpuSet,
}

/// The child's side.
///
/// # Errors
/// The task cannot be read or done; the parent is told why.
pub(crate) fn serve() -> Result<()> {
    rustix::thread::set_name(c"demo-server").context("naming the server")?;
    let mut lines = io::stdin().lock().lines();
    let mut line = || lines.next().transpose();
    let task = line()?.ok_or_else(|| anyhow!("this command is a part of 'nearpath demo'"))?;
    let started = start(&task);
    let endpoints = started.as_ref().map(|server| server.endpoints().to_vec());
    say(&endpoints.map_err(|error| format!("{error:#}")))?;
    match (started, line()?) {
        (Ok(server), Some(_)) => say(&Ok::<_, String>(server.finish())),
        _ => Ok(()),
    }
}

fn start(task: &str) -> Result<Server> {
    let task: Task = serde_json::from_str(task).context("reading what to serve")?;
    affinity::pin(&task.cpus)?;
    Ok(Server::start(&task.plan, &task.addresses, &task.cpus)?)
}

fn say<T: Serialize>(answer: &Result<T, String>) -> Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, answer)?;
    out.write_all(b"\n")?;
    Ok(out.flush()?)
}

/// The parent's side: a running server. Dropped it is killed.
#[derive(Debug)]
pub(super) struct Reader {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    endpoints: Vec<Endpoint>,
}

impl Reader {
    /// Starts `program` as the server within a namespace.
    ///
    /// # Errors
    /// The program cannot be started, or the task not be done.
    pub(super) fn start(namespace: &Namespace, program: &OsStr, task: &Task) -> Result<Self> {
        let mut child = namespace.run(|| {
            Command::new(program)
                .arg(SUBCOMMAND)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                // A group of its own: ^C is for the parent, which then ends the load in order.
                .process_group(0)
                .spawn()
                .context("starting the demo's server")
        })?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("the demo's server has no input or output");
        };
        let output = BufReader::new(output);
        let mut reader = Self { child, input, output, endpoints: Vec::new() };
        reader.endpoints = reader.ask(&serde_json::to_string(task)?)?;
        Ok(reader)
    }

    /// Where it listens.
    pub(super) fn endpoints(&self) -> &[Endpoint] {
        &self.endpoints
    }

    /// Its process id.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it; what arrived.
    ///
    /// # Errors
    /// It ended before, for instance because somebody killed it.
    pub(super) fn finish(mut self) -> Result<LoadReport> {
        let report = self.ask("stop")?;
        self.child.wait().context("waiting for the demo's server")?;
        Ok(report)
    }

    fn ask<T: DeserializeOwned>(&mut self, line: &str) -> Result<T> {
        let mut answer = String::new();
        let asked =
            writeln!(self.input, "{line}").and_then(|()| self.output.read_line(&mut answer));
        match asked {
            Ok(1..) => {}
            // A pipe without its other end: the process says more by how it ended.
            _ => bail!("the demo's server ended too early: {}", self.child.wait()?),
        }
        let answer: Result<T, String> = serde_json::from_str(&answer)?;
        answer.map_err(|reason| anyhow!("the demo's server: {reason}"))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // Both do nothing when it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
