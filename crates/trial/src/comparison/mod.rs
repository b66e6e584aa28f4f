//! Whether a change made a difference. Input: measured blocks of the host without it (A) and with it (B), in
//! alternating order, each cycle A B B A or B A A B. Output: a verdict with its confidence interval.
//!
//! Drift that is linear within a cycle of four blocks cancels out, as both halves have the same mean time. The packets
//! of all blocks of a kind are pooled ([`pool`]), and the logarithm of the metric is compared, so that a change is a
//! ratio. Its uncertainty is that of the cycles ([`jackknife`]), and at least what the trial's own lots say
//! ([`randomization`]). Placebo cycles, in which the change is undone instead
//! of made, are compared in the same way: what they show is not an effect of the change.

mod autocorrelation;
mod guards;
mod harm;
mod holm;
mod jackknife;
mod once;
mod pool;
mod randomization;
mod student;
mod tail;

pub use autocorrelation::needs_longer_blocks;
pub use harm::{HarmWatch, Sign};
pub use holm::correct;
pub use tail::{Buckets, tail};

use jackknife::Estimate;
use nearpath_model::{Block, Comparison, Cycle, Guards, Observed, Placebo, Thresholds, Verdict};
use pool::Pool;
#[cfg(test)]
pub(crate) use pool::own;

/// The metric of one block; `None` if it has no value.
pub fn value(block: &Block) -> Option<f64> {
    pool::own(&block.observed)
}

/// Minimum number of cycles for a confidence interval: with fewer, the lots that were drawn show nothing
/// ([`randomization`]).
pub const CYCLES_MIN: usize = 6;
/// The same of placebo cycles, for which the jackknife is enough.
pub(crate) const PLACEBOS_MIN: usize = 4;
/// Probability of chance in confidence intervals.
const CHANCE: f64 = 0.05;

/// Compares cycles that alternate. The same cycles give the same numbers. With fewer than [`CYCLES_MIN`] cycles there is no
/// interval, and the verdict is inconclusive.
///
/// Returns `None` if there is no cycle with the change, or a side has no value of the metric.
pub fn compare(cycles: &[Cycle], thresholds: &Thresholds) -> Option<Comparison> {
    let (placebos, real): (Vec<&Cycle>, Vec<&Cycle>) = cycles.iter().partition(|c| c.placebo);
    if real.is_empty() {
        return None;
    }
    let placebo = estimate(&placebos, PLACEBOS_MIN).map(|found| (found, 4 * placebos.len()));
    let guards = guards::guards(&real, thresholds, 1.0);
    let found = estimate(&real, CYCLES_MIN).map(|found| match found.p_value() {
        // What the jackknife does not find is not looked at again.
        chance if chance > CHANCE => found,
        _ => found.with_at_least(randomization::p_value(&real).unwrap_or(1.0)),
    });
    Some(Comparison {
        autocorrelation: autocorrelation::autocorrelation(cycles),
        ..comparison(sides(&real)?, &real, found, placebo, guards, thresholds)
    })
}

/// Compares blocks before a change with those after it, for changes that are made once ([`once`]). The difference is what
/// remains after a linear drift.
///
/// Returns `None` as [`compare`] does, and if a block has no value of the metric.
pub fn compare_once(
    before: &[Block],
    after: &[Block],
    thresholds: &Thresholds,
) -> Option<Comparison> {
    let cycles = once::paired(before, after);
    let real: Vec<&Cycle> = cycles.iter().collect();
    let [baseline, with_plan] = sides(&real)?;
    let (found, correlation) = once::step(before, after)?;
    let guards = guards::guards(&real, thresholds, once::widening(correlation));
    Some(Comparison {
        autocorrelation: Some(correlation),
        ..comparison([baseline, with_plan], &real, Some(found), None, guards, thresholds)
    })
}

