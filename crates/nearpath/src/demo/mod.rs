//! The scene of `nearpath demo`: real packets on a path that is misplaced on purpose.
//!
//! ```text
//! namespace of the client           namespace of the server
//!   senders ─ demo-client ══ veth ══ demo-server ─ RPS ─► its CPU ─► readers on another CPU
//!   (threads of this process)           (a child process, pinned)
//! ```
//! In goes the host, by whose topology CPUs are chosen that are far from each other; out comes,
//! when it is stopped, what the load was. The namespaces have no names and nothing is put in the
//! file system: devices, addresses and sockets go away with this process, also when it is killed.
//! What is written to is the demo's own device alone.

mod child;
pub mod locality;
pub mod memory;
mod namespace;
mod placement;
pub(crate) mod reader;
mod rps;
mod rtnl;
mod sysfs;
mod veth;

pub use placement::{Placement, misplace};

use anyhow::{Context, Result, anyhow};
use namespace::Namespace;
use nearpath_model::{CpuSet, Host};
use nearpath_trial::affinity;
use nearpath_trial::load::{Client, LoadPlan, LoadReport};
use reader::{Reader, Task};
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use veth::Setup;

/// A running demonstration. Dropped without [`Demo::stop`] it goes away just so.
#[derive(Debug)]
pub struct Demo {
    // Dropped in this order: the load before its path.
    sender: Client,
    reader: Reader,
    client: Namespace,
    server: Namespace,
    placement: Placement,
    story: Vec<String>,
}

impl Demo {
    /// Builds the namespaces and the path, misplaces RPS and the readers, starts the load.
    /// `program` is nearpath itself, which is started once more as the server.
    ///
    /// # Errors
    /// No privilege, a kernel without namespaces or veth, or a path that does not carry.
    pub fn start(host: &Host, program: &OsStr) -> Result<Self> {
        let usable = usable_cpus(host).context("reading which CPUs may be used")?;
        let placement =
            misplace(&host.topology, &usable).ok_or_else(|| anyhow!("no CPU to run on"))?;
        Self::build(program, usable.len(), placement, LoadPlan::moderate())
    }

    /// The same with packets that come in near their readers, whom only RPS takes them away from: without
    /// it nothing is misplaced. The load is one that a CPU can bear alone.
    ///
    /// # Errors
    /// As [`Demo::start`].
    pub fn start_near(host: &Host, program: &OsStr) -> Result<Self> {
        let usable = usable_cpus(host).context("reading which CPUs may be used")?;
        let placement =
            misplace(&host.topology, &usable).ok_or_else(|| anyhow!("no CPU to run on"))?;
        let placement = placement.with_senders_near(&host.topology, &usable);
        Self::build(program, usable.len(), placement, LoadPlan::light())
    }

    fn build(
        program: &OsStr,
        usable: usize,
        mut placement: Placement,
        plan: LoadPlan,
    ) -> Result<Self> {
        let queues = queues(usable);
        let (client, server) = (Namespace::create()?, Namespace::create()?);
        veth::create(&client, &server, queues)?;
        let near = veth::set_up(&client, veth::CLIENT, Some(queues))?;
        let far = veth::set_up(&server, veth::SERVER, Some(queues))?;
        let mut story = vec![built(&client, &server, queues, &near)];
        story.extend(near.notes.into_iter().chain(far.notes));
        let steer = |cpu| {
            let cpus: CpuSet = [cpu].into_iter().collect();
            rps::steer(&server, veth::SERVER.device, queues, &cpus)
        };
        let steered = placement.rps.map(steer);
        if let Some(Err(reason)) = steered {
            story.push(format!("RPS stays off: {reason:#}"));
            placement.rps = None;
        }
        story.push(misplaced(&placement));
        let mut addresses = far.addresses;
        addresses.retain(|a| near.addresses.iter().any(|b| a.is_ipv6() == b.is_ipv6()));
        story.push(planned(&plan, addresses.len(), &placement.senders));
        let task = Task { plan, addresses, cpus: [placement.reader].into_iter().collect() };
        let mut reader = Reader::start(&server, program, &task)?;
        let (endpoints, senders) = (reader.endpoints(), &placement.senders);
        let sender = client.run(|| Ok(Client::start(&task.plan, endpoints, senders)?))?;
        reader.wait_for_threads()?;
        Ok(Self { sender, reader, client, server, placement, story })
    }

