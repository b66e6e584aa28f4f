//! The scene of `nearpath demo locality`: a server whose workers share a port in one namespace, and clients in
//! another. What decides where packets and connections go is fixed step by step.
//!
//! ```text
//! namespace of the client             namespace of the server
//!   callers ─ demo-client ══ veth ══ demo-server ─ NAPI threads ─ RPS ─► REUSEPORT ─► workers
//!   (threads of this process)         (one a queue)                      (processes demo-worker)
//! ```
//! Input: the host. Output: a running load, and the [`steps`] to apply. Nothing has a name outside this
//! process: namespaces, devices, threads and sockets disappear with it, even when it is killed.

pub mod measure;
mod napi;
pub mod steps;
pub(crate) mod worker;

use super::namespace::Namespace;
use super::{rps, usable_cpus, veth};
use anyhow::{Context, Result, anyhow};
use nearpath_host::{NetnsRef, Root, in_netns};
use nearpath_model::{CpuId, CpuSet, Host};
use nearpath_trial::load::{Callers, CallersReport, ConnectionLoad};
use std::ffi::OsStr;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;
use worker::{Task, Workers};

/// More workers would show nothing more, and each needs threads and queues.
const MAX_CPUS: usize = 8;
/// Poll interval while waiting for earlier connections to end.
const LOOK: Duration = Duration::from_millis(5);
/// Polls until a path counts as broken (a minute), and until connections are left to the kernel (ten
/// seconds).
const LOOKS: u32 = 12_000;
const LOOKS_AT_END: u32 = 2_000;

/// The running scene. If it is dropped without [`Scene::stop`], it disappears without a check.
#[derive(Debug)]
pub struct Scene {
    // Dropped in this order: the load before its path.
    callers: Callers,
    workers: Workers,
    client: Namespace,
    server: Namespace,
    cpus: Vec<CpuId>,
    receivers: Receivers,
    load: ConnectionLoad,
    story: Vec<String>,
}

/// The threads that determine on which CPU packets are received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Receivers {
    /// One thread per queue, at the server's end and at the client's end. The latter handle what the server
    /// sent on the queue of the same number, like the completion interrupt of a NIC.
    Queues {
        /// By receive queue of the server's end.
        server: Vec<u32>,
        /// By receive queue of the client's end.
        client: Vec<u32>,
    },
    /// The sending threads, where queues have no threads.
    Senders(Vec<u32>),
}

impl Scene {
    /// Creates namespaces and path, sets RPS as a host may have it, starts workers and callers.
    /// `program` is nearpath itself, which is started again for each worker.
    ///
    /// # Errors
    /// No privilege, a kernel without namespaces or veth, or a path that does not carry.
    pub fn start(host: &Host, program: &OsStr) -> Result<Self> {
        let usable = usable_cpus(host).context("cannot read the usable CPUs")?;
        let cpus = spread(&usable, MAX_CPUS);
        if cpus.is_empty() {
            return Err(anyhow!("no usable CPU"));
        }
        let queues = u32::try_from(cpus.len()).unwrap_or(u32::MAX);
        let (client, server) = (Namespace::create()?, Namespace::create()?);
        veth::create(&client, &server, queues)?;
        let mut story = Vec::new();
        let threads = connect(&client, &server, cpus.len())?;
        let before = as_found(&cpus);
        if let Some(rps) = &before
            && let Err(reason) = rps::steer(&server, veth::SERVER.device, queues, rps)
        {
            story.push(format!("RPS stays off: {reason:#}"));
        }
        let load = ConnectionLoad::moderate(cpus.len());
        let address = SocketAddr::new(IpAddr::V4(veth::SERVER.ipv4), 0);
        let task = Task { load: load.clone(), address };
        let workers = Workers::start(&server, program, &task, cpus.len())?;
        let callers = client.run(|| Ok(Callers::start(&load, workers.address(), &usable)?))?;
        let receivers = match threads {
            Ok((server, client)) => Receivers::Queues { server, client },
            Err(reason) => {
                story.push(format!(
                    "no threaded NAPI: packets are received on the CPU that sends them: \
                     {reason:#}"
                ));
                Receivers::Senders(callers.tids())
            }
        };
        let mut scene =
            Self { callers, workers, client, server, cpus, receivers, load, story: Vec::new() };
        scene.story = [scene.built(), scene.planned()].into_iter().chain(story).collect();
        Ok(scene)
    }