/// What is known of a change whose trial was stopped because it did harm: the blocks until then, without an interval.
///
/// Returns `None` if there is no block without it, or they have no value of the metric.
pub fn compare_stopped(
    cycles: &[Cycle],
    rest: &[(Block, bool)],
    thresholds: &Thresholds,
) -> Option<Comparison> {
    let complete = cycles.iter().flat_map(autocorrelation::in_order);
    let all = complete.chain(rest.iter().map(|(block, with)| (block, *with)));
    let (with, without): (Vec<_>, Vec<_>) = all.partition(|(_, with)| *with);
    let value = |blocks: &[(&Block, bool)]| {
        Pool::of(blocks.iter().map(|(block, _)| &block.observed)).and_then(|pool| pool.value())
    };
    let baseline = value(&without)?;
    // Stopped before the first block with it was complete, or no packet came through.
    let with_plan = value(&with).unwrap_or(f64::NAN);
    let last_two = |blocks: &[(&Block, bool)]| -> Option<[Block; 2]> {
        let (last, before) = blocks.split_last()?;
        Some([before.last().unwrap_or(last).0.clone(), last.0.clone()])
    };
    let before = last_two(&without)?;
    let after = last_two(&with).unwrap_or_else(|| before.clone());
    let cycle = Cycle { without: before, with: after, placebo: false, with_first: false };
    Some(Comparison {
        blocks: without.len() + with.len(),
        baseline,
        with_plan,
        delta_percent: percent((with_plan / baseline).ln()),
        ci95: None,
        p_value: None,
        p_adjusted: None,
        placebo: None,
        autocorrelation: None,
        guards: guards::guards(&[&cycle], thresholds, 1.0),
        verdict: Verdict::Worse,
    })
}

fn comparison(
    [baseline, with_plan]: [f64; 2],
    real: &[&Cycle],
    found: Option<Estimate>,
    placebo: Option<(Estimate, usize)>,
    guards: Guards,
    thresholds: &Thresholds,
) -> Comparison {
    let minimum = (thresholds.minimum_effect_percent / 100.0).ln_1p();
    let verdict = match &found {
        Some(found) => verdict(found, placebo.as_ref().map(|(found, _)| found), minimum, &guards),
        None => Verdict::Inconclusive,
    };
    let log_ratio = found.map_or((with_plan / baseline).ln(), |found| found.middle);
    Comparison {
        blocks: 4 * real.len(),
        baseline,
        with_plan,
        delta_percent: percent(log_ratio),
        ci95: found.map(|found| found.interval(CHANCE).map(percent)),
        p_value: found.map(|found| found.p_value()),
        p_adjusted: None,
        placebo: placebo.map(|(found, blocks)| Placebo {
            blocks,
            delta_percent: percent(found.middle),
            ci95: found.interval(CHANCE).map(percent),
        }),
        autocorrelation: None,
        guards,
        verdict,
    }
}

fn percent(log_ratio: f64) -> f64 {
    100.0 * log_ratio.exp_m1()
}

fn observed(blocks: &[Block; 2]) -> impl Iterator<Item = &Observed> {
    blocks.iter().map(|block| &block.observed)
}

/// The pools without and with the change.
fn pools(cycles: &[&Cycle]) -> Option<[Pool; 2]> {
    let without = Pool::of(cycles.iter().flat_map(|cycle| observed(&cycle.without)))?;
    Some([without, Pool::of(cycles.iter().flat_map(|cycle| observed(&cycle.with)))?])
}

/// The metric without and with the change.
fn sides(cycles: &[&Cycle]) -> Option<[f64; 2]> {
    let [without, with] = pools(cycles)?;
    Some([without.value()?, with.value()?])
}

/// The logarithm of the ratio of the two sides; `None` with too few cycles.
fn estimate(cycles: &[&Cycle], least: usize) -> Option<Estimate> {
    if cycles.len() < least {
        return None;
    }
    let [without, with] = pools(cycles)?;
    let log_ratio = |without: &Pool, with: &Pool| Some((with.value()? / without.value()?).ln());
    let left_out: Option<Vec<f64>> = cycles
        .iter()
        .map(|cycle| {
            log_ratio(
                &without.without(observed(&cycle.without)),
                &with.without(observed(&cycle.with)),
            )
        })
        .collect();
    Estimate::of(log_ratio(&without, &with)?, &left_out?)
}

fn verdict(found: &Estimate, placebo: Option<&Estimate>, minimum: f64, guards: &Guards) -> Verdict {
    if guards.are_violated() {
        return Verdict::Worse;
    }
    // A host that differs from itself by half of the effect does not show an effect.
    let is_placebo = placebo.is_some_and(|placebo| {
        let [low, high] = placebo.interval(CHANCE);
        let differs = low > 0.0 || high < 0.0;
        differs && placebo.middle.abs() >= found.middle.abs() / 2.0
    });
    let is_real = found.middle.abs() >= minimum && !is_placebo;
    let [low, high] = found.interval(CHANCE);
    if high < 0.0 && is_real {
        return if guards.hold() { Verdict::Better } else { Verdict::Inconclusive };
    }
    if low > 0.0 && is_real {
        return Verdict::Worse;
    }
    if low > -minimum && high < minimum { Verdict::NoDifference } else { Verdict::Inconclusive }
}

#[cfg(test)]
#[allow(clippy::print_stdout, reason = "prints how often verdicts are right")]
mod simulation;
#[cfg(test)]
mod tests;
