//! `nearpath tune try`: applies a plan and undoes it in turns while traffic flows, and keeps it only if
//! it made things better.

use super::apply::plan_of;
use super::plan::Asked;
use crate::commands::bench::{Load, target};
use crate::failure::{Failure, say};
use crate::filters::Filters;
use crate::interrupt::Interrupt;
use crate::output;
use crate::session::duration;
use crate::source::Namespace;
use crate::trial::{Bench, Course, Measured, Meter, NothingMade};
use anyhow::{Context, bail};
use clap::Args;
use nearpath_host::{Root, Wanted, current_netns};
use nearpath_instruments::stages::{NIC_RX, Options};
use nearpath_model::{Demands, Detail, Direction, PathKind, Plan, TRIAL_SCHEMA, TrialReport};
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
The traffic must flow meanwhile: it is the host's own, or with --probe that of a prober. Blocks of time without the plan (A) and with
it (B) take turns, A B B A, so that slow drift cancels out; the difference is given with a
confidence interval of 95 % (bootstrap over the cycles), beside what the blocks without the plan
differ among themselves. The plan is kept only when it is better: beyond noise and --minimum-effect,
without more loss, CPU time or fewer packets than the guards allow. Otherwise, at the first error
and at ^C it is undone. What was changed stands in the journal meanwhile.

METRICS
  p50 p90 p99 p99.9   this percentile of received packets' time from end to end: from the first stage
                      that is observed until they are read
  mean                the mean of that
  PATH:p99, ...       the same of one kind of path, as 'nearpath measure stages' names it: receive,
                      forward, transmit, kernel_transmit; receive_from_nic and forward_from_nic are those
                      that begin at a NIC's time stamp (which the others do without, in a trial)
  stage:FROM..TO      the 99th percentile of one span, as 'nearpath measure stages' names it
  pps                 packets that reach their end, per second
  gbps                10⁹ bits a second that --dev or --nic (else all interfaces with hardware)
                      receives and sends, by its own counters
With --probe, p50 to p99.9 and mean without PATH are those of the probes' round trips, in open loop.

EXAMPLES
  nearpath tune try --nic eth0 --port 443
  nearpath tune try plan.json --metric mean --cycles 20 --block 5s
  nearpath tune try plan.json --each           one change after the other; keep those that help
  nearpath tune try --nic eth0 --probe 10.0.0.2    'nearpath bench reflect' runs on 10.0.0.2
  nearpath tune try --nic eth0 --probe 10.0.0.2 --load tcp --load-reverse
                                               and 'bench reflect --load' there: beside a stream to here
  nearpath tune try --nic eth0 --metric forward:p99    of packets that this host forwards
  nearpath tune try --nic eth0 --metric gbps";

/// How many cycles a trial has, unless told.
const CYCLES: usize = 12;

/// Arguments of `tune try`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub struct Try {
    /// A plan that 'nearpath tune plan --json' wrote; '-' is standard input
    #[arg(value_name = "PLAN")]
    #[arg(conflicts_with_all = ["goal", "nic", "pid", "unit", "cpus", "housekeeping", "channels", "vlan_priority", "cpuset", "stop_irqbalance", "reasons", "hugepages", "findings"])]
    plan: Option<PathBuf>,
    /// Only the change with this id; may be given again
    #[arg(long, value_name = "ID")]
    only: Vec<String>,
    /// What is compared, of the packets that come in (to and from --port, where one is given)
    #[arg(long, default_value = "p99", value_name = "METRIC", value_parser = metric)]
    metric: Metric,
    /// Only packets that come by this interface
    #[arg(long, value_name = "NAME")]
    dev: Option<String>,
    /// How many cycles of four blocks
    #[arg(long, value_name = "N", default_value_t = CYCLES, value_parser = cycles)]
    cycles: usize,
    /// How long a block is
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration)]
    block: Duration,
    /// How long the host settles after it was switched
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = duration)]
    warm_up: Duration,
    /// A smaller difference counts as none, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = Demands::default().minimum_effect_percent)]
    #[arg(value_parser = percent)]
    minimum_effect: f64,
    /// Try the changes one by one, those with the largest predicted effect first, and keep those that help
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
    asked: Asked,
    #[command(flatten)]
    namespace: Namespace,
}

/// Probes in the place of the host's own traffic.
#[derive(Debug, Args)]
#[command(next_help_heading = "Probes")]
struct Probe {
    /// Compare round trips to the reflector ('nearpath bench reflect') at HOST or HOST:PORT
    #[arg(long, value_name = "HOST[:PORT]")]
    probe: Option<String>,
    /// Probes per second, of all connections together
    #[arg(long, value_name = "N", default_value_t = 2_000, requires = "probe")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_RATE_PER_S)))]
    probe_rate: u32,
    /// Connections (flows of UDP), which queues and CPUs are chosen for by their hash
    #[arg(long, value_name = "N", default_value_t = 4, requires = "probe")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_CONNECTIONS)))]
    probe_connections: u32,
    /// Probe over TCP instead of UDP
    #[arg(long, requires = "probe")]
    probe_tcp: bool,
}

