//! Inference that may stop at any time. Input: pairs of adjacent blocks, one without the plan and one with it, in random order.
//! Output: after each pair, whether packets are better, worse or no different with it, and by how much.
//!
//! Which block of a pair has the plan is a fair coin, so if the plan has no effect, the sign of the difference between the two
//! is one, too, given its size and all that came before, whatever the distribution of the noise, its correlation or its
//! drift. A bet on that sign is a fair game: the wealth of a player who bets on "better" exceeds 1/α at any time with a
//! probability of at most α (Ville). So each look is valid, and a large effect is decided after a few pairs.
//!
//! Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting"; Howard and Ramdas, "Sequential
//! estimation of quantiles with applications to A/B testing"; Johari et al., "Always valid inference".

use fastrand::Rng;

/// Probability of a verdict where there is no effect, over all metrics, sides and looks.
const ALPHA: f64 = 0.05;
/// Parts of the wealth that are bet on a pair: large ones decide large effects soon, small ones find small effects.
const BETS: [f64; 4] = [0.2, 0.5, 0.8, 0.95];
/// Wealth on "worse" from which nothing is called better.
const SUSPECT: f64 = 10.0;
/// The same if the estimate is worse, too.
const SUSPECT_BEYOND: f64 = 4.0;

/// Whether there is no difference is looked at after so many pairs.
const LOOK: usize = 4;

/// How the two blocks of a pair are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// By their ratio: latencies.
    Ratio,
    /// By their difference: shares, losses.
    Difference,
}

/// What the pairs so far say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Nothing yet.
    Open,
    /// A metric is better, and none is worse.
    Better,
    /// A metric is worse.
    Worse,
    /// Effects of interest are excluded.
    NoDifference,
}

/// The effect on a metric.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Effect {
    /// With to without, as a ratio or a difference: the median of the pairs. `None` without pairs.
    pub estimate: Option<f64>,
    /// All effects that the pairs do not exclude, from and to; `None` while none are.
    pub interval: Option<[f64; 2]>,
    /// Wealth of who bets on better, and on worse.
    pub wealth: [f64; 2],
}

/// The pairs of a trial.
#[derive(Debug)]
pub struct Sequential {
    metrics: Vec<Metric>,
    order: Rng,
    pairs: usize,
    /// Smaller effects are no difference, as a share.
    minimum: f64,
}

#[derive(Debug)]
struct Metric {
    scale: Scale,
    /// Of each pair: positive is better with the plan.
    gains: Vec<f64>,
    /// The level without the plan, for differences.
    levels: Vec<f64>,
}

impl Sequential {
    /// Without pairs. Smaller values of a metric are better; an effect below `minimum`, a share, is no difference.
    pub fn new(scales: &[Scale], seed: u64, minimum: f64) -> Self {
        let metric = |&scale: &Scale| Metric { scale, gains: Vec::new(), levels: Vec::new() };
        let metrics = scales.iter().map(metric).collect();
        Self { metrics, order: Rng::with_seed(seed), pairs: 0, minimum }
    }

    /// Whether the next pair begins with the plan.
    pub fn with_first(&mut self) -> bool {
        self.order.bool()
    }

    /// Adds a pair: the value of each metric without the plan and with it. Metrics without a value are skipped.
    pub fn add(&mut self, without: &[Option<f64>], with: &[Option<f64>]) {
        self.pairs += 1;
        for ((metric, without), with) in self.metrics.iter_mut().zip(without).zip(with) {
            if let (Some(without), Some(with)) = (without, with) {
                metric.add(*without, *with);
            }
        }
    }

    /// Number of pairs.
    pub fn pairs(&self) -> usize {
        self.pairs
    }

