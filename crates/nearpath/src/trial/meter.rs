//! Measures the blocks of a trial with the instrument `stages`, whose programs stay attached all the time so that
//! both sides bear the same overhead; the byte counters of interfaces; and, if requested, a prober that runs all
//! the time.

use super::links::Links;
use crate::failure::say;
use anyhow::{Context, bail};
use nearpath_host::Root;
use nearpath_instruments::stages::{Options, Stages};
use nearpath_instruments::{Filter, Instrument};
use nearpath_model::{Block, Direction, Hops, Host, NicKind, PathKind};
use nearpath_trial::background::Loading;
use nearpath_trial::comparison::{Buckets, own};
use nearpath_trial::latency::{LatencyPlan, Probing};
use nearpath_trial::live::{Figure, Metric, Needs, Reading, block, latencies};
use nearpath_trial::requests::{RequestPlan, Requesting};
use std::time::Instant;

/// Measures a block from its start to its end.
pub struct Meter {
    metric: Metric,
    /// `None` if packets cannot be followed and the metric does not need them.
    stages: Option<Stages>,
    prober: Option<Prober>,
    /// Background load.
    loads: Vec<Loading>,
    /// Whether no packet that this namespace receives is left out.
    sees_all: bool,
    /// The interfaces that are counted.
    links: Links,
    started: Instant,
    began: Option<Reading>,
}

/// Who probes.
enum Prober {
    Reflector(Probing),
    Application(Requesting),
}

/// What to probe.
pub enum ProbePlan {
    /// A reflector.
    Reflector(LatencyPlan),
    /// The application itself, with a request of its own protocol.
    Application(RequestPlan),
}

impl ProbePlan {
    fn start(self) -> anyhow::Result<Prober> {
        Ok(match self {
            Self::Reflector(plan) => Prober::Reflector(Probing::start(&plan)?),
            Self::Application(plan) => {
                let target = plan.target;
                let started = Requesting::start(plan);
                Prober::Application(
                    started.with_context(|| format!("the application at {target}"))?,
                )
            }
        })
    }
}

/// A measured block.
pub(super) struct Found {
    pub(super) block: Block,
    pub(super) hops: Option<Hops>,
    /// The latencies that the metric is of, if it is of any.
    pub(super) latencies: Option<Buckets>,
}

/// What to measure.
pub struct Measured {
    /// The metric.
    pub metric: Metric,
    /// How packets are observed.
    pub options: Options,
    /// The interfaces whose bytes are counted; empty means those with hardware, or else all but loopback.
    pub nics: Vec<String>,
    /// The probes; `None` means the host's own traffic.
    pub probes: Option<ProbePlan>,
    /// Running loads, which must not end during the trial.
    pub loads: Vec<Loading>,
}

impl Meter {
    /// Starts to observe packets and to probe, in the calling thread's network namespace.
    ///
    /// # Errors
    /// Packets cannot be observed here and the metric needs them; no reflector answers.
    pub fn start(root: &Root, host: &Host, measured: Measured) -> anyhow::Result<Self> {
        let Measured { metric, options, nics, probes, loads } = measured;
        let prober = probes.map(ProbePlan::start).transpose()?;
        let sent_only = options.filter.direction == Some(Direction::Tx);
        let filter = Filter { netns: None, direction: None, ..options.filter.clone() };
        let sees_all = prober.is_none() && !sent_only && filter == Filter::default();
        let of_probes = prober.is_some() && metric.is_of_probes();
        let mut stages = Stages::new(&host.topology, options);
        let stages = match stages.start() {
            Ok(()) => Some(stages),
            Err(reason) if of_probes || metric == Metric::Bits => {
                say(&format!("cannot observe packets, so CPU hops are unknown: {reason}"));
                None
            }
            Err(reason) => return Err(reason).context("cannot measure"),
        };
        let links = Links::new(root, if nics.is_empty() { counted(host) } else { nics });
        let sees_all = sees_all && stages.is_some();
        let (started, began) = (Instant::now(), None);
        Ok(Self { metric, stages, prober, loads, sees_all, links, started, began })
    }

