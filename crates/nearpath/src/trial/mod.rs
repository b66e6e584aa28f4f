//! A trial on this host: a plan is applied and undone alternately (A/B) while a meter measures, and stays applied
//! only if it improves the metric. Used by `tune try` and `demo tune`.
//!
//! Input: the steps of a plan, an executor with its journal, and a meter. Output: a report. The changes are in the
//! journal during the trial.

mod links;
mod meter;
mod pairs;
mod switched;

pub use meter::{Measured, Meter, ProbePlan};
pub use pairs::{Decided, FIGURES, Until};

use crate::failure::say;
use crate::guardian::Asker;
use crate::interrupt::Interrupt;
use crate::session::Progress;
use anyhow::Context;
use nearpath_host::Root;
use nearpath_model::{
    Comparison, Harm, Hops, Moved, Step, TRIAL_SCHEMA, Tail, Thresholds, TrialDesign, TrialReport,
    Verdict,
};
use nearpath_trial::comparison::{compare, compare_once, compare_stopped, correct};
use nearpath_trial::experiment::{self, Once, Order, Outcome};
use nearpath_tune::{Executor, Live};
use std::fmt;
use std::time::{Duration, Instant};
use switched::Switched;

/// What a settling time is taken for until it is measured.
const SETTLING: Duration = Duration::from_millis(500);

/// Least number of cycles whose blocks a change that is made once gets on each side.
const ONCE_MIN: usize = 8;

/// The configuration of a trial.
#[derive(Debug, Clone, Copy)]
pub struct TrialConfig {
    /// Number of cycles with the plan, of four blocks each.
    pub cycles: usize,
    /// Duration of a block.
    pub block: Duration,
    /// How long the host settles after each switch; `None` means that it is measured.
    pub settling: Option<Duration>,
    /// Smaller differences are ignored, in percent.
    pub minimum_effect_percent: f64,
    /// Whether irqbalance runs, which places interrupts every ten seconds.
    pub irqbalance: bool,
}

impl TrialConfig {
    /// The total duration, as far as it is known before the trial.
    pub fn time(&self) -> Duration {
        let blocks = self.blocks();
        // Two switches per cycle, and one at the start.
        self.block * blocks + self.settling.unwrap_or(SETTLING) * (blocks / 2 + 1)
    }

    /// Number of blocks, those of placebo cycles included.
    pub fn blocks(&self) -> u32 {
        u32::try_from(4 * Order::random(self.cycles, 0).len()).unwrap_or(u32::MAX)
    }

    /// Number of blocks on each side of a change that is made once.
    fn blocks_once(&self) -> usize {
        2 * self.cycles.max(ONCE_MIN)
    }

    fn thresholds(&self) -> Thresholds {
        let minimum_effect_percent = self.minimum_effect_percent;
        Thresholds { minimum_effect_percent, ..Thresholds::default() }
    }
}

/// The host with its journal: plans can be applied and undone, and packets are observed all the time.
pub struct Bench<'a> {
    pub root: &'a Root,
    pub executor: Executor<Live>,
    pub meter: Meter,
    pub interrupt: &'a Interrupt,
    pub asker: Asker,
    pub config: TrialConfig,
    pub boot: String,
}

/// What a trial has found.
struct Compared {
    comparison: Comparison,
    stopped: Option<Harm>,
    tail: Option<Tail>,
}

