//! The demo's server as a separate process, like real servers: its affinity is then a fact of the host that
//! the checks see. It is this program, started again inside the server's namespace.
//!
//! Input: a [`Task`]. Output: the addresses it listens on. A second line makes it wait until every connection
//! has its thread; a third line ends it, and it reports what it received.

use super::child::{Child, first_line, say};
use super::namespace::Namespace;
use anyhow::{Context, Result};
use nearpath_model::CpuSet;
use nearpath_trial::affinity;
use nearpath_trial::load::{Endpoint, LoadPlan, LoadReport, Server};
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::io;
use std::net::IpAddr;

/// The hidden subcommand that runs [`serve`].
pub(crate) const SUBCOMMAND: &str = "demo-server";

/// The task of the server.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Task {
    pub(super) plan: LoadPlan,
    pub(super) addresses: Vec<IpAddr>,
    pub(super) cpus: CpuSet,
}

/// Child side.
///
/// # Errors
/// The task cannot be read or done; the reason is reported to the parent.
pub(crate) fn serve() -> Result<()> {
    rustix::thread::set_name(c"demo-server").context("naming the server")?;
    let task = first_line()?;
    let started = start(&task);
    let endpoints = started.as_ref().map(|server| server.endpoints().to_vec());
    say(&endpoints.map_err(|error| format!("{error:#}")))?;
    let Ok(server) = started else { return Ok(()) };
    let mut lines = io::stdin().lines();
    if lines.next().transpose()?.is_none() {
        return Ok(());
    }
    say(&server.wait_for_readers().map_err(|error| error.to_string()))?;
    if lines.next().transpose()?.is_none() {
        return Ok(());
    }
    say(&Ok::<_, String>(server.finish()))
}

fn start(task: &str) -> Result<Server> {
    let task: Task = serde_json::from_str(task).context("cannot parse the task")?;
    affinity::pin(&task.cpus)?;
    Ok(Server::start(&task.plan, &task.addresses, &task.cpus)?)
}

/// Parent side: a running server. It is killed when this is dropped.
#[derive(Debug)]
pub(super) struct Reader {
    child: Child,
    endpoints: Vec<Endpoint>,
}

impl Reader {
    /// Starts `program` as the server inside a namespace.
    ///
    /// # Errors
    /// The program cannot be started, or the server cannot do its task.
    pub(super) fn start(namespace: &Namespace, program: &OsStr, task: &Task) -> Result<Self> {
        let mut child = Child::start(namespace, program, SUBCOMMAND)?;
        let endpoints = child.ask(&serde_json::to_string(task)?)?;
        Ok(Self { child, endpoints })
    }

    /// The addresses it listens on.
    pub(super) fn endpoints(&self) -> &[Endpoint] {
        &self.endpoints
    }

    /// Waits until each connection of the client has its own reader thread: after that its threads do not
    /// change.
    ///
    /// # Errors
    /// Some connections are missing, or the server has exited.
    pub(super) fn wait_for_threads(&mut self) -> Result<()> {
        self.child.ask("wait")
    }

    /// Its process id.
    pub(super) fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Ends it and returns what it received.
    ///
    /// # Errors
    /// It exited earlier, for instance because it was killed.
    pub(super) fn finish(self) -> Result<LoadReport> {
        self.child.finish()
    }
}
