//! Measures the blocks of a trial with the instrument `stages`, whose programs stay attached all the time so that
//! both sides bear the same overhead; the byte counters of interfaces; and, if requested, a prober that runs all
//! the time.

use crate::failure::say;
use anyhow::{Context, bail};
use nearpath_host::Root;
use nearpath_instruments::Instrument;
use nearpath_instruments::stages::{Options, Stages};
use nearpath_model::{Block, Hops, Host, NicKind, PathKind};
use nearpath_trial::background::Loading;
use nearpath_trial::latency::{LatencyPlan, Probing};
use nearpath_trial::live::{Metric, Reading, block};
use std::time::Instant;

/// Measures a block from its start to its end.
pub struct Meter {
    metric: Metric,
    /// `None` if packets cannot be followed and the metric does not need them.
    stages: Option<Stages>,
    probing: Option<Probing>,
    /// Background load.
    loads: Vec<Loading>,
    /// The interfaces whose bytes are counted.
    nics: Vec<String>,
    started: Instant,
    began: Option<Reading>,
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
    pub probes: Option<LatencyPlan>,
    /// Running loads, which must not end during the trial.
    pub loads: Vec<Loading>,
}

impl Meter {
    /// Starts to observe packets and to probe, in the calling thread's network namespace.
    ///
    /// # Errors
    /// Packets cannot be observed here and the metric needs them; no reflector answers.
    pub fn start(host: &Host, measured: Measured) -> anyhow::Result<Self> {
        let Measured { metric, options, nics, probes, loads } = measured;
        let probing = probes.map(|plan| Probing::start(&plan)).transpose()?;
        let of_probes = probing.is_some() && metric.is_of_probes();
        let mut stages = Stages::new(&host.topology, options);
        let stages = match stages.start() {
            Ok(()) => Some(stages),
            Err(reason) if of_probes || metric == Metric::Bits => {
                say(&format!("cannot observe packets, so CPU hops are unknown: {reason}"));
                None
            }
            Err(reason) => return Err(reason).context("cannot measure"),
        };
        let nics = if nics.is_empty() { counted(host) } else { nics };
        Ok(Self { metric, stages, probing, loads, nics, started: Instant::now(), began: None })
    }

    /// The metric.
    pub fn metric(&self) -> &Metric {
        &self.metric
    }

    /// The kind of path that the metric is of.
    pub fn path(&self) -> Option<PathKind> {
        self.metric.path(self.probing.is_some())
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
    /// It cannot be measured, has too little data for the metric, or the load has ended.
    pub fn end(&mut self, root: &Root) -> anyhow::Result<(Block, Option<Hops>)> {
        let end = self.reading(root)?;
        self.check_loads()?;
        let begin = self.began.take().context("no block was started")?;
        block(&self.metric, &begin, &end).map_err(anyhow::Error::msg)
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
        Ok(Reading {
            measurement: measurement.context("cannot measure")?,
            probes: self.probing.as_mut().map(Probing::look).transpose()?,
            bytes: self.bytes(root),
            cpu_time: nearpath_host::read_cpu_time(root),
            time_s: self.started.elapsed().as_secs_f64(),
        })
    }

    /// Bytes received and sent by the interfaces; `None` if a counter cannot be read.
    fn bytes(&self, root: &Root) -> Option<u64> {
        let count = |nic: &String, way: &str| -> Option<u64> {
            root.text(&format!("/sys/class/net/{nic}/statistics/{way}_bytes")).ok()?.parse().ok()
        };
        self.nics.iter().map(|nic| Some(count(nic, "rx")?.wrapping_add(count(nic, "tx")?))).sum()
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
