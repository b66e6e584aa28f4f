//! A trial on this host: a plan is applied and undone alternately (A/B) while a meter measures, and stays applied
//! only if it improves the metric. Used by `tune try` and `demo tune`.
//!
//! Input: the steps of a plan, an executor with its journal, and a meter. Output: a report. The changes are in the
//! journal during the trial.

mod meter;

pub use meter::{Measured, Meter};

use crate::failure::say;
use crate::interrupt::Interrupt;
use crate::session::Progress;
use anyhow::{Context, bail};
use nearpath_host::Root;
use nearpath_model::{
    Block, Comparison, Hops, Moved, Step, TRIAL_SCHEMA, Thresholds, TrialReport, Verdict,
};
use nearpath_trial::comparison::compare;
use nearpath_trial::experiment::{self, Experiment};
use nearpath_tune::{Executor, Live};
use std::fmt;
use std::time::{Duration, Instant};

/// Seed of the bootstrap: the same blocks give the same numbers.
const SEED: u64 = 1;

/// The configuration of a trial.
#[derive(Debug, Clone, Copy)]
pub struct TrialConfig {
    /// Number of cycles, of four blocks each.
    pub cycles: usize,
    /// Duration of a block.
    pub block: Duration,
    /// How long the host settles after each switch.
    pub warm_up: Duration,
    /// Smaller differences are ignored, in percent.
    pub minimum_effect_percent: f64,
}

impl TrialConfig {
    /// The total duration.
    pub fn time(&self) -> Duration {
        let blocks = self.blocks();
        // Two switches per cycle, and one at the start.
        self.block * blocks + self.warm_up * (blocks / 2 + 1)
    }

    fn blocks(&self) -> u32 {
        u32::try_from(4 * self.cycles).unwrap_or(u32::MAX)
    }
}

/// The host with its journal: plans can be applied and undone, and packets are observed all the time.
pub struct Bench<'a> {
    pub root: &'a Root,
    pub executor: Executor<Live>,
    pub meter: Meter,
    pub interrupt: &'a Interrupt,
    pub config: TrialConfig,
    pub boot: String,
}

impl Bench<'_> {
    /// Tries these steps, and leaves them applied only if they improve the metric. `changes` are their names, for
    /// the report.
    ///
    /// # Errors
    /// The kernel refused, a block cannot be measured, or a signal arrived; the steps are undone.
    pub fn trial(&mut self, changes: Vec<String>, steps: Vec<Step>) -> anyhow::Result<TrialReport> {
        let one_way = one_way(&steps);
        if !steps.is_empty() && one_way.len() == steps.len() {
            return Err(NothingMade(format!(
                "{}, so that it cannot be tried alternately; use 'nearpath tune apply'",
                one_way.join("; ")
            ))
            .into());
        }
        let base = self.executor.entries().last().map_or(0, |entry| entry.id);
        let mut switched =
            Switched { bench: self, steps, base, with: false, hops: [Vec::new(), Vec::new()] };
        let compared = switched.compared();
        let keep = matches!(&compared, Ok(comparison) if comparison.verdict == Verdict::Better);
        let left = if keep { switched.set(true) } else { switched.undo() };
        let comparison = match (compared, left) {
            (Ok(comparison), Ok(())) => comparison,
            (Ok(_), Err(error)) => return Err(error),
            (Err(error), Ok(())) => return Err(error.context("plan undone")),
            (Err(error), Err(undo)) => {
                say(&format!("{undo:#}; see 'nearpath tune status'"));
                return Err(error);
            }
        };
        let [without, with] = switched.hops.each_ref().map(|hops| mean(hops));
        let metric = self.meter.metric();
        Ok(TrialReport {
            schema: TRIAL_SCHEMA,
            changes,
            metric: metric.to_string(),
            path: self.meter.path(),
            comparison: if metric.is_rate() { comparison.of_rate() } else { comparison },
            mechanism: without.zip(with).map(|(without, with)| Moved { without, with }),
            kept: keep,
            one_way,
        })
    }
}

/// The targets that an undo leaves as they are, with the reason: they cannot be tried alternately.
fn one_way(steps: &[Step]) -> Vec<String> {
    let stays = |step: &Step| {
        let target = &step.change.target;
        Some(format!("{target}: {}", target.one_way()?))
    };
    steps.iter().filter_map(stays).collect()
}

/// No change of a plan can be applied or undone, or the host already has all of them.
#[derive(Debug)]
pub struct NothingMade(String);

impl fmt::Display for NothingMade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no change of the plan can be applied: {}", self.0)
    }
}

impl std::error::Error for NothingMade {}

/// The host under one trial.
struct Switched<'b, 'a> {
    bench: &'b mut Bench<'a>,
    steps: Vec<Step>,
    /// The last change in the journal before the trial.
    base: u64,
    with: bool,
    /// Hops in the blocks without the plan and with it, if packets are observed.
    hops: [Vec<Hops>; 2],
}

impl Switched<'_, '_> {
    fn compared(&mut self) -> anyhow::Result<Comparison> {
        let config = self.bench.config;
        let blocks = config.blocks();
        let progress = Progress::new(config.time());
        let began = Instant::now();
        let cycles = experiment::run(self, config.cycles, |done| {
            progress.show(began.elapsed(), &format!("block {done} of {blocks}"));
        })?;
        drop(progress);
        let minimum_effect_percent = config.minimum_effect_percent;
        let thresholds = Thresholds { minimum_effect_percent, ..Thresholds::default() };
        compare(&cycles, &thresholds, SEED).context("a block has no value of the metric")
    }

    /// Undoes what the trial has applied.
    fn undo(&mut self) -> anyhow::Result<()> {
        self.with = false;
        for (entry, undone) in self.bench.executor.rollback(Some(self.base), &self.bench.boot) {
            undone.with_context(|| format!("change {} could not be undone", entry.id))?;
        }
        Ok(())
    }

    fn wait(&self, time: Duration) -> anyhow::Result<()> {
        if self.bench.interrupt.wait(time) {
            bail!("stopped early by a signal");
        }
        Ok(())
    }
}

impl Experiment for Switched<'_, '_> {
    type Error = anyhow::Error;

    fn set(&mut self, with: bool) -> anyhow::Result<()> {
        if with && !self.with {
            let outcome = self.bench.executor.apply_steps(self.steps.clone())?;
            if outcome.made.is_empty() {
                let why = outcome.skipped.first().map(|skipped| skipped.reason.to_string());
                return Err(NothingMade(why.unwrap_or_else(|| "it is empty".to_owned())).into());
            }
            self.with = true;
        } else if !with && self.with {
            self.undo()?;
        }
        self.wait(self.bench.config.warm_up)
    }

    fn block(&mut self) -> anyhow::Result<Block> {
        self.bench.meter.begin(self.bench.root)?;
        self.wait(self.bench.config.block)?;
        let (measured, hops) = self.bench.meter.end(self.bench.root)?;
        self.hops[usize::from(self.with)].extend(hops);
        Ok(measured)
    }
}

/// The mean; `None` if empty.
fn mean(hops: &[Hops]) -> Option<Hops> {
    let count = hops.len() as f64;
    if hops.is_empty() {
        return None;
    }
    let optional = |of: fn(&Hops) -> Option<f64>| {
        let all: Option<Vec<f64>> = hops.iter().map(of).collect();
        all.map(|all| all.iter().sum::<f64>() / count)
    };
    Some(Hops {
        other_cpu: hops.iter().map(|hops| hops.other_cpu).sum::<f64>() / count,
        other_llc: optional(|hops| hops.other_llc),
        other_node: optional(|hops| hops.other_node),
    })
}