    /// What the pairs so far say.
    pub fn decision(&self) -> Decision {
        let threshold = self.threshold();
        let effects: Vec<Effect> = self.metrics.iter().map(Metric::effect).collect();
        let both = || self.metrics.iter().zip(&effects);
        let size =
            |(metric, effect): (&Metric, &Effect)| metric.size(effect.estimate.unwrap_or(0.0));
        let is_large = |pair| size(pair).abs() >= self.minimum;
        if both().any(|pair| pair.1.wealth[1] >= threshold && is_large(pair)) {
            return Decision::Worse;
        }
        let is_suspect = both().any(|pair| {
            let least = if size(pair) <= -self.minimum { SUSPECT_BEYOND } else { SUSPECT };
            pair.1.wealth[1] >= least
        });
        if !is_suspect && both().any(|pair| pair.1.wealth[0] >= threshold && is_large(pair)) {
            return Decision::Better;
        }
        let is_small = |metric: &Metric| {
            metric.is_zero()
                || metric.interval(threshold).is_some_and(|interval| {
                    interval.into_iter().all(|end| metric.size(end).abs() <= self.minimum)
                })
        };
        let has_values = self.metrics.iter().any(|metric| !metric.is_zero());
        let is_none = has_values && self.pairs.is_multiple_of(LOOK);
        if is_none && self.metrics.iter().all(is_small) {
            return Decision::NoDifference;
        }
        Decision::Open
    }

    /// The effect on each metric.
    pub fn effects(&self) -> Vec<Effect> {
        let threshold = self.threshold();
        let of =
            |metric: &Metric| Effect { interval: metric.interval(threshold), ..metric.effect() };
        self.metrics.iter().map(of).collect()
    }

    /// The wealth that decides: both sides of every metric are bet on.
    fn threshold(&self) -> f64 {
        2.0 * self.metrics.len().max(1) as f64 / ALPHA
    }
}

impl Metric {
    fn add(&mut self, without: f64, with: f64) {
        let gain = match self.scale {
            Scale::Ratio if without > 0.0 && with > 0.0 => (without / with).ln(),
            Scale::Ratio => return,
            Scale::Difference => without - with,
        };
        if gain.is_finite() {
            self.gains.push(gain);
            self.levels.push(without);
        }
    }

    /// Neither block of any pair has anything to compare.
    fn is_zero(&self) -> bool {
        self.gains.iter().all(|gain| *gain == 0.0)
    }

    /// An effect as a share: positive is better.
    fn size(&self, effect: f64) -> f64 {
        match self.scale {
            Scale::Ratio => -effect.ln(),
            Scale::Difference => {
                let level = self.levels.iter().sum::<f64>() / self.levels.len().max(1) as f64;
                if effect == 0.0 { 0.0 } else { -effect / level.abs().max(f64::MIN_POSITIVE) }
            }
        }
    }

    /// The effect of a gain.
    fn value(&self, gain: f64) -> f64 {
        match self.scale {
            Scale::Ratio => (-gain).exp(),
            Scale::Difference => -gain,
        }
    }

    /// The effect, without its interval.
    fn effect(&self) -> Effect {
        let mut sorted = self.gains.clone();
        sorted.sort_by(f64::total_cmp);
        let centre = match self.scale {
            Scale::Ratio => median(&sorted),
            // Most pairs may have lost nothing.
            Scale::Difference => {
                (!sorted.is_empty()).then(|| sorted.iter().sum::<f64>() / sorted.len() as f64)
            }
        };
        let wealth = [1.0, -1.0].map(|side| wealth(&self.gains, 0.0, side));
        Effect { estimate: centre.map(|gain| self.value(gain)), interval: None, wealth }
    }

    /// The effects that are not excluded: bets on gains beyond them have not won. The wealth falls as the assumed gain rises,
    /// so its ends are found by bisection.
    fn interval(&self, threshold: f64) -> Option<[f64; 2]> {
        let first = self.gains.iter().copied().min_by(f64::total_cmp)?;
        let last = self.gains.iter().copied().max_by(f64::total_cmp)?;
        let end = |side: f64, mut out: f64, mut inside: f64| {
            if wealth(&self.gains, out, side) < threshold {
                return None;
            }
            for _ in 0..20 {
                let middle = f64::midpoint(out, inside);
                if wealth(&self.gains, middle, side) < threshold {
                    inside = middle;
                } else {
                    out = middle;
                }
            }
            Some(inside)
        };
        let reach = (last - first).max(f64::MIN_POSITIVE);
        let low = end(1.0, first - reach, last)?;
        let high = end(-1.0, last + reach, first)?;
        // The greater gain is the smaller value.
        (low <= high).then(|| [self.value(high), self.value(low)])
    }
}

