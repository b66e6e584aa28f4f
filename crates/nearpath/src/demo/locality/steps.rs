//! The steps of the demonstration, each a plan of changes as for any server: the CPUs of workers and queues,
//! steering, RPS, XPS.
//!
//! Input: the scene and the server's namespace. Output: the changes of a step, which the executor applies.
//! There is no journal: the changes do not outlive the scene.

use super::{Receivers, Scene};
use crate::demo::veth;
use anyhow::{Context, Result, anyhow};
use nearpath_host::{Root, Wanted, thread_cpus};
use nearpath_model::{
    Change, CpuId, CpuSet, Persistence, QueueFile, QueueId, SettingFile, SocketProtocol, Target,
    Value,
};
use nearpath_tune::steering::{self, Method, Request};
use nearpath_tune::{Executor, Live};

/// A step. Each builds on the earlier ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Each worker on its own CPU.
    Workers,
    /// Each queue's packets are received on its own CPU.
    Queues,
    /// Connections go to the worker on the receiving CPU.
    Steering,
    /// Packets are processed on the receiving CPU.
    Rps,
    /// Each CPU sends on its own queue.
    Xps,
}

/// All steps, in order.
pub const STEPS: [Step; 5] = [Step::Workers, Step::Queues, Step::Steering, Step::Rps, Step::Xps];

impl Step {
    /// Its name in the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Workers => "workers pinned",
            Self::Queues => "queues pinned",
            Self::Steering => "steering",
            Self::Rps => "RPS off",
            Self::Xps => "XPS",
        }
    }

    /// Its changes, given the current state. To be called in the server's namespace.
    ///
    /// # Errors
    /// A fact that they depend on cannot be read, or they would have no effect.
    pub fn plan(self, scene: &Scene, root: &Root) -> Result<Vec<Change>> {
        match self {
            Self::Workers => workers(scene, root),
            Self::Queues => queues(scene, root),
            Self::Steering => steered(scene, root),
            Self::Rps => {
                let why = "packets are processed on the receiving CPU, not sent to another";
                masks(scene, root, QueueFile::RpsCpus, |_| CpuSet::new(), why)
            }
            Self::Xps => {
                let why = "each CPU sends on its own queue, and packets are freed on that CPU";
                let own = |cpu| [cpu].into_iter().collect();
                masks(scene, root, QueueFile::XpsCpus, own, why)
            }
        }
    }

    /// Applies its changes and returns them.
    ///
    /// # Errors
    /// As [`Step::plan`], or the kernel refused.
    pub fn apply(self, scene: &Scene) -> Result<Vec<Change>> {
        scene.in_server(|root| {
            let plan = self.plan(scene, root)?;
            Ok(Executor::without_journal(Live::new()).apply(plan)?)
        })
    }
}

fn workers(scene: &Scene, root: &Root) -> Result<Vec<Change>> {
    let why = "each worker stays on its own CPU, so that every CPU has a worker near it";
    let workers = scene.workers().into_iter().zip(scene.cpus());
    workers.map(|(pid, &cpu)| affinity(root, (pid, pid), cpu, why)).collect()
}

fn queues(scene: &Scene, root: &Root) -> Result<Vec<Change>> {
    let cpus = scene.cpus();
    match scene.receivers() {
        Receivers::Queues { server, client } => {
            let why = "the NAPI thread of each queue stays on its own CPU, like \
                       the interrupt of a NIC queue";
            let threads = [server, client].into_iter().flat_map(|side| side.iter().zip(cpus));
            threads.map(|(&tid, &cpu)| affinity(root, (tid, tid), cpu, why)).collect()
        }
        Receivers::Senders(tids) => {
            let why = "each client stays on its own CPU, and so do the packets that it sends";
            let pid = std::process::id();
            let threads = tids.iter().zip(cpus.iter().cycle());
            threads.map(|(&tid, &cpu)| affinity(root, (pid, tid), cpu, why)).collect()
        }
    }
}

fn steered(scene: &Scene, root: &Root) -> Result<Vec<Change>> {
    let host = nearpath_host::read(root, &Wanted::default()).context("cannot read the host")?;
    let address = scene.address();
    let found = steering::select(
        root,
        None,
        &Request {
            protocol: SocketProtocol::Tcp,
            port: address.port(),
            address: Some(address.ip()),
            pid: None,
        },
    )?;
    Ok(vec![steering::plan(&host.topology, &found, Method::Nearest)?])
}

/// Pins a thread, given by process and thread id, to one CPU.
fn affinity(root: &Root, (pid, tid): (u32, u32), cpu: CpuId, why: &str) -> Result<Change> {
    let gone = || anyhow!("thread {tid} of process {pid} has exited");
    let thread = nearpath_tune::find_thread(root, pid, tid).ok_or_else(gone)?;
    let before = thread_cpus(root, pid, tid).ok_or_else(gone)?;
    Ok(Change {
        target: Target::Thread(thread),
        before: Value::Text(before.to_string()),
        after: Value::Text(cpu.0.to_string()),
        why: why.to_owned(),
        persistence: Persistence::WhileRunning,
        snapshot: Vec::new(),
    })
}

/// A mask for each queue of the server's end, from the queue's number and CPU.
fn masks(
    scene: &Scene,
    root: &Root,
    file: QueueFile,
    mask: impl Fn(CpuId) -> CpuSet,
    why: &str,
) -> Result<Vec<Change>> {
    let device = veth::SERVER.device;
    let change = |(queue, &cpu)| {
        let file = SettingFile::queue(device, QueueId(queue), file);
        let before = root.text(&file.path())?;
        Ok(Change {
            target: file.in_netns(Some(scene.server_netns_inode())).into(),
            before: Value::Text(before),
            after: Value::Text(mask(cpu).to_mask()),
            why: why.to_owned(),
            persistence: Persistence::UntilReboot,
            snapshot: Vec::new(),
        })
    };
    (0..).zip(scene.cpus()).map(change).collect()
}