    /// What was built, a line each, for people.
    pub fn story(&self) -> &[String] {
        &self.story
    }

    /// Who runs where.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Inode of the server's namespace, by which the kernel tells namespaces apart.
    pub fn server_netns_inode(&self) -> u64 {
        self.server.inode()
    }

    /// Process id of the server.
    pub fn server_pid(&self) -> u32 {
        self.reader.pid()
    }

    /// Name of the device whose placement is spoilt.
    pub fn device(&self) -> &'static str {
        veth::SERVER.device
    }

    /// A file of the server's namespace, to read facts there.
    ///
    /// # Errors
    /// No file can be opened any more.
    pub fn server_netns(&self) -> io::Result<OwnedFd> {
        self.server.file().try_clone_to_owned()
    }

    /// Ends the load, takes the path down, and makes sure that it is gone.
    ///
    /// # Errors
    /// Something is left. The load's own failures are in the report.
    pub fn stop(self) -> Result<LoadReport> {
        let report = self.sender.finish().with(&self.reader.finish()?);
        veth::delete(&self.client, &self.server)?;
        Ok(report)
    }
}

/// As many as show queues at work, and no more than there are CPUs for.
fn queues(cpus: usize) -> u32 {
    u32::try_from(cpus).unwrap_or(u32::MAX).clamp(2, 4)
}

/// The CPUs that threads may be pinned to and that RPS takes: online, allowed to this process, and
/// not isolated (the kernel takes isolated CPUs out of `rps_cpus`, net/core/net-sysfs.c).
fn usable_cpus(host: &Host) -> io::Result<CpuSet> {
    let mut usable = affinity::current()?;
    if !host.topology.online.is_empty() {
        usable = usable.intersection(&host.topology.online);
    }
    let kept_free = [&host.kernel.isolated, &host.kernel.nohz_full];
    let shared = kept_free.into_iter().flatten().fold(usable.clone(), |a, b| a.difference(b));
    Ok(if shared.is_empty() { usable } else { shared })
}

fn built(client: &Namespace, server: &Namespace, queues: u32, setup: &Setup) -> String {
    format!(
        "built two network namespaces, net:[{}] and net:[{}], joined by the veth pair {} and {} \
         with {queues} queues each ({})",
        client.inode(),
        server.inode(),
        veth::CLIENT.device,
        veth::SERVER.device,
        setup.qdisc,
    )
}

fn misplaced(placement: &Placement) -> String {
    let Placement { reader, rps, apart, .. } = placement;
    match rps {
        Some(rps) => format!(
            "misplaced on purpose: RPS of {} sends every packet to CPU {rps}, the readers run on \
             CPU {reader}: {apart}",
            veth::SERVER.device
        ),
        None => format!("nothing is misplaced: the readers run on CPU {reader}, RPS is off"),
    }
}

fn planned(plan: &LoadPlan, addresses: usize, senders: &CpuSet) -> String {
    let LoadPlan { requests, streams, datagrams } = plan;
    let each = |connections: u16, rate_hz: u32| {
        u64::try_from(addresses).unwrap_or(0) * u64::from(connections) * u64::from(rate_hz)
    };
    let mbit_s =
        each(streams.connections, streams.rate_hz) * u64::from(streams.write_bytes) * 8 / 1_000_000;
    format!(
        "load from CPU{} {senders} over {}: {} TCP requests/s, TCP streams of {mbit_s} Mbit/s, {} \
         UDP datagrams/s",
        if senders.len() == 1 { "" } else { "s" },
        if addresses > 1 { "IPv4 and IPv6" } else { "IPv4" },
        each(requests.connections, requests.rate_hz),
        each(datagrams.flows, datagrams.rate_hz),
    )
}
