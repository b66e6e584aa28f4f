//! `nearpath bench latency`: the prober. It sends probes to a reflector and reports the round-trip times.

use super::load::Load;
use super::{Sockets, target};
use crate::failure::{Failure, say};
use crate::interrupt::Interrupt;
use crate::output;
use crate::session::{duration, latency};
use anyhow::{Context, anyhow};
use clap::Args;
use nearpath_diagnose::{Evidence, diagnose};
use nearpath_host::{Root, Wanted};
use nearpath_model::{Finding, ScheduledTransmission};
use nearpath_trial::latency::{
    Arrivals, LatencyPlan, Loop, MAX_CONNECTIONS, MAX_RATE_PER_S, Progress, SIZE_MAX, SIZE_MIN,
    Transport, measure_latency,
};
use nearpath_views::text;
use std::time::Duration;

const AFTER_HELP: &str = "\
EXAMPLES
  nearpath bench reflect --bind 10.0.0.2                 on the far host
  nearpath bench latency 10.0.0.2                        1,000 probes per second for 10 s over UDP
  nearpath bench latency 10.0.0.2 --tcp --rate 5000 --poisson --for 60s
  nearpath bench latency 10.0.0.2 --ping-pong --cpus 2   closed loop: one probe at a time
  nearpath bench latency 10.0.0.2 --load tcp --load udp --load-rate 500M
  nearpath bench latency 10.0.0.2 --txtime=20ms --priority 3   by ETF or taprio, against the schedule
  nearpath bench latency '[fd00::2]:7000' --size 1400 --dscp 46 --priority 3
  nearpath bench latency 10.0.0.2 --json | jq '.percentiles, .split.wire.percentiles'

Latency is the round-trip time. In open loop (the default) it is measured from the time at which a
probe was scheduled, so a stall of the path or the sender shows in every probe that was due during
it. With --ping-pong those probes are never sent. Ctrl-C stops early and prints the results so far.
docs/json.md describes the JSON fields, docs/bench.md the method.";

/// Default of `--rate`.
const RATE: u32 = 1_000;

/// Arguments of `bench latency`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub(super) struct Latency {
    /// Address of 'bench reflect': HOST or HOST:PORT
    #[arg(value_name = "HOST[:PORT]")]
    target: String,
    /// Use TCP instead of UDP
    #[arg(long)]
    tcp: bool,
    /// Probes per second over all connections [default: 1000; with --ping-pong: unlimited]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_RATE_PER_S)))]
    rate: Option<u32>,
    /// Send probes as a Poisson process instead of at fixed intervals
    #[arg(long, conflicts_with = "ping_pong")]
    poisson: bool,
    /// Send each probe when the previous one has been answered (closed loop)
    #[arg(long)]
    ping_pong: bool,
    /// Message size in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 64)]
    #[arg(value_parser = clap::value_parser!(u32).range(SIZE_MIN as i64..=SIZE_MAX as i64))]
    size: u32,
    /// Number of connections (UDP flows), each with its own threads
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_CONNECTIONS)))]
    connections: u32,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    /// Also draw the latency distribution
    #[arg(long, conflicts_with = "json")]
    histogram: bool,
    /// Duration of the measurement: 500ms, 10s, 2m
    #[arg(long = "for", value_name = "TIME", default_value = "10s", value_parser = duration)]
    #[arg(help_heading = "Measurement")]
    duration: Duration,
    /// Warm-up before the measurement; its probes are not counted
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration)]
    #[arg(help_heading = "Measurement")]
    warm_up: Duration,
    /// Report progress on standard error after each interval
    #[arg(long, value_name = "TIME", value_parser = duration, help_heading = "Measurement")]
    interval: Option<Duration>,
    #[command(flatten)]
    load: Load,
    #[command(flatten)]
    sockets: Sockets,
    // Expert options (see help.rs) stand last.
    /// Count answers that take longer as late; also how long to wait for outstanding answers at the end
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration)]
    #[arg(help_heading = "Measurement")]
    late_after: Duration,
    /// Do not use kernel timestamps, which cost a microsecond or two per probe
    #[arg(long, help_heading = "Measurement")]
    no_split: bool,
    /// Busy-wait for send times: uses a whole CPU, but sends on time
    #[arg(long, help_heading = "Measurement")]
    spin: bool,
    /// Hand each probe over this long before its time, and let qdiscs send it then (SO_TXTIME)
    #[arg(long, value_name = "LEAD", num_args = 0..=1, require_equals = true, default_missing_value = "20ms")]
    #[arg(value_parser = latency, conflicts_with_all = ["tcp", "ping_pong", "no_split", "histogram"])]
    #[arg(help_heading = "Measurement")]
    txtime: Option<Duration>,
}

impl Latency {
    pub(in crate::commands) fn run(&self) -> Result<(), Failure> {
        let plan = self.plan()?;
        let interrupt = Interrupt::listen()?;
        let should_continue = |wait: Duration| !interrupt.wait(wait);
        let mut each = |progress: &Progress| say(&text::latency_progress(progress));
        let loading = self.load.start(plan.target.ip(), plan.warm_up + plan.duration)?;
        let mut report = measure_latency(&plan, self.interval, &should_continue, &mut each)
            .context("cannot measure")?;
        report.load = loading.finish(interrupt.happened());
        report.findings = report.scheduled.as_ref().map(findings).transpose()?.unwrap_or_default();
        if interrupt.happened() {
            say("stopped early by a signal");
        }
        if self.json {
            output::json(&report)?;
        } else {
            output::text(&text::latencies(&report, self.histogram, output::width()))?;
        }
        // A result measured without the requested load is printed, but is not a success.
        match report.load.iter().find_map(|load| load.failure.as_ref()) {
            Some(failure) if !interrupt.happened() => {
                Err(anyhow!("the requested load was not complete: {failure}").into())
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
            echo: false,
            spin: self.spin,
            lead: self.txtime,
            cpus: self.sockets.cpus.clone(),
            options: self.sockets.options(),
        })
    }
}

/// The checks that scheduled transmission is evidence for.
const CHECKS: [&str; 3] = ["etf_delta", "taprio_gates", "txtime_clock"];

/// What is wrong with how this host schedules transmission.
fn findings(measured: &ScheduledTransmission) -> anyhow::Result<Vec<Finding>> {
    let host =
        nearpath_host::read(&Root::live(), &Wanted::default()).context("cannot read the host")?;
    let evidence = Evidence { txtime: Some(measured), ..Evidence::default() };
    let mut found = diagnose(&host, None, evidence).findings;
    found.retain(|finding| CHECKS.contains(&finding.check.as_str()));
    Ok(found)
}
