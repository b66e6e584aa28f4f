//! A trial that ends as soon as it is decided: blocks in pairs, one without the plan and one with it in random order, until
//! the packets say which is better, or the time is over.
//!
//! Input: the steps of a plan and a bench. Output: the decision, by four figures at once: p50 and p99 of whole packets, the
//! share of packets above a limit, and lost packets.

use super::links::Losses;
use super::switched::Switched;
use super::{Bench, one_way};
use anyhow::{Context, bail};
use nearpath_model::Step;
use nearpath_model::histogram::{count, count_above, interpolated_ns};
use nearpath_trial::comparison::{Buckets, HarmWatch, Sign};
use nearpath_trial::experiment::{self, Experiment};
use nearpath_trial::sequential::{Decision, Effect, Scale, Sequential};
use std::time::{Duration, Instant};

/// The figures, in the order of [`Decided::effects`].
pub const FIGURES: [&str; 4] = ["p50", "p99", "above", "lost"];
const SCALES: [Scale; 4] = [Scale::Ratio, Scale::Ratio, Scale::Difference, Scale::Difference];
/// Smaller effects are no reason to change a host.
const MINIMUM_EFFECT: f64 = 0.05;
/// Packets that a percentile of one block needs.
const BEYOND: f64 = 5.0;

/// How a trial is decided.
#[derive(Debug, Clone, Copy)]
pub struct Until {
    /// Undecided after this time, it ends.
    pub limit: Duration,
    /// Packets that take longer are counted.
    pub above_ns: u64,
}

/// What came out.
#[derive(Debug)]
pub struct Decided {
    pub decision: Decision,
    /// By [`FIGURES`].
    pub effects: Vec<Effect>,
    /// The harm that stopped it.
    pub harm: Option<String>,
    pub pairs: usize,
    pub time: Duration,
}

impl Bench<'_> {
    /// Tries these steps, and leaves them applied only if packets are better for it. `progress` sees the time and the
    /// pairs so far.
    ///
    /// # Errors
    /// The kernel refused, nothing can be measured, or a signal arrived; the steps are undone.
    pub fn until_decided(
        &mut self,
        steps: Vec<Step>,
        until: Until,
        progress: &mut dyn FnMut(Duration, &Sequential),
    ) -> anyhow::Result<Decided> {
        if let Some(reason) = one_way(&steps).first() {
            bail!("{reason}, so that it cannot be tried");
        }
        if let Some(reason) = steps.iter().find_map(|step| step.change.target.disrupts()) {
            bail!("it interrupts traffic: {reason}");
        }
        let mut switched = Switched::new(self, steps);
        let decided = pairs(&mut switched, until, progress);
        let keep = decided.as_ref().is_ok_and(|found| found.decision == Decision::Better);
        let left = if keep { switched.apply() } else { switched.undo_all() };
        match (decided, left) {
            (Ok(decided), Ok(())) => Ok(decided),
            (Err(error), Ok(())) => Err(error),
            (_, Err(error)) => Err(error.context("see 'nearpath tune status'")),
        }
    }
}

fn pairs(
    switched: &mut Switched<'_, '_>,
    until: Until,
    progress: &mut dyn FnMut(Duration, &Sequential),
) -> anyhow::Result<Decided> {
    let began = Instant::now();
    // A block needs no more than some packet.
    switched.prepare(usize::MAX);
    let mut sequential = Sequential::new(&SCALES, experiment::seed(), MINIMUM_EFFECT);
    let mut watch = HarmWatch::default();
    let mut harm = None;
    // What the host is like without the plan is known before it is applied.
    if let Err(what) = look(switched, false, &mut watch)? {
        bail!("{what}, without the plan");
    }
    'pairs: while sequential.decision() == Decision::Open && began.elapsed() < until.limit {
        let first = sequential.with_first();
        let mut found: [Vec<Option<f64>>; 2] = Default::default();
        for with in [first, !first] {
            switched.set(with)?;
            match look(switched, with, &mut watch)? {
                Ok((buckets, lost)) => {
                    found[usize::from(with)] = figures(&buckets, until.above_ns, lost);
                }
                Err(what) => {
                    harm = Some(what);
                    break 'pairs;
                }
            }
        }
        let [without, with] = found;
        sequential.add(&without, &with);
        progress(began.elapsed(), &sequential);
    }
    switched.set(false)?;
    let decision = if harm.is_some() { Decision::Worse } else { sequential.decision() };
    Ok(Decided {
        decision,
        effects: sequential.effects(),
        harm,
        pairs: sequential.pairs(),
        time: began.elapsed(),
    })
}

/// Measures one block: its latencies and the packets lost per second, or the harm in it.
fn look(
    switched: &mut Switched<'_, '_>,
    with: bool,
    watch: &mut HarmWatch,
) -> anyhow::Result<Result<(Buckets, f64), String>> {
    let (before, began) = (Losses::read(switched.bench().root), Instant::now());
    let block = match switched.block()? {
        Ok(block) => block,
        Err(what) => return Ok(Err(what)),
    };
    let seconds = began.elapsed().as_secs_f64();
    let lost = Losses::read(switched.bench().root).since(&before) as f64 / seconds;
    // What is only suspected is decided by the pairs.
    if let Some(Sign::Harm(what)) = watch.look(&block, with) {
        return Ok(Err(what));
    }
    let latencies = switched.last_latencies().context("no latencies were measured")?;
    Ok(Ok((latencies, lost)))
}

fn figures(buckets: &Buckets, above_ns: u64, lost: f64) -> Vec<Option<f64>> {
    let packets = count(buckets);
    let quantile =
        |q: f64| interpolated_ns(buckets, q).filter(|_| packets * q.min(1.0 - q) >= BEYOND);
    let above = (packets > 0.0).then(|| count_above(buckets, above_ns as f64) / packets);
    vec![quantile(0.5), quantile(0.99), above, Some(lost)]
}
