//! `nearpath tune try`: applies and undoes a plan alternately (A/B) under traffic, and keeps it only if it
//! improves the metric.

use super::apply::plan_of;
use super::plan::PlanOptions;
use crate::commands::bench::{Load, target};
use crate::failure::{Failure, say};
use crate::filters::Filters;
use crate::interrupt::Interrupt;
use crate::output;
use crate::session::duration;
use crate::source::Namespace;
use crate::trial::{Bench, Measured, Meter, NothingMade, TrialConfig};
use anyhow::{Context, bail};
use clap::Args;
use nearpath_host::{Root, Wanted, current_netns};
use nearpath_instruments::stages::{NIC_RX, Options};
use nearpath_model::{Detail, Direction, PathKind, Plan, TRIAL_SCHEMA, Thresholds, TrialReport};
use nearpath_trial::comparison::CYCLES_MIN;
use nearpath_trial::latency::{
    Arrivals, LatencyPlan, Loop, MAX_CONNECTIONS, MAX_RATE_PER_S, SocketOptions, Transport,
};
use nearpath_trial::live::{METRICS, Metric};
use nearpath_tune::{Executor, Journal, Live, steering};
use nearpath_views::text;
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;

const AFTER_HELP: &str = "\
Traffic must flow during the trial: the host's own, or with --probe that of a prober. Blocks without
the plan (A) and with it (B) alternate in the order A B B A, so that slow drift cancels out. The
difference is reported with its 95 % confidence interval (bootstrap over the cycles), next to the
A/A noise. The plan is kept only if the metric improves by more than the noise and --minimum-effect,
and loss, CPU time and packet rate stay within the guards. Otherwise, on the first error and on
Ctrl-C it is undone. The changes are in the journal during the trial.

METRICS
  p50 p90 p99 p99.9   percentile of the end-to-end time of received packets: from the first observed
                      stage until they are read
  mean                mean of the same time
  PATH:p99, ...       the same for one kind of path, named as in 'nearpath measure stages': receive,
                      forward, transmit, kernel_transmit; receive_from_nic and forward_from_nic
                      start at the NIC's timestamp (the others do not use it in a trial)
  stage:FROM..TO      99th percentile of one span, named as in 'nearpath measure stages'
  pps                 packets per second that complete their path
  gbps                10⁹ bits per second received and sent, from the counters of --dev or --nic
                      (default: all hardware interfaces)
With --probe, p50 to p99.9 and mean without PATH are round-trip times of the probes, in open loop.

EXAMPLES
  nearpath tune try --nic eth0 --port 443
  nearpath tune try plan.json --metric mean --cycles 20 --block 5s
  nearpath tune try plan.json --each           each change individually; keep those that help
  nearpath tune try --nic eth0 --probe 10.0.0.2    with 'nearpath bench reflect' on 10.0.0.2
  nearpath tune try --nic eth0 --probe 10.0.0.2 --load tcp --load-reverse
                                               needs 'bench reflect --load' on 10.0.0.2
  nearpath tune try --nic eth0 --metric forward:p99    packets that this host forwards
  nearpath tune try --nic eth0 --metric gbps";

/// Default number of cycles.
const CYCLES: usize = 12;

/// Arguments of `tune try`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub struct Try {
    /// Plan written by 'nearpath tune plan --json'; '-' is standard input
    #[arg(value_name = "PLAN")]
    #[arg(conflicts_with_all = ["goal", "nic", "pid", "unit", "cpus", "housekeeping", "channels", "vlan_priority", "cpuset", "stop_irqbalance", "reasons", "move_memory", "hugepages", "sysctl", "findings"])]
    plan: Option<PathBuf>,
    /// Only the change with this id; repeatable
    #[arg(long, value_name = "ID")]
    only: Vec<String>,
    /// Metric to compare, of received packets (only those to or from --port, if given)
    #[arg(long, default_value = "p99", value_name = "METRIC", value_parser = metric)]
    metric: Metric,
    /// Only packets received by this interface
    #[arg(long, value_name = "NAME")]
    dev: Option<String>,
    /// Number of cycles, of four blocks each
    #[arg(long, value_name = "N", default_value_t = CYCLES, value_parser = cycles)]
    cycles: usize,
    /// Duration of a block
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration)]
    block: Duration,
    /// Time for the host to settle after each switch
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = duration)]
    warm_up: Duration,
    /// Ignore differences below this, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = Thresholds::default().minimum_effect_percent)]
    #[arg(value_parser = percent)]
    minimum_effect: f64,
    /// Try each change individually, those with the largest predicted effect first, and keep those that help
    #[arg(long)]
    each: bool,
    #[command(flatten)]
    probe: Probe,
    #[command(flatten)]
    load: Load,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    plan_options: PlanOptions,
    #[command(flatten)]
    namespace: Namespace,
}

