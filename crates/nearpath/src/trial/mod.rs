//! A trial on this host: a plan is applied and undone alternately (A/B) while a meter measures, and stays applied
//! only if it improves the metric. Used by `tune try` and `demo tune`.
//!
//! Input: the steps of a plan, an executor with its journal, and a meter. Output: a report. The changes are in the
//! journal during the trial.

mod figures;
mod links;
mod meter;
mod neighbours;
mod switched;

pub use figures::Compared;
pub use meter::{Measured, Meter, ProbePlan};

use crate::failure::say;
use crate::guardian::Asker;
use crate::interrupt::Interrupt;
use crate::session::Progress;
use anyhow::bail;
use figures::{Figures, PlanTraits};
use nearpath_host::Root;
use nearpath_model::{
    CarriesOver, Harm, Hops, Step, TRIAL_SCHEMA, Target, TrialDesign, TrialReport, Verdict,
};
use nearpath_trial::experiment::{self, Once};
use nearpath_trial::sequential::{Decision, Effect, Sequential};
use nearpath_tune::{Executor, Live};
use std::fmt;
use std::time::{Duration, Instant};
use switched::Switched;

/// Duration of a block, before it is lengthened.
pub const BLOCK: Duration = Duration::from_millis(500);
/// Smaller effects are no reason to change a host.
pub const MINIMUM_EFFECT: f64 = 0.05;
/// Packets that take longer are late, where nothing else is known.
pub const ABOVE_NS: u64 = 1_000_000;
/// Without a terminal, a line this often.
const REPORT: Duration = Duration::from_secs(10);
/// Number of blocks on each side of a change that is made once.
const BLOCKS_ONCE: usize = 12;

/// How a trial is made.
#[derive(Debug, Clone)]
pub struct TrialConfig {
    /// What is compared.
    pub compared: Compared,
    /// Undecided after this time, a trial ends.
    pub limit: Duration,
    /// Duration of a block; lengthened if it has too few packets.
    pub block: Duration,
    /// How long the host settles after each switch; `None` means that it is measured.
    pub settling: Option<Duration>,
    /// Smaller differences are ignored: a share.
    pub minimum_effect: f64,
    /// Number of trials that share the probability of a false verdict.
    pub trials: usize,
    /// Whether irqbalance runs, which places interrupts every ten seconds.
    pub irqbalance: bool,
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
struct TrialOutcome {
    verdict: Verdict,
    effects: Vec<Effect>,
    stopped: Option<Harm>,
}

impl Bench<'_> {
    /// Tries these steps, and leaves them applied only if packets are better for it. `changes` are their names, for
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
        let once = steps.iter().find_map(|step| {
            let target = &step.change.target;
            let reason = target.disrupts().map(str::to_owned);
            let reason = reason.or_else(|| Some(target.carries_over()?.to_string()))?;
            Some(format!("{target} is applied once: {reason}"))
        });
        if let Some(reason) = &once {
            say(&format!("{reason}; drift is not cancelled out"));
        }
        let traits = PlanTraits {
            moves_tasks: steps.iter().any(|step| matches!(step.change.target, Target::Thread(_))),
            opens_windows: steps
                .iter()
                .any(|step| step.change.target.carries_over() == Some(CarriesOver::Buffers)),
        };
        let TrialConfig { minimum_effect, settling, .. } = self.config;
        let figures = Figures::new(&self.config.compared, minimum_effect, traits);
        let (seed, began) = (experiment::seed(), Instant::now());
        let mut switched = Switched::new(self, steps, figures);
        let found = match once {
            None => switched.alternately(seed),
            Some(_) => switched.once(),
        };
        let keep = found.as_ref().is_ok_and(|found| found.verdict == Verdict::Better);
        let left = if keep { switched.apply() } else { switched.undo_all() };
        let found = match (found, left) {
            (Ok(found), Ok(())) => found,
            (Ok(_), Err(error)) => return Err(error),
            (Err(error), Ok(())) => return Err(error.context("plan undone")),
            (Err(error), Err(undo)) => {
                say(&format!("{undo:#}; see 'nearpath tune status'"));
                return Err(error);
            }
        };
        let design = TrialDesign {
            alternating: once.is_none(),
            blocks: switched.count(),
            seed,
            block_s: switched.block_time().as_secs_f64(),
            settling_s: switched.settling().as_secs_f64(),
            settling_measured: settling.is_none(),
            seconds: began.elapsed().as_secs_f64(),
        };
        let TrialOutcome { verdict, effects, stopped } = found;
        let (figures, tail) = (switched.report(&effects), switched.tail());
        let mechanism = switched.moved();
        let path = self.meter.path();
        Ok(TrialReport {
            schema: TRIAL_SCHEMA,
            changes,
            verdict,
            path,
            figures,
            design,
            stopped,
            tail,
            mechanism,
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

impl Switched<'_, '_> {
    fn alternately(&mut self, seed: u64) -> anyhow::Result<TrialOutcome> {
        let TrialConfig { limit, trials, .. } = self.bench().config;
        self.apply_one_way()?;
        self.prepare();
        let mut sequential = self.figures().sequential(seed, trials);
        let mut shown = Shown::new(limit);
        let figures = self.figures().clone();
        let stopped = experiment::run(self, &mut sequential, |so_far: &Sequential| {
            shown.show(&figures.so_far(so_far));
            shown.began.elapsed() < limit
        })?;
        let verdict = match (&stopped, sequential.decision()) {
            (Some(_), _) | (None, Decision::Worse) => Verdict::Worse,
            (None, Decision::Better) => Verdict::Better,
            (None, Decision::NoDifference) => Verdict::NoDifference,
            (None, Decision::Open) => Verdict::Inconclusive,
        };
        Ok(TrialOutcome { verdict, effects: sequential.effects(), stopped })
    }

    fn once(&mut self) -> anyhow::Result<TrialOutcome> {
        self.prepare();
        let block = self.bench().config.block;
        let mut shown = Shown::new(block * u32::try_from(2 * BLOCKS_ONCE).unwrap_or(u32::MAX));
        let Once { before, stopped, .. } = experiment::run_once(self, BLOCKS_ONCE, |done| {
            shown.show(&format!("block {done} of {}", 2 * BLOCKS_ONCE));
        })?;
        if stopped.is_some() {
            let effects = self.figures().effects(|_| None);
            return Ok(TrialOutcome { verdict: Verdict::Worse, effects, stopped });
        }
        let compared = self.compared_once(before.len());
        let all = self.figures().verdicts_once(&compared);
        let verdict = match () {
            () if all.is_empty() => bail!("a block has no value of the metric"),
            () if all.contains(&Verdict::Worse) => Verdict::Worse,
            () if all.contains(&Verdict::Better) => Verdict::Better,
            () if all.contains(&Verdict::Inconclusive) => Verdict::Inconclusive,
            () => Verdict::NoDifference,
        };
        let effects = self.figures().effects(|number| compared.get(number)?.as_ref());
        Ok(TrialOutcome { verdict, effects, stopped })
    }
}

/// Progress on a terminal, and as lines elsewhere.
struct Shown {
    progress: Progress,
    began: Instant,
    said: Instant,
}

impl Shown {
    fn new(limit: Duration) -> Self {
        let now = Instant::now();
        Self { progress: Progress::new(limit), began: now, said: now }
    }

    fn show(&mut self, line: &str) {
        self.progress.show(self.began.elapsed(), line);
        if self.progress.is_hidden() && self.said.elapsed() >= REPORT {
            self.said = Instant::now();
            say(&format!("{:.0} s: {line}", self.began.elapsed().as_secs_f64()));
        }
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
