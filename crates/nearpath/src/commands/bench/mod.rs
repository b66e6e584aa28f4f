//! `nearpath bench`: how a path performs, by traffic of its own; a benchmark in each file here.

mod latency;
mod load;
mod packets;
mod reflect;
mod scenarios;

use crate::failure::Failure;
use anyhow::anyhow;
use clap::{Args, Subcommand};
use latency::Latency;
pub(super) use load::Load;
use nearpath_model::CpuSet;
use nearpath_trial::latency::SocketOptions;
use packets::Packets;
use reflect::Reflect;
use scenarios::Scenarios;
use std::net::{SocketAddr, ToSocketAddrs};

/// The port of the reflector: `near` on the keys of a telephone.
const PORT: u16 = 6327;
/// The port of the sink, which runs beside it.
const PACKETS_PORT: u16 = PORT + 1;

/// Arguments of `bench`.
#[derive(Debug, Args)]
pub struct Bench {
    #[command(subcommand)]
    benchmark: Benchmark,
}

#[derive(Debug, Subcommand)]
enum Benchmark {
    /// Round trips to a reflector: their distribution, loss, and where the time went
    Latency(Latency),
    /// Packets per second to a sink, with loss and what each costs on each CPU
    Packets(Packets),
    /// An application without binding, bound, and with the host tuned, measured in turns
    Scenarios(Scenarios),
    /// Answer the probes of 'bench latency', and count the packets of 'bench packets'
    Reflect(Reflect),
}

impl Bench {
    pub(super) fn run(&self) -> Result<(), Failure> {
        match &self.benchmark {
            Benchmark::Latency(latency) => latency.run(),
            Benchmark::Packets(packets) => packets.run(),
            Benchmark::Scenarios(scenarios) => scenarios.run(),
            Benchmark::Reflect(reflect) => reflect.run(),
        }
    }
}

/// Where the threads run, and what their sockets are like: the same words on both sides.
#[derive(Debug, Args)]
#[command(next_help_heading = "Threads and sockets")]
struct Sockets {
    /// CPUs for all threads, as a list: 2,4-6
    #[arg(long, value_name = "CPULIST", value_parser = cpus)]
    cpus: Option<CpuSet>,
    /// SO_PRIORITY of what is sent (qdiscs, the egress map of a VLAN)
    #[arg(long, value_name = "N")]
    priority: Option<u32>,
    /// DSCP of what is sent
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(..64))]
    dscp: Option<u8>,
    /// SO_BUSY_POLL: poll the device for so many µs before sleeping
    #[arg(long, value_name = "US", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    busy_poll: Option<u32>,
}

impl Sockets {
    fn options(&self) -> SocketOptions {
        let Self { priority, dscp, busy_poll, .. } = *self;
        SocketOptions { priority, dscp, busy_poll_us: busy_poll }
    }
}

fn cpus(list: &str) -> Result<CpuSet, String> {
    match CpuSet::from_list(list) {
        Ok(cpus) if !cpus.is_empty() => Ok(cpus),
        Ok(_) => Err("no CPU".to_owned()),
        Err(reason) => Err(reason.to_string()),
    }
}

/// Where a reflector runs.
pub(super) fn target(text: &str) -> anyhow::Result<SocketAddr> {
    address(text, PORT)
}

/// An address, with or without a port of its own, or a name that is looked up.
fn address(text: &str, port: u16) -> anyhow::Result<SocketAddr> {
    if let Ok(address) = text.parse() {
        return Ok(SocketAddr::new(address, port));
    }
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let found = match text.rsplit_once(':') {
        Some((_, port)) if port.parse::<u16>().is_ok() => text.to_socket_addrs(),
        _ => (text, port).to_socket_addrs(),
    };
    found
        .ok()
        .and_then(|mut addresses| addresses.next())
        .ok_or_else(|| anyhow!("{text} is no address, and no name that can be looked up"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_have_a_port_or_the_reflectors() {
        for (text, address) in [
            ("10.0.0.2", "10.0.0.2:6327"),
            ("10.0.0.2:7", "10.0.0.2:7"),
            ("fd00::2", "[fd00::2]:6327"),
            ("[fd00::2]:7", "[fd00::2]:7"),
        ] {
            assert_eq!(target(text).unwrap(), address.parse().unwrap());
        }
        assert!(target("10.0.0.2:70000").is_err());
        assert!(target("no such name").is_err());
    }
}