    /// What was created, one line each, for display.
    pub fn story(&self) -> &[String] {
        &self.story
    }

    /// The CPUs that workers, queues and threads are spread over, finally one each.
    pub fn cpus(&self) -> &[CpuId] {
        &self.cpus
    }

    /// The threads that determine where packets are received.
    pub fn receivers(&self) -> &Receivers {
        &self.receivers
    }

    /// Where the server listens.
    pub fn address(&self) -> SocketAddr {
        self.workers.address()
    }

    /// Process ids of the workers.
    pub fn workers(&self) -> Vec<u32> {
        self.workers.pids()
    }

    /// Inode of the server's namespace, which identifies it.
    pub fn server_netns_inode(&self) -> u64 {
        self.server.inode()
    }

    /// Runs `work` on a new thread in the server's namespace.
    ///
    /// # Errors
    /// The namespace cannot be entered, or `work` fails.
    pub fn in_server<T: Send>(&self, work: impl FnOnce(&Root) -> Result<T> + Send) -> Result<T> {
        let netns = self.server_netns().context("the demo's namespace")?;
        in_netns(&NetnsRef::Fd(netns), |root| work(&root)).context("the demo's namespace")?
    }

    fn server_netns(&self) -> io::Result<OwnedFd> {
        self.server.file().try_clone_to_owned()
    }

    /// Waits until every current connection has ended, so that all connections measured afterwards were made
    /// under the current settings. `wait` sleeps for the given time, and returns whether to stop waiting.
    ///
    /// # Errors
    /// Connections do not end: the path does not work.
    pub fn settle(&self, wait: impl Fn(Duration) -> bool) -> Result<()> {
        let before = self.callers.ended();
        for _ in 0..LOOKS {
            // The first one that ends may have begun earlier.
            let ended = self.callers.ended().into_iter().zip(&before);
            if ended.into_iter().all(|(now, before)| now >= before + 2) || wait(LOOK) {
                return Ok(());
            }
        }
        Err(anyhow!("connections do not reach the demo's server"))
    }

    /// Stops the load, removes the path, and verifies that it is gone.
    ///
    /// # Errors
    /// A worker exited earlier, or something is left.
    pub fn stop(self) -> Result<CallersReport> {
        let report = self.callers.finish();
        let ended = [&self.client, &self.server].into_iter().try_for_each(all_ended);
        let workers = self.workers.finish();
        veth::delete(&self.client, &self.server)?;
        workers?;
        ended?;
        Ok(report)
    }

    fn built(&self) -> String {
        format!(
            "created two network namespaces, net:[{}] and net:[{}], joined by the veth pair {} and {} \
             with {} queues each, and a server of {} workers that share {}",
            self.client.inode(),
            self.server.inode(),
            veth::CLIENT.device,
            veth::SERVER.device,
            self.cpus.len(),
            self.workers.pids().len(),
            self.address(),
        )
    }

    fn planned(&self) -> String {
        let ConnectionLoad { callers, rate_hz, requests, request_bytes, response_bytes } =
            self.load;
        let rate = u32::from(callers) * rate_hz;
        format!(
            "load: {rate} connections/s of {requests} requests each, {request_bytes} byte requests, \
             {response_bytes} byte responses"
        )
    }
}

type Threads = (Vec<u32>, Vec<u32>);

