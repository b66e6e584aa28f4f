//! Inference for a trial that may end at any time. Input: pairs of adjacent blocks, one without the plan and one with it, in
//! random order. Output: after each pair, whether packets are better, worse or not different with the plan, and by how much.
//!
//! Which block of a pair has the plan is a fair coin. If the plan has no effect, the sign of the difference between the two
//! blocks is a fair coin, too, given its size and all earlier pairs. That holds for all noise: of any distribution, correlated,
//! drifting, in bursts. So a bet on that sign is a fair game, and the wealth of a bettor exceeds `1 / α` at any time with a
//! probability of at most `α` (Ville's inequality). Thus every look is valid, and a large effect is decided after a few pairs.
//!
//! There are two bettors for each metric, one on better and one on worse. For *m* metrics, the wealth of all bettors on one
//! side together starts at *m* and reaches `2 m / α` with a probability of at most `α / 2`. So `α` is the probability of a
//! verdict of better or worse, over all metrics, sides and looks, if the plan has no effect.
//!
//! The effects of a metric that are not excluded come from the same bets, on gains above or below an assumed effect. The
//! assumption is then that the plan multiplies latencies by it, or adds it to a share.
//!
//! Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", J. R. Stat. Soc. B 86, 2024; Howard and
//! Ramdas, "Sequential estimation of quantiles with applications to A/B testing and best-arm identification", Bernoulli 28,
//! 2022; Johari et al., "Always valid inference: continuous monitoring of A/B tests", Operations Research 70, 2022. The coin as
//! the only source of chance: Fisher, "The Design of Experiments", 1935.

mod wealth;

use wealth::{Gains, Side};

/// Probability of better or worse if there is no effect, over all metrics, sides and looks; and of an interval that does not
/// contain the true effect, over all metrics and looks.
const ALPHA: f64 = 0.05;
/// From this wealth of the bettor on worse for any metric, nothing is better.
const SUSPECT: f64 = 10.0;
/// The same if the estimate is worse by at least the minimum effect.
const SUSPECT_AND_LARGE: f64 = 4.0;
/// Nothing is better before it is excluded that a latency is worse by this share or more,
pub const HARM: f64 = 0.5;
/// at this wealth. If a latency is that much worse, it is excluded with a probability of at most 1 in so many.
const HARM_EXCLUDED: f64 = 20.0;

/// How the two blocks of a pair are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// By the ratio of their values: latencies. Values must be positive.
    Ratio,
    /// By the difference of their values: shares. Values may be 0.
    Difference,
    /// The same for packets that are lost. If fewer are, those that come instead wait in the queue that was too short, and
    /// others wait for them: then only a latency that is far worse is worse.
    Losses,
}

/// A figure that is compared. Smaller values are better.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figure {
    /// How its blocks are compared.
    pub scale: Scale,
    /// Whether packets are better if it is; one that does not decide can only be worse.
    pub decides: bool,
    /// Smaller effects are none: a share (0.05 is 5 %), for [`Scale::Difference`] of the mean of all blocks.
    pub minimum_effect: f64,
    /// An increase by less than this, in the unit of its values, is no harm.
    pub harmless: f64,
}

/// What the pairs so far show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Not decided: more pairs are needed.
    Open,
    /// A figure that decides is better by its minimum effect or more, none seems worse, and no latency is far worse.
    Better,
    /// A figure is worse by its minimum effect or more.
    Worse,
    /// All figures that decide are estimated to differ by less than the minimum effect, and more is excluded or the effect is
    /// significant.
    NoDifference,
}

/// The effect on one metric.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Effect {
    /// With the plan relative to without it. For [`Scale::Ratio`], the median of the pairs' ratios; for [`Scale::Difference`],
    /// the mean of the differences, in the unit of the metric, as most pairs may have lost nothing. `None` without a pair
    /// that has values.
    pub estimate: Option<f64>,
    /// The lowest and the highest effect that is not excluded, on the same scale; it includes the estimate. All intervals at all
    /// looks, of the figures that decide, contain the true effects with a probability of 95 %, if the plan multiplies (or adds)
    /// by the same in all pairs.
    /// `None` while there are too few pairs.
    pub interval: Option<[f64; 2]>,
    /// Wealth of the bettors on better and on worse (e-values), from an initial wealth of 1. They are significant from
    /// [`Sequential::threshold`].
    pub wealth: [f64; 2],
}

