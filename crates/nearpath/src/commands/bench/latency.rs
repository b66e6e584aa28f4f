//! `nearpath bench latency`: the prober.

use super::load::Load;
use super::{Sockets, target};
use crate::failure::{Failure, say};
use crate::interrupt::Interrupt;
use crate::output;
use crate::session::duration;
use anyhow::{Context, anyhow};
use clap::Args;
use nearpath_trial::latency::{
    Arrivals, LatencyPlan, Loop, MAX_CONNECTIONS, MAX_RATE_PER_S, Progress, SIZE_MAX, SIZE_MIN,
    Transport, measure_latency,
};
use nearpath_views::text;
use std::time::Duration;

const AFTER_HELP: &str = "\
EXAMPLES
  nearpath bench reflect --bind 10.0.0.2                 on the far host
  nearpath bench latency 10.0.0.2                        1,000 probes a second for 10 s, by UDP
  nearpath bench latency 10.0.0.2 --tcp --rate 5000 --poisson --for 60s
  nearpath bench latency 10.0.0.2 --ping-pong --cpus 2   one after the other, as sockperf does
  nearpath bench latency 10.0.0.2 --load tcp --load udp --load-rate 500M
  nearpath bench latency '[fd00::2]:7000' --size 1400 --dscp 46 --priority 3
  nearpath bench latency 10.0.0.2 --json | jq '.percentiles, .split.wire.percentiles'

Latency is that of the round trip. In an open loop it counts from the moment when a probe was to be
sent, so that a path (or a sender) that stalls is seen in all probes that were due meanwhile; with
--ping-pong they are never sent. ^C ends it early with what was gathered. The fields of the JSON are
described in docs/json.md, the method in docs/bench.md.";

/// Probes per second without a word.
const RATE: u32 = 1_000;

/// Arguments of `bench latency`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub(super) struct Latency {
    /// Where 'bench reflect' runs: HOST or HOST:PORT
    #[arg(value_name = "HOST[:PORT]")]
    target: String,
    /// Over TCP instead of UDP
    #[arg(long)]
    tcp: bool,
    /// Probes per second, of all connections together [default: 1000; with --ping-pong: as fast as it goes]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_RATE_PER_S)))]
    rate: Option<u32>,
    /// Send as a Poisson process instead of at even intervals
    #[arg(long, conflicts_with = "ping_pong")]
    poisson: bool,
    /// Send each probe when the one before is answered (closed loop)
    #[arg(long)]
    ping_pong: bool,
    /// Bytes of a message
    #[arg(long, value_name = "BYTES", default_value_t = 64)]
    #[arg(value_parser = clap::value_parser!(u32).range(SIZE_MIN as i64..=SIZE_MAX as i64))]
    size: u32,
    /// Connections (flows of UDP), each with threads of its own
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_CONNECTIONS)))]
    connections: u32,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    /// Draw the distribution, too
    #[arg(long, conflicts_with = "json")]
    histogram: bool,
    /// How long to measure: 500ms, 10s, 2m
    #[arg(long = "for", value_name = "TIME", default_value = "10s", value_parser = duration)]
    #[arg(help_heading = "How to measure")]
    duration: Duration,
    /// How long to send probes that do not count, before that
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration)]
    #[arg(help_heading = "How to measure")]
    warm_up: Duration,
    /// Tell what came after each interval, on standard error
    #[arg(long, value_name = "TIME", value_parser = duration, help_heading = "How to measure")]
    interval: Option<Duration>,
    /// An answer that takes longer is late; so long is waited for answers in the end
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration)]
    #[arg(help_heading = "How to measure")]
    late_after: Duration,
    /// Ask the kernel for no stamps, which cost a microsecond or two a probe
    #[arg(long, help_heading = "How to measure")]
    no_split: bool,
    /// Wait for send times by looking at the clock all the time: takes a CPU, and sends on time
    #[arg(long, help_heading = "How to measure")]
    spin: bool,
    #[command(flatten)]
    load: Load,
    #[command(flatten)]
    sockets: Sockets,
}

impl Latency {
    pub(in crate::commands) fn run(&self) -> Result<(), Failure> {
        let plan = self.plan()?;
        let interrupt = Interrupt::listen()?;
        let goes_on = |wait: Duration| !interrupt.wait(wait);
        let mut each = |progress: &Progress| say(&text::latency_progress(progress));
        let loading = self.load.start(plan.target.ip(), plan.warm_up + plan.duration)?;
        let mut report =
            measure_latency(&plan, self.interval, &goes_on, &mut each).context("cannot measure")?;
        report.load = loading.finish(interrupt.happened());
        if interrupt.happened() {
            say("ended early by a signal");
        }
        if self.json {
            output::json(&report)?;
        } else {
            output::text(&text::latencies(&report, self.histogram, output::width()))?;
        }
        // What was measured without the load that was asked for is told, and is no success.
        match report.load.iter().find_map(|load| load.failure.as_ref()) {
            Some(failure) if !interrupt.happened() => {
                Err(anyhow!("there was not all the load that was asked for: {failure}").into())
            }
            _ => Ok(()),
        }
    }

    fn plan(&self) -> Result<LatencyPlan, Failure> {
        let mode = match (self.ping_pong, self.poisson) {
            (true, _) => Loop::Closed,
            (false, true) => Loop::Open(Arrivals::Poisson),
            (false, false) => Loop::Open(Arrivals::Constant),
        };
        Ok(LatencyPlan {
            target: target(&self.target)?,
            transport: if self.tcp { Transport::Tcp } else { Transport::Udp },
            mode,
            rate_per_s: self.rate.or((mode != Loop::Closed).then_some(RATE)),
            size: self.size,
            connections: self.connections,
            warm_up: self.warm_up,
            duration: self.duration,
            late_after: self.late_after,
            split: !self.no_split,
            spin: self.spin,
            cpus: self.sockets.cpus.clone(),
            options: self.sockets.options(),
        })
    }
}
