//! A worker of the demo's server as a separate process, as in nginx: this program, started again inside the
//! server's namespace.
//!
//! Input: a [`Task`]. Output: the address it listens on. A second line ends it; it replies with its report.

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

/// The task of a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Task {
    pub(super) load: ConnectionLoad,
    pub(super) address: SocketAddr,
}

/// Child side.
///
/// # Errors
/// The task cannot be read or done; the reason is reported to the parent.
pub(crate) fn serve() -> Result<()> {
    rustix::thread::set_name(c"demo-worker").context("naming the worker")?;
    let task = first_line()?;
    let started = start(&task);
    let address = started.as_ref().map(|(_, address)| *address);
    say(&address.map_err(|error| format!("{error:#}")))?;
    let Ok((worker, _)) = started else { return Ok(()) };
    // The parent writes a line, or exits, which closes the pipe.
    let report = worker.serve(io::stdin().as_fd()).map_err(|error| error.to_string());
    match io::stdin().lines().next().transpose()? {
        Some(_) => say(&report),
        None => Ok(()),
    }
}

fn start(task: &str) -> Result<(Worker, SocketAddr)> {
    let task: Task = serde_json::from_str(task).context("cannot parse the task")?;
    let worker = Worker::listen(task.address, &task.load)?;
    let address = worker.address()?;
    Ok((worker, address))
}

/// Parent side: running workers that share a port. They are killed when this is dropped.
#[derive(Debug)]
pub(super) struct Workers {
    workers: Vec<Child>,
    address: SocketAddr,
}

impl Workers {
    /// Starts the workers inside a namespace. With port 0 the kernel picks one for the first worker, and the
    /// others use the same.
    ///
    /// # Errors
    /// The program cannot be started, or a worker cannot do its task.
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

    /// The address that all of them listen on.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Their process ids. Each has one thread.
    pub(super) fn pids(&self) -> Vec<u32> {
        self.workers.iter().map(Child::pid).collect()
    }

    /// Ends them and returns their reports.
    ///
    /// # Errors
    /// One exited earlier, for instance because it was killed.
    pub(super) fn finish(self) -> Result<Vec<WorkerReport>> {
        self.workers.into_iter().map(Child::finish).collect()
    }
}
