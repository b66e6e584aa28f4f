//! `nearpath tune try`: applies and undoes a plan alternately (A/B) under traffic, and keeps it only if it
//! improves the metric.

use super::apply::plan_of;
use super::confirm::ConfirmWithin;
use super::plan::PlanOptions;
use crate::commands::bench::{Load, target, unescaped};
use crate::commands::diagnose::Looking;
use crate::failure::{Failure, say};
use crate::filters::Filters;
use crate::guardian::{Asker, Guardian, executor};
use crate::interrupt::Interrupt;
use crate::output;
use crate::session::duration;
use crate::source::Namespace;
use crate::trial::{
    ABOVE_NS, Bench, Compared, Measured, Meter, NothingMade, ProbePlan, TrialConfig,
};
use anyhow::{Context, bail};
use clap::Args;
use nearpath_host::{Root, Wanted, current_netns};
use nearpath_instruments::stages::{NIC_RX, Options};
use nearpath_model::{
    CpuSet, Detail, Diagnosis, Direction, Host, PathKind, Pending, Plan, TRIAL_SCHEMA, TrialReport,
};
use nearpath_trial::latency::{
    Arrivals, LatencyPlan, Loop, MAX_CONNECTIONS, MAX_RATE_PER_S, SocketOptions, Transport,
};
use nearpath_trial::live::{Figure, METRICS, Metric};
use nearpath_trial::requests::RequestPlan;
use nearpath_tune::{Live, steering};
use nearpath_views::text;
use serde::Serialize;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

const AFTER_HELP: &str = "\
Traffic must flow during the trial: the host's own, or with --probe that of a prober. Blocks without
the plan and with it follow each other in pairs, in random order, until the packets decide: a plan
that halves a latency after a few pairs, one that helps by a tenth within two minutes. Without --metric
that is by p50, p99 and the share above 1 ms of received packets, and by those lost. The plan is kept
only if one of these is better by more than chance and --minimum-effect, and none is worse, nor are
CPU time and packet rate. Otherwise, on the first error and on Ctrl-C it is undone. If the plan does
harm, the trial stops by itself. The changes are in the journal during the trial.

METRICS
  p50 p90 p99 p99.9   percentile of the end-to-end time of received packets: from the first observed
                      stage until they are read
  mean                mean of the same time
  above:TIME          share of packets that take longer: above:250us, for tails beyond p99.9
  PATH:p99, ...       the same for one kind of path, named as in 'nearpath measure stages': receive,
                      forward, transmit, kernel_transmit; receive_from_nic and forward_from_nic
                      start at the NIC's timestamp (the others do not use it in a trial)
  stage:FROM..TO      99th percentile of one span, named as in 'nearpath measure stages'
  pps                 packets per second that complete their path
  gbps                10⁹ bits per second received and sent, from the counters of --dev or --nic
                      (default: all hardware interfaces)
With --probe, p50 to p99.9, mean and above without PATH are round-trip times of the probes, in open
loop; with --request those of the application's own answers.

EXAMPLES
  nearpath tune try --nic eth0 --port 443
  nearpath tune try plan.json --metric p99.9 --try-for 10m
  nearpath tune try plan.json --each           each kind of change individually; keep those that help
  nearpath tune try --nic eth0 --probe 10.0.0.2    with 'nearpath bench reflect' on 10.0.0.2
  nearpath tune try --nic eth0 --probe 10.0.0.2:6379 --request 'PING\\r\\n'    an application
  nearpath tune try --nic eth0 --probe 10.0.0.2 --load tcp --load-reverse
                                               needs 'bench reflect --load' on 10.0.0.2
  nearpath tune try --nic eth0 --metric forward:p99    packets that this host forwards
  nearpath tune try --nic eth0 --metric gbps";

