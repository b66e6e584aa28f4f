//! `nearpath bench packets`: the side that sends.

use super::{PACKETS_PORT, address, cpus};
use crate::failure::{Failure, say};
use crate::interrupt::Interrupt;
use crate::output;
use crate::session::duration;
use anyhow::{Context, anyhow};
use clap::Args;
use nearpath_host::Root;
use nearpath_model::CpuSet;
use nearpath_trial::packets::{
    MAX_FLOWS, MAX_PACKETS_PER_S, Offered, PACKET_MAX, PACKET_MIN, PacketsPlan, PacketsTrial,
    measure_packets,
};
use nearpath_views::text;
use std::net::IpAddr;
use std::time::Duration;

const AFTER_HELP: &str = "\
EXAMPLES
  nearpath bench reflect --bind 10.0.0.2                      on the far host
  nearpath bench packets 10.0.0.2                             as many as go, frames of 64 bytes, for 10 s
  nearpath bench packets 10.0.0.2 --rate 200000 --flows 4     so many per second, over four flows
  nearpath bench packets 10.0.0.2 --search                    the highest rate without loss
  nearpath bench packets 10.0.0.2 --search --max-loss 0.1 --cpus 2
  ip netns exec red nearpath bench packets 10.0.0.2 --size 1472 --json | jq .result.cpus

Packets go one way, by UDP, through the whole of both network stacks. A rate that is found with --search
was confirmed for the time of --for. CPU time is that of all that ran on the CPUs meanwhile. ^C ends it
early with what was gathered. The fields of the JSON are described in docs/json.md, the method in
docs/bench.md.";

/// Arguments of `bench packets`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub(super) struct Packets {
    /// Where 'bench reflect' runs: HOST or HOST:PORT
    #[arg(value_name = "HOST[:PORT]")]
    target: String,
    /// Packets per second, of all flows together [default: as many as go]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MAX_PACKETS_PER_S))]
    rate: Option<u64>,
    /// Look for the highest rate without loss, by halving (RFC 2544)
    #[arg(long, conflicts_with = "rate")]
    search: bool,
    /// The share of packets that may be lost, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0, value_parser = percent, requires = "search")]
    max_loss: f64,
    /// Bytes of UDP payload; 18 make frames of 64 bytes over IPv4
    #[arg(long, value_name = "BYTES", default_value_t = PACKET_MIN)]
    #[arg(value_parser = clap::value_parser!(u32).range(i64::from(PACKET_MIN)..=i64::from(PACKET_MAX)))]
    size: u32,
    /// Flows, each with a port of its own and a thread on either side
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_FLOWS)))]
    flows: u16,
    /// The address to send from, which can choose the interface
    #[arg(long, value_name = "ADDRESS")]
    source: Option<IpAddr>,
    /// CPUs for the threads that send, as a list: 2,4-6
    #[arg(long, value_name = "CPULIST", value_parser = cpus)]
    cpus: Option<CpuSet>,
    /// How long to send; with --search, how long a rate is confirmed
    #[arg(long = "for", value_name = "TIME", default_value = "10s", value_parser = duration)]
    duration: Duration,
    /// How long each trial of a search is
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration, requires = "search")]
    trial: Duration,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

impl Packets {
    pub(in crate::commands) fn run(&self) -> Result<(), Failure> {
        let offered = match self.rate {
            Some(rate) => Offered::Rate(rate),
            None if self.search => Offered::Search { max_loss_percent: self.max_loss },
            None => Offered::Fastest,
        };
        let plan = PacketsPlan {
            target: address(&self.target, PACKETS_PORT)?,
            source: self.source,
            offered,
            size: self.size,
            flows: self.flows,
            duration: self.duration,
            trial: self.trial,
            cpus: self.cpus.clone(),
        };
        let interrupt = Interrupt::listen()?;
        let goes_on = |wait: Duration| !interrupt.wait(wait);
        let mut each = |trial: &PacketsTrial| say(&text::packets_progress(trial));
        let report =
            measure_packets(&plan, &Root::live(), &goes_on, &mut each).context("cannot measure")?;
        if interrupt.happened() {
            say("ended early by a signal");
        }
        if self.json {
            output::json(&report)?;
        } else {
            output::text(&text::packets(&report))?;
        }
        match (&report.result, interrupt.happened()) {
            (None, false) => Err(anyhow!("at no rate was so little lost").into()),
            _ => Ok(()),
        }
    }
}

fn percent(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(percent) if (0.0..100.0).contains(&percent) => Ok(percent),
        _ => Err("from 0 to less than 100".to_owned()),
    }
}