/// A trial in pairs of blocks.
#[derive(Debug)]
pub struct Sequential {
    metrics: Vec<Metric>,
    order: fastrand::Rng,
    pairs: usize,
    alpha: f64,
}

impl Sequential {
    /// A trial without pairs, one of so many `trials` that share the probability of a false verdict.
    pub fn new(figures: &[Figure], seed: u64, trials: usize) -> Self {
        let metrics = figures.iter().map(|&figure| Metric::new(figure)).collect();
        let alpha = ALPHA / trials.max(1) as f64;
        Self { metrics, order: fastrand::Rng::with_seed(seed), pairs: 0, alpha }
    }

    /// Tosses the coin for the next pair: whether its first block is the one with the plan. All verdicts depend on this order.
    pub fn with_first(&mut self) -> bool {
        self.order.bool()
    }

    /// Adds a pair: the metrics of the block without the plan and of the block with it. A metric that either block has no value
    /// of (`None`, not finite, or not positive for [`Scale::Ratio`]) skips this pair.
    pub fn add(&mut self, without: &[Option<f64>], with: &[Option<f64>]) {
        self.pairs += 1;
        for ((metric, without), with) in self.metrics.iter_mut().zip(without).zip(with) {
            if let (Some(without), Some(with)) = (without, with) {
                metric.add(*without, *with);
            }
        }
    }

    /// Number of pairs added.
    pub fn pairs(&self) -> usize {
        self.pairs
    }

    /// The wealth from which the effect on a metric is significant.
    pub fn threshold(&self) -> f64 {
        2.0 * self.metrics.len().max(1) as f64 / self.alpha
    }

    /// The same for better: those that decide nothing are not among its bettors.
    fn threshold_of_better(&self) -> f64 {
        let deciding = self.metrics.iter().filter(|metric| metric.figure.decides).count();
        2.0 * deciding.max(1) as f64 / self.alpha
    }

    /// What the pairs so far show. A trial ends with the first decision other than [`Decision::Open`].
    pub fn decision(&self) -> Decision {
        let threshold = self.threshold();
        let metrics: Vec<(&Metric, Summary)> =
            self.metrics.iter().map(|metric| (metric, metric.summary())).collect();
        let deciding = || metrics.iter().filter(|(metric, _)| metric.figure.decides);
        // Whether fewer packets are lost: as it seems, which delays `worse`, or certainly, which permits `better`.
        let loses_less = |least: f64| {
            deciding().any(|(metric, its)| {
                metric.figure.scale == Scale::Losses
                    && its.is_better
                    && its.better > least.max(its.worse)
            })
        };
        let is_worse = |(metric, its): &(&Metric, Summary), loses_less: bool| {
            its.is_worse && (!loses_less || !metric.figure.decides || -its.size >= HARM)
        };
        let seems_to = loses_less(1.0);
        // The wealth of a side's bettors is one game. Only metrics with a large effect count, so that none decides for others.
        let worse: f64 =
            metrics.iter().filter(|one| is_worse(one, seems_to)).map(|(_, its)| its.worse).sum();
        if worse >= threshold {
            return Decision::Worse;
        }
        let better: f64 =
            deciding().filter(|(_, its)| its.is_better).map(|(_, its)| its.better).sum();
        let loses_less = loses_less(self.threshold_of_better());
        let is_suspect = |one: &(&Metric, Summary)| {
            let (Metric { figure, .. }, its) = one;
            is_worse(one, loses_less) && its.worse >= SUSPECT_AND_LARGE
                || figure.decides && figure.harmless == 0.0 && its.worse >= SUSPECT && !loses_less
        };
        if better >= self.threshold_of_better()
            && !metrics.iter().any(is_suspect)
            && self.metrics.iter().all(Metric::excludes_harm)
        {
            return Decision::Better;
        }
        let is_small = |(metric, its): &(&Metric, Summary)| {
            let is_significant = its.better.max(its.worse) >= threshold;
            // The interval of rare losses is narrow, as most pairs are equal; their estimate shows what it does not.
            metric.gains.are_zero()
                || !its.is_better
                    && !its.is_worse
                    && (is_significant || metric.is_within(threshold))
        };
        // Metrics without values or differences do not decide.
        let has_differences = deciding().any(|(metric, _)| !metric.gains.are_zero());
        if has_differences && deciding().all(is_small) {
            return Decision::NoDifference;
        }
        Decision::Open
    }