impl Bench<'_> {
    /// Tries these steps, and leaves them applied only if they improve the metric. `changes` are their names, for
    /// the report. Steps that interrupt traffic are applied once, all others alternately.
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
        let disrupts = steps.iter().find_map(|step| {
            let reason = step.change.target.disrupts()?;
            Some(format!("{} is applied once: {reason}", step.change.target))
        });
        if let Some(reason) = &disrupts {
            say(&format!("{reason}; drift is not cancelled out"));
        }
        let seed = experiment::seed();
        let mut switched = Switched::new(self, steps);
        let compared = match disrupts {
            None => switched.alternately(seed),
            Some(_) => switched.once(),
        };
        let is_better = |found: &Compared| found.comparison.verdict == Verdict::Better;
        let keep = compared.as_ref().is_ok_and(is_better);
        let left = if keep { switched.apply() } else { switched.undo_all() };
        let compared = match (compared, left) {
            (Ok(compared), Ok(())) => compared,
            (Ok(_), Err(error)) => return Err(error),
            (Err(error), Ok(())) => return Err(error.context("plan undone")),
            (Err(error), Err(undo)) => {
                say(&format!("{undo:#}; see 'nearpath tune status'"));
                return Err(error);
            }
        };
        let design = TrialDesign {
            alternating: disrupts.is_none(),
            seed,
            block_s: switched.block_time().as_secs_f64(),
            settling_s: switched.settling().as_secs_f64(),
            settling_measured: switched.bench().config.settling.is_none(),
        };
        let [without, with] = switched.hops().each_ref().map(|hops| mean(hops));
        let metric = self.meter.metric();
        let Compared { comparison, stopped, tail } = compared;
        Ok(TrialReport {
            schema: TRIAL_SCHEMA,
            changes,
            metric: metric.to_string(),
            path: self.meter.path(),
            comparison: if metric.is_rate() { comparison.of_rate() } else { comparison },
            design,
            stopped,
            tail,
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

/// The steps of the changes with these ids.
type StepsOf<'s> = &'s dyn Fn(&[String]) -> anyhow::Result<Vec<Step>>;

impl Bench<'_> {
    /// Corrects the reports of several trials for their number, and undoes the changes that were kept and may have
    /// helped by chance. `base` is the last change in the journal before the first trial.
    ///
    /// # Errors
    /// A change cannot be undone, or one that stays cannot be applied again.
    pub fn keep_significant(
        &mut self,
        base: u64,
        reports: &mut [TrialReport],
        steps: StepsOf<'_>,
    ) -> anyhow::Result<()> {
        let mut all: Vec<&mut Comparison> =
            reports.iter_mut().map(|report| &mut report.comparison).collect();
        correct(&mut all);
        let is_better = |report: &TrialReport| report.comparison.verdict == Verdict::Better;
        if reports.iter().all(|report| report.kept == is_better(report)) {
            return Ok(());
        }
        for (entry, undone) in self.executor.rollback(Some(base), &self.boot) {
            undone.with_context(|| format!("change {} could not be undone", entry.id))?;
        }
        for report in reports {
            report.kept = report.kept && is_better(report);
            if report.kept {
                self.executor.apply_steps(steps(&report.changes)?)?;
            }
        }
        Ok(())
    }
}

impl Switched<'_, '_> {
    fn alternately(&mut self, seed: u64) -> anyhow::Result<Compared> {
        let config = self.bench().config;
        let orders = Order::random(config.cycles, seed);
        self.apply_one_way()?;
        self.prepare(2 * config.cycles);
        let (progress, began) = (Progress::new(config.time()), Instant::now());
        let blocks = 4 * orders.len();
        let outcome = experiment::run(self, &orders, |done| {
            progress.show(began.elapsed(), &format!("block {done} of {blocks}"));
        })?;
        drop(progress);
        let thresholds = config.thresholds();
        let Outcome { cycles, rest, stopped } = outcome;
        let comparison = match stopped {
            None => compare(&cycles, &thresholds),
            Some(_) => compare_stopped(&cycles, &rest, &thresholds),
        };
        let sides = orders.iter().flat_map(|order| {
            order.blocks().map(|is_with| {
                (!order.placebo || stopped.is_some()).then_some(is_with && !order.placebo)
            })
        });
        let tail = self.tail(sides);
        let comparison = comparison.context("a block has no value of the metric")?;
        Ok(Compared { comparison, stopped, tail })
    }

    fn once(&mut self) -> anyhow::Result<Compared> {
        let config = self.bench().config;
        let blocks = config.blocks_once();
        self.prepare(blocks);
        let (progress, began) = (Progress::new(config.time()), Instant::now());
        let Once { before, after, stopped } = experiment::run_once(self, blocks, |done| {
            progress.show(began.elapsed(), &format!("block {done} of {}", 2 * blocks));
        })?;
        drop(progress);
        let tail = self.tail((0..2 * blocks).map(|block| Some(block >= before.len())));
        let thresholds = config.thresholds();
        let comparison = if stopped.is_none() {
            compare_once(&before, &after, &thresholds)
        } else {
            let side = |blocks: Vec<_>, with| blocks.into_iter().map(move |block| (block, with));
            let rest: Vec<_> = side(before, false).chain(side(after, true)).collect();
            compare_stopped(&[], &rest, &thresholds)
        };
        let comparison = comparison.context("a block has no value of the metric")?;
        Ok(Compared { comparison, stopped, tail })
    }
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