/// Arguments of `tune try`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub struct Try {
    /// Plan written by 'nearpath tune plan --json'; '-' is standard input
    #[arg(value_name = "PLAN")]
    #[arg(conflicts_with_all = ["goal", "nic", "pid", "unit", "mode", "irq_cpus", "app_cpus", "exclude_cpus", "channels", "priority", "cpuset", "stop_irqbalance", "napi", "performance", "wakeup_latency", "reasons", "move_memory", "hugepages", "boot_parameter", "sysctl", "findings"])]
    plan: Option<PathBuf>,
    /// Only the change with this id; repeatable
    #[arg(long, value_name = "ID")]
    only: Vec<String>,
    /// Decide by this metric of received packets (only those to or from --port, if given)
    #[arg(long, value_name = "METRIC", value_parser = metric)]
    metric: Option<Metric>,
    /// Only packets received by this interface
    #[arg(long, value_name = "NAME")]
    dev: Option<String>,
    /// Undecided after this time, a trial ends
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = duration)]
    try_for: Duration,
    /// Duration of a block; lengthened, to five seconds at most, if it has too few packets
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = duration)]
    block: Duration,
    /// Time for the host to settle after each switch [default: measured]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    warm_up: Option<Duration>,
    /// Ignore differences below this, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0, value_parser = percent)]
    minimum_effect: f64,
    /// Try the changes of each kind and interface, process or cgroup by themselves, those with the largest predicted
    /// effect first, and keep those that help; they share the probability of a false verdict
    #[arg(long)]
    each: bool,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    probe: Probe,
    #[command(flatten)]
    load: Load,
    #[command(flatten, next_help_heading = "Plan")]
    plan_options: PlanOptions,
    #[command(flatten)]
    namespace: Namespace,
    #[command(flatten, next_help_heading = None::<&'static str>)]
    confirm_within: ConfirmWithin,
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
    /// Probe the application itself: this request over one TCP connection, whose answers have the same length;
    /// \r, \n, \t, \0, \xNN and \\ are escapes
    #[arg(long, value_name = "TEXT", requires = "probe", conflicts_with_all = ["probe_tcp", "probe_connections"])]
    request: Option<String>,
}

/// The mean of received packets, whose latencies have all percentiles.
const PACKETS: Metric = Metric::Path { kind: None, figure: Figure::Mean };

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
    /// The address that is probed.
    fn target(&self) -> anyhow::Result<Option<SocketAddr>> {
        self.probe.as_deref().map(target).transpose()
    }

    /// The probes, if requested; without timestamps, to reduce overhead. They run on the spare CPUs, if there are any,
    /// and spin if each thread can have one.
    fn plan(&self, spare: &CpuSet) -> anyhow::Result<Option<ProbePlan>> {
        let Some(target) = self.target()? else { return Ok(None) };
        if let Some(request) = &self.request {
            let (warm_up, duration) = (Duration::ZERO, Duration::ZERO);
            let request = unescaped(request)?;
            let rate_per_s = self.probe_rate;
            return Ok(Some(ProbePlan::Application(RequestPlan {
                target,
                request,
                rate_per_s,
                warm_up,
                duration,
            })));
        }
        let threads = 2 * self.probe_connections as usize;
        Ok(Some(ProbePlan::Reflector(LatencyPlan {
            target,
            transport: if self.probe_tcp { Transport::Tcp } else { Transport::Udp },
            mode: Loop::Open(Arrivals::Poisson),
            rate_per_s: Some(self.probe_rate),
            size: SIZE,
            connections: self.probe_connections,
            warm_up: Duration::ZERO,
            duration: Duration::ZERO,
            late_after: LATE_AFTER,
            split: false,
            echo: false,
            spin: spare.len() >= threads,
            lead: None,
            cpus: (!spare.is_empty()).then(|| spare.clone()),
            options: SocketOptions::default(),
        })))
    }
}