    /// The effect on each metric, in the order of the scales.
    pub fn effects(&self) -> Vec<Effect> {
        let threshold = |metric: &Metric| match metric.figure.decides {
            true => self.threshold_of_better(),
            false => self.threshold(),
        };
        self.metrics.iter().map(|metric| metric.effect(threshold(metric))).collect()
    }
}

/// The pairs of one metric.
#[derive(Debug)]
struct Metric {
    figure: Figure,
    /// Logarithms of ratios, or differences: positive is better with the plan.
    gains: Gains,
    /// Sum of the values of all blocks, and their number.
    level: (f64, f64),
}

/// What a decision needs of a metric.
struct Summary {
    /// The estimated gain, as a share.
    size: f64,
    /// Whether the estimated effect is at least the minimum effect.
    is_better: bool,
    is_worse: bool,
    /// Wealth of the bettor on better.
    better: f64,
    /// Wealth of the bettor on worse.
    worse: f64,
}

impl Metric {
    fn new(figure: Figure) -> Self {
        Self { figure, gains: Gains::default(), level: (0.0, 0.0) }
    }

    fn add(&mut self, without: f64, with: f64) {
        let gain = match self.figure.scale {
            Scale::Ratio => without.ln() - with.ln(),
            Scale::Difference | Scale::Losses => without - with,
        };
        // The logarithm of a latency that is not positive is not finite.
        if gain.is_finite() {
            self.gains.push(gain);
            self.level.0 += without.abs() + with.abs();
            self.level.1 += 2.0;
        }
    }

    /// The estimated gain.
    fn centre(&self) -> Option<f64> {
        match self.figure.scale {
            Scale::Ratio => self.gains.median(),
            Scale::Difference | Scale::Losses => self.gains.mean(),
        }
    }

    fn summary(&self) -> Summary {
        let size = match (self.figure.scale, self.centre()) {
            (_, None | Some(0.0)) => 0.0,
            (Scale::Ratio, Some(gain)) => -(-gain).exp_m1(),
            (Scale::Difference | Scale::Losses, Some(gain)) => gain / self.mean_level(),
        };
        let [better, worse] = self.wealth();
        let least = self.figure.minimum_effect;
        Summary {
            size,
            is_better: size >= least,
            is_worse: -size >= least.max(self.harmless()),
            better,
            worse,
        }
    }

    fn wealth(&self) -> [f64; 2] {
        [Side::Above, Side::Below].map(|side| self.gains.wealth(0.0, side))
    }

    /// Mean of the values of all blocks; not 0 if any pair differs.
    fn mean_level(&self) -> f64 {
        let (sum, count) = self.level;
        if count > 0.0 { sum / count } else { 0.0 }
    }

    /// The share of an increase that is no harm.
    fn harmless(&self) -> f64 {
        match self.mean_level() {
            level if level > 0.0 => self.figure.harmless / level,
            _ => 0.0,
        }
    }

    /// Whether effects of the minimum effect or more are excluded, better and worse.
    fn is_within(&self, threshold: f64) -> bool {
        let share = self.figure.minimum_effect;
        let [worse, better] = match self.figure.scale {
            Scale::Ratio => [-share.ln_1p(), -(1.0 - share).max(f64::MIN_POSITIVE).ln()],
            Scale::Difference | Scale::Losses => {
                [-share, share].map(|share| share * self.mean_level())
            }
        };
        self.gains.wealth(worse, Side::Above) >= threshold
            && self.gains.wealth(better, Side::Below) >= threshold
    }

    /// Whether it is excluded that a latency is far worse. Metrics with too few values to exclude anything do not prevent a
    /// decision, nor do losses, which vary too much.
    fn excludes_harm(&self) -> bool {
        let excludes = |gain: f64| self.gains.wealth(gain, Side::Above) >= HARM_EXCLUDED;
        self.figure.scale != Scale::Ratio
            || !excludes(-f64::MAX)
            || excludes(-HARM.max(self.harmless()).ln_1p())
    }

    fn effect(&self, threshold: f64) -> Effect {
        let value = |gain: f64| match self.figure.scale {
            Scale::Ratio => (-gain).exp(),
            Scale::Difference | Scale::Losses => 0.0 - gain,
        };
        let centre = self.centre();
        let interval = self.gains.interval(threshold).zip(centre).map(|([low, high], centre)| {
            // The higher gain is the lower value.
            [value(high.max(centre)), value(low.min(centre))]
        });
        Effect { estimate: centre.map(value), interval, wealth: self.wealth() }
    }
}

#[cfg(test)]
mod tests;
