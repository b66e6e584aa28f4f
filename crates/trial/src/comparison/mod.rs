//! Whether a change made a difference. Input: measured blocks of the host without it (A) and with it (B), in
//! alternating order A B B A. Output: a verdict with its confidence interval.
//!
//! Drift that is linear within a cycle of four blocks cancels out, as both halves have the same mean time. The
//! logarithm of the metric is compared, so that a change is a ratio; each cycle gives one difference, and the
//! cycles are resampled ([`bootstrap`]). The blocks without the change are compared with each other in the same
//! way (A/A control): the difference found there is noise.

mod bootstrap;
mod guards;

use bootstrap::{Interval, interval, mean};
use nearpath_model::{Block, Comparison, Cycle, Guards, Thresholds, Verdict};

/// Minimum number of cycles for resampling.
pub const CYCLES_MIN: usize = 4;

/// Compares. The same cycles and seed give the same numbers.
///
/// Returns `None` with fewer than [`CYCLES_MIN`] cycles, or if a metric is not a positive number.
pub fn compare(cycles: &[Cycle], thresholds: &Thresholds, seed: u64) -> Option<Comparison> {
    let usable = |block: &Block| block.metric.is_finite() && block.metric > 0.0;
    let all = |cycle: &Cycle| cycle.without.iter().chain(&cycle.with).all(usable);
    if cycles.len() < CYCLES_MIN || !cycles.iter().all(all) {
        return None;
    }
    let log = |blocks: [Block; 2]| mean(&blocks.map(|block| block.metric.ln()));
    let without: Vec<f64> = cycles.iter().map(|cycle| log(cycle.without)).collect();
    let with: Vec<f64> = cycles.iter().map(|cycle| log(cycle.with)).collect();
    let differences: Vec<f64> = with.iter().zip(&without).map(|(b, a)| b - a).collect();
    let found = interval(&differences, seed);
    let noise = noise(cycles, seed);
    let guards = guards::guards(cycles, thresholds, seed);
    let verdict =
        verdict(&found, noise, (thresholds.minimum_effect_percent / 100.0).ln_1p(), &guards);
    Some(Comparison {
        blocks: 4 * cycles.len(),
        baseline: mean(&without).exp(),
        with_plan: mean(&with).exp(),
        delta_percent: percent(found.middle),
        ci95: [percent(found.low), percent(found.high)],
        noise_floor_percent: percent(noise),
        guards,
        verdict,
    })
}

fn percent(log_ratio: f64) -> f64 {
    100.0 * log_ratio.exp_m1()
}

/// A/A noise: the difference among the blocks without the change. The last block of a cycle and the first of
/// the next are adjacent; which of the two is called A and which B alternates, so that drift cancels out as it
/// does in a cycle. In log ratios, the outer bound of the interval.
fn noise(cycles: &[Cycle], seed: u64) -> f64 {
    let neighbours = cycles.windows(2).enumerate().map(|(number, pair)| {
        let difference = pair[1].without[0].metric.ln() - pair[0].without[1].metric.ln();
        if number % 2 == 0 { difference } else { -difference }
    });
    // A difference of cycles has the mean of two blocks on either side: half the variance.
    let scaled: Vec<f64> = neighbours.map(|difference| difference / 2f64.sqrt()).collect();
    let found = interval(&scaled, seed);
    (found.high - found.low) / 2.0
}

fn verdict(found: &Interval, noise: f64, minimum: f64, guards: &Guards) -> Verdict {
    if guards.are_sure() {
        return Verdict::Worse;
    }
    let is_real = found.middle.abs() >= minimum && found.middle.abs() > noise;
    match found {
        Interval { high, .. } if *high < 0.0 && is_real && guards.object() => Verdict::Inconclusive,
        Interval { high, .. } if *high < 0.0 && is_real => Verdict::Better,
        Interval { low, .. } if *low > 0.0 && is_real => Verdict::Worse,
        Interval { low, high, .. } if *low > -minimum && *high < minimum => Verdict::NoDifference,
        _ => Verdict::Inconclusive,
    }
}

#[cfg(test)]
#[allow(clippy::print_stdout, reason = "prints how often verdicts are right")]
mod tests;