fn median(sorted: &[f64]) -> Option<f64> {
    let middle = sorted.len() / 2;
    let upper = *sorted.get(middle)?;
    Some(if sorted.len() % 2 == 1 { upper } else { f64::midpoint(sorted[middle - 1], upper) })
}

/// The wealth of who has bet on gains above (`side` 1) or below (-1) this one: the mean of those with each part of it. A pair
/// weighs by its size against those before, which its sign does not depend on.
fn wealth(gains: &[f64], beyond: f64, side: f64) -> f64 {
    let mut wealth = [1.0; BETS.len()];
    let mut sizes: Vec<f64> = Vec::with_capacity(gains.len());
    for gain in gains {
        let gain = (gain - beyond) * side;
        let size = gain.abs();
        let usual = median(&sizes).unwrap_or(size);
        let weight = if usual > 0.0 { (size / usual).min(1.0) } else { f64::from(size > 0.0) };
        for (wealth, bet) in wealth.iter_mut().zip(BETS) {
            *wealth *= 1.0 + bet * weight * if gain > 0.0 { 1.0 } else { -1.0 };
        }
        sizes.insert(sizes.partition_point(|other| *other < size), size);
    }
    wealth.iter().sum::<f64>() / BETS.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const METRICS: [Scale; 4] = [Scale::Ratio, Scale::Ratio, Scale::Difference, Scale::Difference];

    /// Noise of one block.
    type Noise = fn(&mut Rng, &mut f64, usize) -> f64;

    fn normal(random: &mut Rng) -> f64 {
        let (u, v) = (random.f64().max(1e-300), random.f64());
        (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
    }

    /// Correlated, heavy-tailed, drifting, bursty, and in phases that last longer than a pair.
    const NOISES: [(&str, Noise); 5] = [
        ("correlated", |random, state, _| {
            *state = 0.9 * *state + 0.2 * normal(random);
            *state
        }),
        ("heavy", |random, _, _| random.f64().max(1e-9).powf(-0.7).ln()),
        ("drifting", |random, _, block| 0.02 * block as f64 + 0.1 * normal(random)),
        ("bursty", |random, state, _| {
            *state = if *state > 0.0 {
                *state - 1.0
            } else if random.f64() < 0.1 {
                5.0
            } else {
                0.0
            };
            f64::from(*state > 0.0) * 1.5 + 0.05 * normal(random)
        }),
        ("phases", |random, _, block| f64::from(block / 7 % 2 == 0) + 0.1 * normal(random)),
    ];

    /// The decision of a trial whose effect multiplies p50 and p99, and the pairs until then.
    fn trial(noise: Noise, effects: [f64; 2], pairs: usize, seed: u64) -> (Decision, usize) {
        let mut random = Rng::with_seed(seed);
        let mut sequential = Sequential::new(&METRICS, seed ^ 0xabcd, 0.05);
        let (mut state, mut block) = (0.0, 0);
        for pair in 1..=pairs {
            let first = sequential.with_first();
            let mut values = [Vec::new(), Vec::new()];
            for with in [first, !first] {
                let level = noise(&mut random, &mut state, block).exp();
                block += 1;
                let factor = |effect: f64| if with { effect } else { 1.0 };
                let tail = (0.3 * normal(&mut random)).exp();
                values[usize::from(with)] = vec![
                    Some(50.0 * level * factor(effects[0])),
                    Some(500.0 * level * tail * factor(effects[1])),
                    Some((0.01 * level * tail * factor(effects[1])).min(1.0)),
                    Some(0.0),
                ];
            }
            sequential.add(&values[0], &values[1]);
            let decision = sequential.decision();
            if decision != Decision::Open {
                return (decision, pair);
            }
        }
        (Decision::Open, pairs)
    }

    #[test]
    fn without_an_effect_a_verdict_is_rare_however_often_one_looks() {
        let seeds = if nearpath_testing::lengthy() { 4_000 } else { 200 };
        for (name, noise) in NOISES {
            let is_false = |seed: &u64| {
                let (decision, _) = trial(noise, [1.0, 1.0], 60, *seed);
                matches!(decision, Decision::Better | Decision::Worse)
            };
            let wrong = (0..seeds).filter(is_false).count();
            assert!(wrong as f64 <= 0.05 * seeds as f64, "{name}: {wrong} of {seeds}");
        }
    }

    #[test]
    fn a_halved_latency_is_decided_within_a_dozen_pairs() {
        let noise: Noise = |random, _, _| 0.2 * normal(random);
        let mut taken: Vec<usize> = Vec::new();
        for seed in 0..200 {
            let (decision, pairs) = trial(noise, [0.5, 0.5], 30, seed);
            assert_eq!(decision, Decision::Better, "{seed}");
            taken.push(pairs);
        }
        taken.sort_unstable();
        assert!(taken[190] <= 14, "95 % within {}", taken[190]);
        for seed in 0..50 {
            assert_eq!(trial(noise, [2.0, 2.0], 30, seed).0, Decision::Worse);
        }
    }

    #[test]
    fn better_is_never_said_where_a_figure_is_worse() {
        let noise: Noise = |random, _, _| 0.1 * normal(random);
        for seed in 0..200 {
            assert_ne!(trial(noise, [0.5, 2.0], 60, seed).0, Decision::Better, "{seed}");
        }
    }

    #[test]
    fn a_small_effect_is_found_and_none_is_said_to_be_none() {
        let quiet: Noise = |random, _, _| 0.03 * normal(random);
        let found =
            (0..100).filter(|&seed| trial(quiet, [0.9, 0.9], 60, seed).0 == Decision::Better);
        let found = found.count();
        assert!(found >= 80, "{found}");
        let mut same = Sequential::new(&METRICS[..1], 1, 0.05);
        let mut random = Rng::with_seed(1);
        for _ in 0..60 {
            let value = |random: &mut Rng| vec![Some((0.01 * normal(random)).exp())];
            let (without, with) = (value(&mut random), value(&mut random));
            same.add(&without, &with);
        }
        assert_eq!(same.decision(), Decision::NoDifference);
    }

    #[test]
    fn nothing_lost_on_either_side_decides_nothing() {
        let mut none = Sequential::new(&METRICS, 1, 0.05);
        for _ in 0..100 {
            none.add(&[None, None, Some(0.0), Some(0.0)], &[None, None, Some(0.0), Some(0.0)]);
        }
        assert_eq!(none.decision(), Decision::Open);
        // Losses that end are an effect.
        let mut lossy = Sequential::new(&METRICS, 1, 0.05);
        for n in 0..12 {
            let lost = [None, None, None, Some(100.0 + f64::from(n % 3))];
            lossy.add(&lost, &[None, None, None, Some(0.0)]);
        }
        assert_eq!(lossy.decision(), Decision::Better);
    }

    #[test]
    fn the_interval_has_the_effect_at_all_looks() {
        let noise: Noise = NOISES[0].1;
        let missed = (0..200).filter(|&seed| {
            let (mut random, mut state) = (Rng::with_seed(seed), 0.0);
            let mut one = Sequential::new(&METRICS[..1], seed, 0.05);
            (0..40).any(|block| {
                let first = one.with_first();
                let mut values = [0.0; 2];
                for with in [first, !first] {
                    let factor = if with { 0.7 } else { 1.0 };
                    values[usize::from(with)] =
                        noise(&mut random, &mut state, block).exp() * factor;
                }
                one.add(&[Some(values[0])], &[Some(values[1])]);
                let interval = one.effects()[0].interval;
                interval.is_some_and(|[low, high]| !(low..=high).contains(&0.7))
            })
        });
        let missed = missed.count();
        assert!(missed <= 10, "{missed} of 200");
    }
}