/// Probes instead of the host's own traffic.
#[derive(Debug, Args)]
#[command(next_help_heading = "Probes")]
struct Probe {
    /// Compare round-trip times to the reflector ('nearpath bench reflect') at HOST or HOST:PORT
    #[arg(long, value_name = "HOST[:PORT]")]
    probe: Option<String>,
    /// Probes per second over all connections
    #[arg(long, value_name = "N", default_value_t = 2_000, requires = "probe")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_RATE_PER_S)))]
    probe_rate: u32,
    /// Number of connections (UDP flows); their hashes select queues and CPUs
    #[arg(long, value_name = "N", default_value_t = 4, requires = "probe")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_CONNECTIONS)))]
    probe_connections: u32,
    /// Use TCP instead of UDP
    #[arg(long, requires = "probe")]
    probe_tcp: bool,
}

/// Which packets are followed for a metric, and through which stages. Transmit paths need the send calls
/// to be observed.
fn observed_for(metric: &Metric) -> (Direction, Detail) {
    match metric.path(false) {
        Some(PathKind::Transmit | PathKind::KernelTransmit) => (Direction::Tx, Detail::Path),
        _ => (Direction::Rx, Options::default().detail),
    }
}

/// Stages that are not observed for a metric: packets with a NIC timestamp have path kinds of their own, and
/// would be missing from the others.
fn left_out(metric: &Metric) -> Vec<String> {
    let from_nic = match metric {
        Metric::Span { from, .. } => from == NIC_RX,
        metric => metric.path(false).is_some_and(PathKind::is_from_nic),
    };
    if from_nic { Vec::new() } else { vec![NIC_RX.to_owned()] }
}

/// Answers that take longer count as late.
const LATE_AFTER: Duration = Duration::from_secs(1);

impl Probe {
    /// The probes, if requested; without timestamps, to reduce overhead.
    fn plan(&self) -> anyhow::Result<Option<LatencyPlan>> {
        let Some(to) = &self.probe else { return Ok(None) };
        let probe = LatencyPlan {
            target: target(to)?,
            transport: if self.probe_tcp { Transport::Tcp } else { Transport::Udp },
            mode: Loop::Open(Arrivals::Poisson),
            rate_per_s: Some(self.probe_rate),
            size: SIZE,
            connections: self.probe_connections,
            warm_up: Duration::ZERO,
            duration: Duration::ZERO,
            late_after: LATE_AFTER,
            split: false,
            spin: false,
            cpus: None,
            options: SocketOptions::default(),
        };
        Ok(Some(probe))
    }
}

/// Time before the first block, for loading and attaching programs.
const BEFORE: Duration = Duration::from_secs(30);
/// The limit of iperf3 (MAX_TIME in iperf.h).
const LONGEST_LOAD: Duration = Duration::from_secs(86_400 - 60);

/// Size of a probe in bytes.
const SIZE: u32 = 64;

fn metric(text: &str) -> Result<Metric, String> {
    text.parse().map_err(|_| format!("expected one of {METRICS}"))
}

fn cycles(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(cycles) if (CYCLES_MIN..=1000).contains(&cycles) => Ok(cycles),
        _ => Err(format!("expected {CYCLES_MIN} to 1000")),
    }
}

fn percent(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent),
        _ => Err("expected 0 to 100".to_owned()),
    }
}

/// `tune try --each --json`.
#[derive(Serialize)]
struct Trials {
    schema: u32,
    trials: Vec<TrialReport>,
}

impl Try {
    pub(super) fn run(&self) -> Result<(), Failure> {
        if self.load.is_wanted() && self.probe.probe.is_none() {
            let message = "--load requires --probe";
            return Err(Failure::Usage(message.to_owned()));
        }
        let interrupt = Interrupt::listen()?;
        let plan = self.plan.as_deref().map(plan_of).transpose()?;
        let netns = self.namespace.inode()?;
        let Tried { reports, ended } =
            self.namespace.read(|root| self.trials(root, plan, netns, &interrupt))?;
        match reports.as_slice() {
            // A failed trial has no report, only a reason.
            [] if ended.is_some() => {}
            [report] if self.json && !self.each => output::json(report)?,
            _ if self.json => output::json(&Trials { schema: TRIAL_SCHEMA, trials: reports })?,
            _ => {
                let texts: Vec<String> = reports.iter().map(|report| self.text(report)).collect();
                output::text(&texts.join("\n"))?;
            }
        }
        ended.map_or(Ok(()), |error| Err(error.into()))
    }

