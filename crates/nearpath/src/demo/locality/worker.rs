//! A worker of the demo's server as a process of its own, as nginx has them: this program, started
//! again within the server's namespace.
//!
//! In goes a [`Task`], out comes where it listens; a second line ends it, out comes what it did.

use crate::demo::child::{Child, first_line, say};
use crate::demo::namespace::Namespace;
use anyhow::{Context, Result};
use nearpath_trial::load::{ConnectionLoad, Worker, WorkerReport};
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

/// The hidden subcommand that runs [`serve`].
pub(crate) const SUBCOMMAND: &str = "demo-worker";

/// What a worker is to do.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Task {
    pub(super) load: ConnectionLoad,
    pub(super) address: SocketAddr,
}

/// The child's side.
///
/// # Errors
/// The task cannot be read or done; the parent is told why.
pub(crate) fn serve() -> Result<()> {
    rustix::thread::set_name(c"demo-worker").context("naming the worker")?;
    let task = first_line()?;
    let started = start(&task);
    let address = started.as_ref().map(|(_, address)| *address);
    say(&address.map_err(|error| format!("{error:#}")))?;
    let Ok((worker, _)) = started else { return Ok(()) };
    // The parent writes a line, or its end of the pipe goes away with it.
    let report = worker.serve(io::stdin().as_fd()).map_err(|error| error.to_string());
    match io::stdin().lines().next().transpose()? {
        Some(_) => say(&report),
        None => Ok(()),
    }
}

fn start(task: &str) -> Result<(Worker, SocketAddr)> {
    let task: Task = serde_json::from_str(task).context("reading what to serve")?;
    let worker = Worker::listen(task.address, &task.load)?;
    let address = worker.address()?;
    Ok((worker, address))
}

/// The parent's side: running workers that share a port. Dropped they are killed.
#[derive(Debug)]
pub(super) struct Workers {
    workers: Vec<Child>,
    address: SocketAddr,
}

impl Workers {
    /// Starts so many within a namespace. With port 0 the first gets one of the kernel's choice, and
    /// the others the same.
    ///
    /// # Errors
    /// The program cannot be started, or the task not be done.
    pub(super) fn start(
        namespace: &Namespace,
        program: &OsStr,
        task: &Task,
        count: usize,
    ) -> Result<Self> {
        let mut started = Self { workers: Vec::new(), address: task.address };
        for _ in 0..count {
            let mut child = Child::start(namespace, program, SUBCOMMAND)?;
            let task = Task { load: task.load.clone(), address: started.address };
            started.address = child.ask(&serde_json::to_string(&task)?)?;
            started.workers.push(child);
        }
        Ok(started)
    }

    /// Where all of them listen.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Their process ids. Each has one thread.
    pub(super) fn pids(&self) -> Vec<u32> {
        self.workers.iter().map(Child::pid).collect()
    }

    /// Ends them; what each did.
    ///
    /// # Errors
    /// One ended before, for instance because somebody killed it.
    pub(super) fn finish(self) -> Result<Vec<WorkerReport>> {
        self.workers.into_iter().map(Child::finish).collect()
    }
}