/// CPUs that a prober can have without changing what is compared: the plan neither takes them nor frees them, no
/// interrupt of a NIC goes to them, and they are less than half of all.
fn spare_cpus(host: &Host, plan: &Plan) -> CpuSet {
    let mut spare: CpuSet =
        host.topology.cpus.iter().filter(|cpu| cpu.online).map(|cpu| cpu.cpu).collect();
    let online = spare.len();
    for change in &plan.changes {
        for value in [&change.before, &change.after] {
            let set = change.target.set_of(value).unwrap_or_default();
            // A mask of all CPUs takes none in particular.
            if set.len() < online {
                spare = spare.difference(&set);
            }
        }
    }
    for irq in host.irqs.iter().filter(|irq| host.name_of_irq(irq.irq).is_some()) {
        if let Some(set) = irq.effective_affinity.as_ref().filter(|set| set.len() < online) {
            spare = spare.difference(set);
        }
    }
    let most = online / 2;
    let first = spare.len().saturating_sub(most);
    spare.iter().skip(first).collect()
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
        let measured = match plan.is_none() && !self.plan_options.has_findings() {
            true => Some(Looking::briefly(self.namespace.name())?.live_here()?),
            false => None,
        };
        let netns = self.namespace.inode()?;
        let Tried { reports, ended } = self
            .namespace
            .read(|root| self.trials(root, plan, measured.as_ref(), netns, &interrupt))?;
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
        measured: Option<&Diagnosis>,
        netns: Option<u64>,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Tried> {
        let boot = steering::boot(root)?;
        let plan = match plan {
            Some(plan) => plan,
            None => self.plan_options.plan_with(root, true, measured)?,
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
        let metric = self.metric.as_ref().unwrap_or(&PACKETS);
        let (direction, detail) = observed_for(metric);
        let filter = Filters::one_way(direction, self.dev.clone(), self.plan_options.only_port());
        let filter = filter.resolve(&host, netns)?;
        let config = self.config(&host, tried.len());
        let probes = self.probe.plan(&spare_cpus(&host, &plan))?;
        let loads = match self.probe.target()? {
            Some(target) => self.load.streams(target.ip(), lasting(&config))?,
            None => Vec::new(),
        };
        let measured = Measured {
            metric: metric.clone(),
            options: Options { filter, detail, without: left_out(metric), ..Options::default() },
            nics: self
                .dev
                .clone()
                .map_or_else(|| self.plan_options.nics().to_vec(), |dev| vec![dev]),
            probes,
            loads,
        };
        let executor = executor(&boot, Live::new())?.pending(Some(Pending::Trial));
        let meter = Meter::start(root, &host, measured)?;
        let guardian = Guardian::start(Pending::Trial)?;
        let (asker, boot) = (Asker::parent(), boot.clone());
        let mut bench = Bench { root, executor, meter, interrupt, asker, config, boot };
        let mut done = Tried::default();
        let base = bench.executor.last();
        for changes in tried {
            let steps = plan.steps(&changes, &bench.boot, current_netns(root).inode)?;
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
        self.confirm_within.decide(&mut bench.executor, base)?;
        guardian.finish()?;
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
            let of_group = |group: Vec<String>| -> Vec<String> {
                group.into_iter().filter(is_wanted).filter(takes_effect_now).collect()
            };
            let groups = plan.groups().into_iter().map(of_group);
            return groups.filter(|group| !group.is_empty()).collect();
        }
        let ids = plan.changes.iter().map(|change| change.id.clone());
        let all: Vec<String> = ids.filter(is_wanted).filter(takes_effect_now).collect();
        if all.is_empty() { Vec::new() } else { vec![all] }
    }

    fn config(&self, host: &Host, trials: usize) -> TrialConfig {
        TrialConfig {
            compared: match &self.metric {
                None => Compared::Packets { above_ns: ABOVE_NS },
                Some(metric) => Compared::Metric(metric.clone()),
            },
            limit: self.try_for,
            block: self.block,
            settling: self.warm_up,
            minimum_effect: self.minimum_effect / 100.0,
            trials,
            irqbalance: host.daemons.irqbalance == Some(true),
        }
    }
}

/// Upper bound for the run time of a load, including the switches. It is stopped when the trials are done.
fn lasting(config: &TrialConfig) -> Duration {
    let trials = u32::try_from(config.trials).unwrap_or(u32::MAX);
    // The last pair of blocks may begin just before the limit.
    (config.limit.saturating_mul(trials).saturating_mul(2) + BEFORE).min(LONGEST_LOAD)
}

/// The completed trials, and the error that stopped them early, if any.
#[derive(Default)]
struct Tried {
    reports: Vec<TrialReport>,
    ended: Option<anyhow::Error>,
}