    fn text(&self, report: &TrialReport) -> String {
        let of = if self.each {
            format!("{}\n", text::printable(&report.changes.join(", ")))
        } else {
            String::new()
        };
        of + &text::trial(report)
    }

    fn trials(
        &self,
        root: &Root,
        plan: Option<Plan>,
        netns: Option<u64>,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Tried> {
        let boot = steering::boot(root)?;
        let plan = match plan {
            Some(plan) => plan,
            None => self.plan_options.plan(root, true)?,
        };
        for change in plan.changes.iter().filter(|change| !change.target.takes_effect_immediately())
        {
            say(&format!("{}: not tried: it takes effect after a restart", change.id));
        }
        // Also reports ids that are not in the plan.
        plan.steps(&self.only, &boot, current_netns(root).inode)?;
        let tried = self.tried(&plan);
        if tried.is_empty() {
            bail!("the plan has no changes to try");
        }
        let host = nearpath_host::read(root, &Wanted::default()).context("cannot read the host")?;
        let (direction, detail) = observed_for(&self.metric);
        let filter = Filters::one_way(direction, self.dev.clone(), self.plan_options.only_port());
        let filter = filter.resolve(&host, netns)?;
        let config = self.config();
        let probes = self.probe.plan()?;
        let loads = match &probes {
            Some(probes) => self.load.streams(probes.target.ip(), lasting(&config, tried.len()))?,
            None => Vec::new(),
        };
        let measured = Measured {
            metric: self.metric.clone(),
            options: Options {
                filter,
                detail,
                without: left_out(&self.metric),
                ..Options::default()
            },
            nics: self
                .dev
                .clone()
                .map_or_else(|| self.plan_options.nics().to_vec(), |dev| vec![dev]),
            probes,
            loads,
        };
        let executor = Executor::new(Journal::open(&Journal::folder(), &boot)?, Live::new());
        let meter = Meter::start(&host, measured)?;
        let mut bench = Bench { root, executor, meter, interrupt, config, boot: boot.clone() };
        let mut done = Tried::default();
        for changes in tried {
            let steps = plan.steps(&changes, &boot, current_netns(root).inode)?;
            let ids = changes.join(", ");
            match bench.trial(changes, steps) {
                Ok(report) => done.reports.push(report),
                Err(error) if self.each && error.is::<NothingMade>() => {
                    say(&format!("{ids}: {error:#}"));
                }
                Err(error) => {
                    done.ended = Some(error);
                    break;
                }
            }
        }
        Ok(done)
    }

    /// Groups of change ids that are tried together, in order.
    fn tried(&self, plan: &Plan) -> Vec<Vec<String>> {
        let is_wanted = |id: &String| self.only.is_empty() || self.only.contains(id);
        let takes_effect_now = |id: &String| {
            plan.changes
                .iter()
                .any(|change| change.id == *id && change.target.takes_effect_immediately())
        };
        if self.each {
            let ids = plan.by_effect().into_iter().filter(is_wanted);
            return ids.filter(takes_effect_now).map(|id| vec![id]).collect();
        }
        let ids = plan.changes.iter().map(|change| change.id.clone());
        let all: Vec<String> = ids.filter(is_wanted).filter(takes_effect_now).collect();
        if all.is_empty() { Vec::new() } else { vec![all] }
    }

    fn config(&self) -> TrialConfig {
        let Self { cycles, block, warm_up, minimum_effect: minimum_effect_percent, .. } = *self;
        TrialConfig { cycles, block, warm_up, minimum_effect_percent }
    }
}

/// Upper bound for the run time of a load, including the switches. It is stopped when the trials are done.
fn lasting(config: &TrialConfig, trials: usize) -> Duration {
    let trials = u32::try_from(trials).unwrap_or(u32::MAX);
    (config.time().saturating_mul(trials).saturating_mul(2) + BEFORE).min(LONGEST_LOAD)
}

/// The completed trials, and the error that stopped them early, if any.
#[derive(Default)]
struct Tried {
    reports: Vec<TrialReport>,
    ended: Option<anyhow::Error>,
}
