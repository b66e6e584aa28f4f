//! The demo's server as a process of its own, as servers are: its affinity is then a fact of the
//! host that the checks see. It is this program, started again within the server's namespace.
//!
//! In goes a [`Task`], out comes where it listens; a second line has it wait until each connection has
//! its thread; a third one ends it, out comes what arrived.

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
    let task: Task = serde_json::from_str(task).context("reading what to serve")?;
    affinity::pin(&task.cpus)?;
    Ok(Server::start(&task.plan, &task.addresses, &task.cpus)?)
}

/// The parent's side: a running server. Dropped it is killed.
#[derive(Debug)]
pub(super) struct Reader {
    child: Child,
    endpoints: Vec<Endpoint>,
}

impl Reader {
    /// Starts `program` as the server within a namespace.
    ///
    /// # Errors
    /// The program cannot be started, or the task not be done.
    pub(super) fn start(namespace: &Namespace, program: &OsStr, task: &Task) -> Result<Self> {
        let mut child = Child::start(namespace, program, SUBCOMMAND)?;
        let endpoints = child.ask(&serde_json::to_string(task)?)?;
        Ok(Self { child, endpoints })
    }

    /// Where it listens.
    pub(super) fn endpoints(&self) -> &[Endpoint] {
        &self.endpoints
    }

    /// Waits until each connection of the client is read by a thread of its own: from then on its threads
    /// are the same.
    ///
    /// # Errors
    /// Some connections do not come, or it has ended.
    pub(super) fn wait_for_threads(&mut self) -> Result<()> {
        self.child.ask("wait")
    }

    /// Its process id.
    pub(super) fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Ends it; what arrived.
    ///
    /// # Errors
    /// It ended before, for instance because somebody killed it.
    pub(super) fn finish(self) -> Result<LoadReport> {
        self.child.finish()
    }
}
