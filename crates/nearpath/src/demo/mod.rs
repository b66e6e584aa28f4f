//! The scene of `nearpath demo`: real packets on a deliberately misplaced path.
//!
//! ```text
//! namespace of the client           namespace of the server
//!   senders ─ demo-client ══ veth ══ demo-server ─ RPS ─► its CPU ─► readers on another CPU
//!   (threads of this process)           (a child process, pinned)
//! ```
//! Input: the host, whose topology is used to choose CPUs far from each other. Output: a report of the load,
//! when it is stopped. The namespaces have no names and nothing is written to the file system: devices,
//! addresses and sockets disappear with this process, even when it is killed. Only the demo's own device is
//! changed.

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
use nearpath_model::units::short;
use nearpath_model::{CpuSet, Host};
use nearpath_trial::affinity;
use nearpath_trial::load::{Client, LoadPlan, LoadReport};
use reader::{Reader, Task};
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use veth::Setup;

/// A running demonstration. If it is dropped without [`Demo::stop`], it disappears without a check.
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
    /// Creates the namespaces and the path, misplaces RPS and the readers, starts the load.
    /// `program` is nearpath itself, which is started again as the server.
    ///
    /// # Errors
    /// No privilege, a kernel without namespaces or veth, or a path that does not carry.
    pub fn start(host: &Host, program: &OsStr) -> Result<Self> {
        let usable = usable_cpus(host).context("cannot read the usable CPUs")?;
        let placement =
            misplace(&host.topology, &usable).ok_or_else(|| anyhow!("no usable CPU"))?;
        Self::build(program, usable.len(), placement, LoadPlan::moderate())
    }

    /// Like [`Demo::start`], but packets arrive near their readers and only RPS moves them away: without RPS
    /// nothing is misplaced. The load is low enough for a single CPU.
    ///
    /// # Errors
    /// As [`Demo::start`].
    pub fn start_near(host: &Host, program: &OsStr) -> Result<Self> {
        let usable = usable_cpus(host).context("cannot read the usable CPUs")?;
        let placement =
            misplace(&host.topology, &usable).ok_or_else(|| anyhow!("no usable CPU"))?;
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
        let mut story = vec![built(queues, &near)];
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

    /// What was created, one line each, for display.
    pub fn story(&self) -> &[String] {
        &self.story
    }

    /// The CPUs of readers, RPS and senders.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Inode of the server's namespace, which identifies it.
    pub fn server_netns_inode(&self) -> u64 {
        self.server.inode()
    }

    /// Process id of the server.
    pub fn server_pid(&self) -> u32 {
        self.reader.pid()
    }

    /// Name of the device that is misplaced.
    pub fn device(&self) -> &'static str {
        veth::SERVER.device
    }

    /// A file descriptor of the server's namespace, for reading facts in it.
    ///
    /// # Errors
    /// The process has no file descriptors left.
    pub fn server_netns(&self) -> io::Result<OwnedFd> {
        self.server.file().try_clone_to_owned()
    }

    /// Stops the load, removes the path, and verifies that it is gone.
    ///
    /// # Errors
    /// Something is left. The load's own failures are in the report.
    pub fn stop(self) -> Result<LoadReport> {
        let report = self.sender.finish().with(&self.reader.finish()?);
        veth::delete(&self.client, &self.server)?;
        Ok(report)
    }
}

/// Enough queues for a demonstration, at most one per CPU.
fn queues(cpus: usize) -> u32 {
    u32::try_from(cpus).unwrap_or(u32::MAX).clamp(2, 4)
}

/// The CPUs that threads may be pinned to and that RPS accepts: online, allowed for this process, and not
/// isolated (the kernel removes isolated CPUs from `rps_cpus`, net/core/net-sysfs.c).
fn usable_cpus(host: &Host) -> io::Result<CpuSet> {
    let mut usable = affinity::current()?;
    if !host.topology.online.is_empty() {
        usable = usable.intersection(&host.topology.online);
    }
    let kept_free = [&host.kernel.isolated, &host.kernel.nohz_full];
    let shared = kept_free.into_iter().flatten().fold(usable.clone(), |a, b| a.difference(b));
    Ok(if shared.is_empty() { usable } else { shared })
}

fn built(queues: u32, setup: &Setup) -> String {
    format!(
        "veth pair {}/{} joins two namespaces; {queues} queues, {}",
        veth::CLIENT.device,
        veth::SERVER.device,
        setup.qdisc,
    )
}

fn misplaced(placement: &Placement) -> String {
    let Placement { reader, rps, distance, .. } = placement;
    match rps {
        Some(rps) => format!(
            "misplaced: RPS of {} to CPU {rps}, readers on CPU {reader} ({distance})",
            veth::SERVER.device
        ),
        None => format!("nothing is misplaced: readers on CPU {reader}, RPS off"),
    }
}

fn planned(plan: &LoadPlan, addresses: usize, senders: &CpuSet) -> String {
    let LoadPlan { requests, streams, datagrams } = plan;
    let each = |connections: u16, rate_hz: u32| {
        u64::try_from(addresses).unwrap_or(0) * u64::from(connections) * u64::from(rate_hz)
    };
    let mbit_s =
        each(streams.connections, streams.rate_hz) * u64::from(streams.write_bytes) * 8 / 1_000_000;
    let list = senders.to_string();
    let from = match senders.len() {
        1 => format!("CPU {list}"),
        _ if list.len() <= 8 => format!("CPUs {list}"),
        n => format!("{n} CPUs"),
    };
    format!(
        "load from {from}, {}: {} requests/s, {mbit_s} Mbit/s, {} datagrams/s",
        if addresses > 1 { "IPv4 and IPv6" } else { "IPv4" },
        short(each(requests.connections, requests.rate_hz)),
        short(each(datagrams.flows, datagrams.rate_hz)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_model::CpuId;

    #[test]
    fn the_story_fits_a_screen() {
        let senders: CpuSet = (0..64).map(|cpu| CpuId(2 * cpu)).collect();
        let placement = Placement {
            reader: CpuId(126),
            rps: Some(CpuId(127)),
            senders: senders.clone(),
            distance: "another core, same LLC",
        };
        let setup = Setup { addresses: Vec::new(), qdisc: "mq, default qdisc", notes: Vec::new() };
        let few: CpuSet = (0..2).map(CpuId).collect();
        for line in [
            built(8, &setup),
            misplaced(&placement),
            planned(&LoadPlan::moderate(), 2, &senders),
            planned(&LoadPlan::moderate(), 2, &few),
        ] {
            // `nearpath: ` stands before each.
            assert!(line.chars().count() <= 90, "{line}");
        }
    }
}