/// Which packets are followed for a metric, and through how many stages. Whether a packet leaves in a send call
/// is known where send calls are observed.
fn observed_for(metric: &Metric) -> (Direction, Detail) {
    match metric.path(false) {
        Some(PathKind::Transmit | PathKind::KernelTransmit) => (Direction::Tx, Detail::Path),
        _ => (Direction::Rx, Options::default().detail),
    }
}

/// Stages that are not observed for a metric: packets that a NIC has stamped have paths of kinds of their own, and would
/// be missing among the others.
fn left_out(metric: &Metric) -> Vec<String> {
    let from_nic = match metric {
        Metric::Span { from, .. } => from == NIC_RX,
        metric => metric.path(false).is_some_and(PathKind::is_from_nic),
    };
    if from_nic { Vec::new() } else { vec![NIC_RX.to_owned()] }
}

/// From when on an answer counts as late.
const LATE_AFTER: Duration = Duration::from_secs(1);

impl Probe {
    /// The probes, if any are wanted: without stamps, which cost something.
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

/// What passes before the first block: programs are loaded and attached.
const BEFORE: Duration = Duration::from_secs(30);
/// iperf3 takes no more (MAX_TIME of its iperf.h).
const LONGEST_LOAD: Duration = Duration::from_secs(86_400 - 60);

/// Bytes of a probe.
const SIZE: u32 = 64;

fn metric(text: &str) -> Result<Metric, String> {
    text.parse().map_err(|_| format!("there are {METRICS}"))
}

fn cycles(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(cycles) if (CYCLES_MIN..=1000).contains(&cycles) => Ok(cycles),
        _ => Err(format!("from {CYCLES_MIN} to 1000")),
    }
}

fn percent(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent),
        _ => Err("from 0 to 100".to_owned()),
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
            let message = "--load goes to where --probe goes; give that, too";
            return Err(Failure::Usage(message.to_owned()));
        }
        let interrupt = Interrupt::listen()?;
        let plan = self.plan.as_deref().map(plan_of).transpose()?;
        let netns = self.namespace.inode()?;
        let Tried { reports, ended } =
            self.namespace.read(|root| self.trials(root, plan, netns, &interrupt))?;
        match reports.as_slice() {
            // Of one that failed nothing is there but why.
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
            None => self.asked.plan(root, true)?,
        };
        for change in plan.changes.iter().filter(|change| !change.target.is_felt_at_once()) {
            say(&format!("{} is not tried: it is felt after a restart", change.id));
        }
        // Also says so when an id is not in the plan.
        plan.steps(&self.only, &boot, current_netns(root).inode)?;
        let tried = self.tried(&plan);
        if tried.is_empty() {
            bail!("the plan has no changes: there is nothing to try");
        }
        let host = nearpath_host::read(root, &Wanted::default()).context("cannot read the host")?;
        let (direction, detail) = observed_for(&self.metric);
        let filter = Filters::one_way(direction, self.dev.clone(), self.asked.only_port());
        let filter = filter.resolve(&host, netns)?;
        let course = self.course();
        let probes = self.probe.plan()?;
        let loads = match &probes {
            Some(probes) => self.load.streams(probes.target.ip(), lasting(&course, tried.len()))?,
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
            nics: self.dev.clone().map_or_else(|| self.asked.nics().to_vec(), |dev| vec![dev]),
            probes,
            loads,
        };
        let executor = Executor::new(Journal::open(&Journal::folder(), &boot)?, Live::new());
        let meter = Meter::start(&host, measured)?;
        let mut bench = Bench { root, executor, meter, interrupt, course, boot: boot.clone() };
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

    /// What is tried together, in this order.
    fn tried(&self, plan: &Plan) -> Vec<Vec<String>> {
        let is_wanted = |id: &String| self.only.is_empty() || self.only.contains(id);
        let felt = |id: &String| {
            plan.changes.iter().any(|change| change.id == *id && change.target.is_felt_at_once())
        };
        if self.each {
            let ids = plan.by_effect().into_iter().filter(is_wanted);
            return ids.filter(felt).map(|id| vec![id]).collect();
        }
        let ids = plan.changes.iter().map(|change| change.id.clone());
        let all: Vec<String> = ids.filter(is_wanted).filter(felt).collect();
        if all.is_empty() { Vec::new() } else { vec![all] }
    }

    fn course(&self) -> Course {
        let Self { cycles, block, warm_up, minimum_effect: minimum_effect_percent, .. } = *self;
        Course { cycles, block, warm_up, minimum_effect_percent }
    }
}

/// How long a load must last: switching takes time as well, and it is ended when all is done.
fn lasting(course: &Course, trials: usize) -> Duration {
    let trials = u32::try_from(trials).unwrap_or(u32::MAX);
    (course.time().saturating_mul(trials).saturating_mul(2) + BEFORE).min(LONGEST_LOAD)
}

/// The trials that were made, and what ended them before their time.
#[derive(Default)]
struct Tried {
    reports: Vec<TrialReport>,
    ended: Option<anyhow::Error>,
}