    /// The kind of path that the metric is of.
    pub fn path(&self) -> Option<PathKind> {
        self.metric.path(self.prober.is_some())
    }

    /// Starts a block.
    ///
    /// # Errors
    /// It cannot be measured.
    pub fn begin(&mut self, root: &Root) -> anyhow::Result<()> {
        self.began = Some(self.reading(root)?);
        Ok(())
    }

    /// Ends a block.
    ///
    /// # Errors
    /// It cannot be measured, has not what it needs for the metric, or the load has ended.
    pub(super) fn end(&mut self, root: &Root, needs: Needs) -> anyhow::Result<Found> {
        let end = self.reading(root)?;
        self.check_loads()?;
        let begin = self.began.take().context("no block was started")?;
        let (block, hops) = block(&self.metric, &begin, &end, needs).map_err(anyhow::Error::msg)?;
        let latencies = latencies(&self.metric, &begin, &end);
        Ok(Found { block, hops, latencies })
    }

    /// The metric in a short window, for how it changes; of a percentile the mean, which needs fewer packets. `None` if
    /// it has no value.
    ///
    /// # Errors
    /// It cannot be measured.
    pub(super) fn window(&mut self, root: &Root) -> anyhow::Result<Option<f64>> {
        let end = self.reading(root)?;
        let metric = match &self.metric {
            Metric::Path { kind, .. } => Metric::Path { kind: *kind, figure: Figure::Mean },
            other => other.clone(),
        };
        let begin = self.began.replace(end.clone()).context("no block was started")?;
        let found = block(&metric, &begin, &end, Needs::Anything).ok();
        Ok(found.and_then(|(block, _)| own(&block.observed)))
    }

    /// Whether what it measures is of all packets that this namespace receives.
    pub(super) fn sees_all(&self) -> bool {
        self.sees_all
    }

    /// The interfaces.
    pub(super) fn links(&mut self) -> &mut Links {
        &mut self.links
    }

    fn check_loads(&mut self) -> anyhow::Result<()> {
        let Some(ended) = self.loads.iter_mut().position(Loading::has_ended) else { return Ok(()) };
        let report = self.loads.swap_remove(ended).finish(true);
        bail!(
            "the load to {} port {} has ended: {}",
            report.target,
            report.port,
            report.failure.as_deref().unwrap_or("iperf3 gave no reason")
        )
    }

    fn reading(&mut self, root: &Root) -> anyhow::Result<Reading> {
        let measurement = self.stages.as_mut().map(Instrument::read).transpose();
        let probes = match &mut self.prober {
            None => None,
            Some(Prober::Reflector(probing)) => Some(probing.look()?),
            Some(Prober::Application(requesting)) => {
                Some(requesting.look().context("probing the application")?)
            }
        };
        Ok(Reading {
            measurement: measurement.context("cannot measure")?,
            probes,
            interfaces: self.links.read(root),
            cpu_time: nearpath_host::read_cpu_time(root),
            time_s: self.started.elapsed().as_secs_f64(),
        })
    }
}

/// The interfaces whose bytes are counted by default, without counting any twice: those with hardware, or else all
/// but loopback.
fn counted(host: &Host) -> Vec<String> {
    let is_hardware = |kind| matches!(kind, NicKind::Physical | NicKind::Vf | NicKind::Virtio);
    let names = |wanted: &dyn Fn(NicKind) -> bool| -> Vec<String> {
        let nics = host.nics.iter().filter(|nic| wanted(nic.kind));
        nics.map(|nic| nic.name.clone()).collect()
    };
    let hardware = names(&is_hardware);
    if hardware.is_empty() { names(&|kind| kind != NicKind::Loopback) } else { hardware }
}
