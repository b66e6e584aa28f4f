//! Whether a change made a difference: in go measured blocks of the host without it (A) and with it
//! (B), taken in turns A B B A, out comes a verdict with its confidence interval.
//!
//! Drift that is steady within a cycle of four blocks cancels out, as both halves have the same mean
//! time. What is compared is the logarithm of the metric, so that a change is a ratio; each cycle gives
//! one difference, and the cycles are what is resampled ([`bootstrap`]). The blocks without the change
//! are compared among themselves in the same way (an A/A control): what shows there is noise.

mod bootstrap;
mod guards;

pub use guards::{Guard, Guards};

use bootstrap::{Interval, interval, mean};
use serde::{Deserialize, Serialize};

/// One block: a stretch of time in one of the two states.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Block {
    /// The metric, of which less is better: a latency in nanoseconds, or the inverse of a rate.
    pub metric: f64,
    /// Share of messages that were lost, 0 to 1.
    pub lost: f64,
    /// CPU time used by the whole host, in CPUs.
    pub cpus_busy: f64,
    /// Messages that came through, per second.
    pub rate_per_s: f64,
}

/// Four blocks: without the change, with it, with it, without it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Cycle {
    /// The first and the last block.
    pub without: [Block; 2],
    /// The two between them.
    pub with: [Block; 2],
}

/// What is asked of a difference.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Demands {
    /// A smaller difference is none, in percent.
    pub minimum_effect_percent: f64,
    /// How much more may be lost, in percent of all messages.
    pub more_lost_percent: f64,
    /// How much more CPU time may be used, in percent of what was used before.
    pub more_cpu_percent: f64,
    /// How many fewer messages may come through, in percent.
    pub fewer_messages_percent: f64,
}

impl Default for Demands {
    fn default() -> Self {
        Self {
            minimum_effect_percent: 2.0,
            more_lost_percent: 0.1,
            more_cpu_percent: 25.0,
            fewer_messages_percent: 2.0,
        }
    }
}

/// What the change did to the metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The metric fell, beyond noise and minimum effect, and no guard objects.
    Better,
    /// It rose, or a guard objects beyond noise.
    Worse,
    /// Whatever it did is smaller than the minimum effect.
    NoDifference,
    /// Noise hides what it did, or whether a guard objects.
    Inconclusive,
}

/// A comparison of all cycles.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Blocks in all.
    pub blocks: usize,
    /// The metric without the change: geometric mean of its blocks.
    pub baseline: f64,
    /// The metric with it.
    pub with_plan: f64,
    /// The difference in percent of the baseline; negative is better (of a rate positive).
    pub delta_percent: f64,
    /// Where it lies with a confidence of 95 %.
    pub ci95: [f64; 2],
    /// How large a difference the blocks without the change show among themselves, at 95 %.
    pub noise_floor_percent: f64,
    /// What happened to loss, CPU time and throughput.
    pub guards: Guards,
    /// What follows.
    pub verdict: Verdict,
}

/// Fewer cycles cannot be resampled to any end.
pub const CYCLES_MIN: usize = 4;

/// Compares. The same cycles and seed give the same numbers.
///
/// Returns `None` with fewer than [`CYCLES_MIN`] cycles, or when a metric is not a positive number.
pub fn compare(cycles: &[Cycle], demands: &Demands, seed: u64) -> Option<Comparison> {
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
    let guards = Guards::of(cycles, demands, seed);
    let verdict = verdict(&found, noise, (demands.minimum_effect_percent / 100.0).ln_1p(), &guards);
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

impl Comparison {
    /// The same numbers for a metric of which more is better, and whose inverse was compared: they are
    /// of the metric itself, and a positive difference is better. Means of logarithms turn round
    /// exactly.
    #[must_use]
    pub fn of_rate(self) -> Self {
        let turned = |percent: f64| 100.0 * (1.0 / (1.0 + percent / 100.0) - 1.0);
        let [low, high] = self.ci95;
        Self {
            baseline: 1.0 / self.baseline,
            with_plan: 1.0 / self.with_plan,
            delta_percent: turned(self.delta_percent),
            ci95: [turned(high), turned(low)],
            ..self
        }
    }
}

fn percent(log_ratio: f64) -> f64 {
    100.0 * log_ratio.exp_m1()
}

/// What the blocks without the change differ among themselves: the last block of a cycle and the first of
/// the next stand beside each other, and which of the two is called A and which B takes turns, so
/// that drift cancels out as it does in a cycle. In log ratios, as far out as the interval goes.
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
#[allow(clippy::print_stdout, reason = "how often verdicts are right is worth reading")]
mod tests;
