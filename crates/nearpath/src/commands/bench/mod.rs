//! `nearpath bench`: how a path performs, by traffic of its own; a benchmark in each file here.

mod latency;
mod reflect;

use crate::failure::Failure;
use clap::{Args, Subcommand};
use latency::Latency;
pub(super) use latency::target;
use nearpath_host::CpuSet;
use nearpath_trial::latency::SocketOptions;
use reflect::Reflect;

/// The port of the reflector: `near` on the keys of a telephone.
const PORT: u16 = 6327;

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
    /// Answer the probes of 'bench latency'
    Reflect(Reflect),
}

impl Bench {
    pub(super) fn run(&self) -> Result<(), Failure> {
        match &self.benchmark {
            Benchmark::Latency(latency) => latency.run(),
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
