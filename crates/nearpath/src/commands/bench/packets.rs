//! `nearpath bench packets`: the sender.

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
  nearpath bench packets 10.0.0.2                             unlimited rate, 64-byte frames, 10 s
  nearpath bench packets 10.0.0.2 --rate 200000 --flows 4     a fixed rate over four flows
  nearpath bench packets 10.0.0.2 --search                    the highest rate without loss
  nearpath bench packets 10.0.0.2 --search --max-loss 0.1 --cpus 2
  ip netns exec red nearpath bench packets 10.0.0.2 --size 1472 --json | jq .result.cpus

UDP packets go one way, through the whole network stack of both hosts. --search confirms the rate
that it finds for the duration of --for. CPU time covers everything that ran on the CPUs during the
measurement. Ctrl-C stops early and prints the results so far. docs/json.md describes the JSON
fields, docs/bench.md the method.";

/// Arguments of `bench packets`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub(super) struct Packets {
    /// Address of 'bench reflect': HOST or HOST:PORT
    #[arg(value_name = "HOST[:PORT]")]
    target: String,
    /// Packets per second over all flows [default: unlimited]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MAX_PACKETS_PER_S))]
    rate: Option<u64>,
    /// Search for the highest rate without loss, by bisection (RFC 2544)
    #[arg(long, conflicts_with = "rate")]
    search: bool,
    /// Acceptable loss in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0, value_parser = percent, requires = "search")]
    max_loss: f64,
    /// UDP payload in bytes; 18 gives 64-byte frames over IPv4
    #[arg(long, value_name = "BYTES", default_value_t = PACKET_MIN)]
    #[arg(value_parser = clap::value_parser!(u32).range(i64::from(PACKET_MIN)..=i64::from(PACKET_MAX)))]
    size: u32,
    /// Number of flows, each with its own port and a thread on either side
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_FLOWS)))]
    flows: u16,
    /// Source address, which may select the interface
    #[arg(long, value_name = "ADDRESS")]
    source: Option<IpAddr>,
    /// Run the sending threads on these CPUs: 2,4-6
    #[arg(long, value_name = "CPULIST", value_parser = cpus)]
    cpus: Option<CpuSet>,
    /// Duration; with --search, of the run that confirms the rate
    #[arg(long = "for", value_name = "TIME", default_value = "10s", value_parser = duration)]
    duration: Duration,
    /// Duration of each trial of a search
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
        let should_continue = |wait: Duration| !interrupt.wait(wait);
        let mut each = |trial: &PacketsTrial| say(&text::packets_progress(trial));
        let report = measure_packets(&plan, &Root::live(), &should_continue, &mut each)
            .context("cannot measure")?;
        if interrupt.happened() {
            say("stopped early by a signal");
        }
        if self.json {
            output::json(&report)?;
        } else {
            output::text(&text::packets(&report))?;
        }
        match (&report.result, interrupt.happened()) {
            (None, false) => Err(anyhow!("loss was above --max-loss at every rate tried").into()),
            _ => Ok(()),
        }
    }
}

fn percent(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(percent) if (0.0..100.0).contains(&percent) => Ok(percent),
        _ => Err("expected 0 to less than 100".to_owned()),
    }
}