/// Brings both ends up, with threaded NAPI where the kernel has it; the inner error is why not.
fn connect(client: &Namespace, server: &Namespace, queues: usize) -> Result<Result<Threads>> {
    let ends = [(client, veth::CLIENT), (server, veth::SERVER)];
    let prepared: Result<()> = ends.iter().try_for_each(|(of, end)| napi::prepare(of, *end));
    for (of, end) in ends {
        veth::set_up(of, end, None)?;
    }
    let threads = prepared.and_then(|()| {
        let at_client = napi::start(client, veth::CLIENT, queues)?;
        Ok((napi::start(server, veth::SERVER, queues)?, at_client))
    });
    if threads.is_err() {
        ends.iter().for_each(|(of, end)| napi::abandon(of, *end));
    }
    Ok(threads)
}

/// Waits until all connections of a namespace are acknowledged. Without the path, the kernel would retransmit
/// their last packet for a minute or two, and keep the namespace alive.
fn all_ended(namespace: &Namespace) -> Result<()> {
    namespace.run(|| {
        let root = Root::live();
        for _ in 0..LOOKS_AT_END {
            if open_connections(&root.text("/proc/net/tcp")?) == 0 {
                return Ok(());
            }
            std::thread::sleep(LOOK);
        }
        Err(anyhow!("connections of the demo do not end; the kernel keeps them for a few minutes"))
    })
}

/// Number of sockets in `/proc/net/tcp` that are neither in LISTEN (0A) nor in TIME_WAIT (06;
/// include/net/tcp_states.h).
fn open_connections(table: &str) -> usize {
    let states = table.lines().skip(1).filter_map(|line| line.split_whitespace().nth(3));
    states.filter(|state| !matches!(*state, "06" | "0A")).count()
}

/// At most `most` CPUs, spread evenly over the usable ones.
fn spread(usable: &CpuSet, most: usize) -> Vec<CpuId> {
    let all: Vec<CpuId> = usable.iter().collect();
    let count = all.len().min(most);
    (0..count).filter_map(|i| all.get(i * all.len() / count).copied()).collect()
}

/// The initial RPS of the demonstration: the first half of the CPUs, as if it were limited to one node; `None`
/// on one CPU.
fn as_found(cpus: &[CpuId]) -> Option<CpuSet> {
    let half = cpus.get(..cpus.len() / 2)?;
    (!half.is_empty()).then(|| half.iter().copied().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_spread_evenly() {
        let spread = |cpus: &str, most| {
            let cpus = spread(&CpuSet::from_list(cpus).unwrap(), most);
            cpus.into_iter().map(|cpu| cpu.0).collect::<Vec<_>>()
        };
        assert_eq!(spread("0-1", 8), [0, 1]);
        assert_eq!(spread("0-15", 4), [0, 4, 8, 12]);
        assert_eq!(spread("3,5,7", 2), [3, 5]);
        assert_eq!(spread("", 8), [0; 0]);
    }

    #[test]
    fn listen_and_time_wait_are_not_open_connections() {
        let line = |state: &str| format!("   0: 020012C6:C175 00000000:0000 {state} 00000000:0\n");
        let table = |states: &[&str]| {
            "  sl  local_address rem_address   st\n".to_owned()
                + &states.iter().map(|state| line(state)).collect::<String>()
        };
        assert_eq!(open_connections(&table(&["0A", "06", "06"])), 0);
        assert_eq!(open_connections(&table(&["0A", "01", "09", "06", "03"])), 3);
        assert_eq!(open_connections(""), 0);
    }

    #[test]
    fn rps_starts_on_half_of_the_cpus() {
        let found = |cpus: &[u32]| {
            let cpus: Vec<CpuId> = cpus.iter().copied().map(CpuId).collect();
            as_found(&cpus).map(|cpus| cpus.to_string())
        };
        assert_eq!(found(&[2, 4]).as_deref(), Some("2"));
        assert_eq!(found(&[0, 1, 2, 3, 4]).as_deref(), Some("0-1"));
        assert_eq!((found(&[0]), found(&[])), (None, None));
    }
}
