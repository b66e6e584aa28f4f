//! Whether a change made a difference. Input: measured blocks of the host without it (A) and with it (B), in
//! alternating order, each cycle A B B A or B A A B. Output: a verdict with its confidence interval.
//!
//! Drift that is linear within a cycle of four blocks cancels out, as both halves have the same mean time. The packets
//! of all blocks of a kind are pooled ([`Pool`]), and the logarithm of the metric is compared, so that a change is a
//! ratio. Its uncertainty is that of the cycles ([`jackknife`]), and at least what exchanges of their halves say
//! ([`randomization`]). Trials of plans are decided by [`sequential`](crate::sequential) instead.

mod guards;
mod harm;
mod jackknife;
mod once;
mod pool;
mod randomization;
mod student;
mod tail;

pub use harm::{HarmWatch, Sign};
pub use pool::{Pool, own};
pub use tail::{Buckets, tail};

use jackknife::Estimate;
use nearpath_model::{Block, Comparison, Cycle, Guards, Observed, Thresholds, Verdict};

/// Minimum number of cycles for a confidence interval: with fewer, the lots that were drawn show nothing
/// ([`randomization`]).
pub const CYCLES_MIN: usize = 6;
/// Probability of chance in confidence intervals.
const CHANCE: f64 = 0.05;

/// Compares cycles that alternate. The same cycles give the same numbers. With fewer than [`CYCLES_MIN`] cycles there is no
/// interval, and the verdict is inconclusive.
///
/// Returns `None` if there is no cycle, or a side has no value of the metric.
pub fn compare(cycles: &[Cycle], thresholds: &Thresholds) -> Option<Comparison> {
    let found = estimate(cycles).map(|found| match found.p_value() {
        // What the jackknife does not find is not looked at again.
        chance if chance > CHANCE => found,
        _ => found.with_at_least(randomization::p_value(cycles).unwrap_or(1.0)),
    });
    let guards = guards::guards(cycles, thresholds, 1.0);
    Some(comparison(sides(cycles)?, cycles, found, guards, thresholds))
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
    let sides = sides(&cycles)?;
    let (found, correlation) = once::step(before, after)?;
    let guards = guards::guards(&cycles, thresholds, once::widening(correlation));
    Some(comparison(sides, &cycles, Some(found), guards, thresholds))
}

fn comparison(
    [baseline, with_plan]: [f64; 2],
    cycles: &[Cycle],
    found: Option<Estimate>,
    guards: Guards,
    thresholds: &Thresholds,
) -> Comparison {
    let minimum = (thresholds.minimum_effect_percent / 100.0).ln_1p();
    let verdict =
        found.as_ref().map_or(Verdict::Inconclusive, |found| verdict(found, minimum, &guards));
    let log_ratio = found.map_or((with_plan / baseline).ln(), |found| found.middle);
    Comparison {
        blocks: 4 * cycles.len(),
        baseline,
        with_plan,
        delta_percent: percent(log_ratio),
        ci95: found.map(|found| found.interval(CHANCE).map(percent)),
        p_value: found.map(|found| found.p_value()),
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
fn pools(cycles: &[Cycle]) -> Option<[Pool; 2]> {
    let without = Pool::of(cycles.iter().flat_map(|cycle| observed(&cycle.without)))?;
    Some([without, Pool::of(cycles.iter().flat_map(|cycle| observed(&cycle.with)))?])
}

/// The metric without and with the change.
fn sides(cycles: &[Cycle]) -> Option<[f64; 2]> {
    let [without, with] = pools(cycles)?;
    Some([without.value()?, with.value()?])
}

/// The logarithm of the ratio of the two sides; `None` with too few cycles.
fn estimate(cycles: &[Cycle]) -> Option<Estimate> {
    if cycles.len() < CYCLES_MIN {
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

fn verdict(found: &Estimate, minimum: f64, guards: &Guards) -> Verdict {
    if guards.are_violated() {
        return Verdict::Worse;
    }
    let is_real = found.middle.abs() >= minimum;
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
