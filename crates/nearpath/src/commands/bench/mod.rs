//! `nearpath bench`: measures a path with its own traffic. Each file here is one benchmark.

mod latency;
mod load;
mod packets;
mod paths;
mod reflect;
mod scenarios;

use crate::failure::Failure;
use crate::names;
use anyhow::anyhow;
use clap::{Args, Subcommand};
use latency::Latency;
pub(super) use load::Load;
use nearpath_model::CpuSet;
use nearpath_trial::latency::SocketOptions;
use packets::Packets;
use paths::Paths;
use reflect::Reflect;
use scenarios::Scenarios;
pub(super) use scenarios::unescaped;
use std::net::SocketAddr;

/// Port of the reflector: "near" on a telephone keypad.
const PORT: u16 = 6327;
/// Port of the sink, which runs beside the reflector.
const PACKETS_PORT: u16 = PORT + 1;

/// Arguments of `bench`.
#[derive(Debug, Args)]
pub struct Bench {
    #[command(subcommand)]
    benchmark: Benchmark,
}

#[derive(Debug, Subcommand)]
enum Benchmark {
    /// Measure round-trip times to a reflector: distribution, loss, and where the time was spent
    Latency(Latency),
    /// Measure packets per second to a sink: rate, loss, and CPU time per packet
    Packets(Packets),
    /// Compare an application unbound, bound, and on a tuned host (alternating blocks)
    Scenarios(Scenarios),
    /// Compare paths, as to the host and to virtual machines: round trips under load, and the stages into each guest
    Paths(Paths),
    /// Answer the probes of 'bench latency' and count the packets of 'bench packets'
    Reflect(Reflect),
}

impl Bench {
    pub(super) fn run(&self) -> Result<(), Failure> {
        match &self.benchmark {
            Benchmark::Latency(latency) => latency.run(),
            Benchmark::Packets(packets) => packets.run(),
            Benchmark::Scenarios(scenarios) => scenarios.run(),
            Benchmark::Paths(paths) => paths.run(),
            Benchmark::Reflect(reflect) => reflect.run(),
        }
    }
}

/// Thread placement and socket options, the same on both sides.
#[derive(Debug, Args)]
#[command(next_help_heading = "Threads and sockets")]
struct Sockets {
    /// Run all threads on these CPUs: 2,4-6
    #[arg(long, value_name = "CPULIST", value_parser = cpus)]
    cpus: Option<CpuSet>,
    /// DSCP of sent packets
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(..64))]
    dscp: Option<u8>,
    /// SO_BUSY_POLL: poll the device for this many µs before sleeping
    #[arg(long, value_name = "US", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    busy_poll: Option<u32>,
    /// SO_PRIORITY of sent packets (used by qdiscs and VLAN egress maps)
    #[arg(long, value_name = "N")]
    priority: Option<u32>,
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
        Ok(_) => Err("the CPU list is empty".to_owned()),
        Err(reason) => Err(reason.to_string()),
    }
}

/// The address of a reflector.
pub(super) fn target(text: &str) -> anyhow::Result<SocketAddr> {
    address(text, PORT)
}

/// Parses an address or resolves a host name, with or without a port.
fn address(text: &str, port: u16) -> anyhow::Result<SocketAddr> {
    if let Ok(address) = text.parse() {
        return Ok(SocketAddr::new(address, port));
    }
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let with_port = text.rsplit_once(':').and_then(|(name, port)| Some((name, port.parse().ok()?)));
    let (name, port) = with_port.unwrap_or((text, port));
    names::look_up(name, port)
        .ok_or_else(|| anyhow!("{text} is neither an address nor a host name that resolves"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_without_a_port_get_the_reflectors() {
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
