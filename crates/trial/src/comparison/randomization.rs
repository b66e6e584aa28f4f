//! How probable a difference is if the change makes none, by exchanging halves of cycles. Input: cycles. Output: the
//! probability of a difference at least as large.
//!
//! If the change has no effect, each cycle might as well have been the one with its halves exchanged: with bursts of other
//! work, and tails of any weight. So the share of all exchanges that give at least as large a difference needs no
//! assumption about the distribution of noise (Fisher, The Design of Experiments, 1935; Edgington and Onghena, Randomization
//! Tests, 2007). The jackknife underestimates the error if few cycles are far slower than all others.

use super::pool::Pool;
use nearpath_model::{Block, Cycle};

/// All exchanges up to this number, else as many drawn at random.
const EXCHANGES_MAX: usize = 512;
/// The same cycles give the same numbers.
const SEED: u64 = 0x6e65_6172;

/// The probability; 0 if no other exchange is as far apart, which says no more than that it is below one in their number:
/// with [`CYCLES_MIN`](super::CYCLES_MIN) cycles below the probability of chance that verdicts allow. `None` without a value
/// of the metric.
pub(super) fn p_value(cycles: &[Cycle]) -> Option<f64> {
    let all = |halves: for<'a> fn(&'a Cycle) -> &'a [Block; 2]| {
        Pool::of(cycles.iter().flat_map(halves).map(|block| &block.observed))
    };
    let mut trial = Exchanged {
        cycles,
        exchanged: vec![false; cycles.len()],
        pools: [all(without)?, all(with)?],
    };
    let found = trial.difference()?;
    // Rounding must not make equal differences differ.
    let least = found * (1.0 - 1e-9);
    let (mut count, mut as_large) = (1usize, 1usize);
    let mut look = |trial: &Exchanged<'_>| {
        count += 1;
        // A side without a value of the metric differs as much as can be.
        as_large += usize::from(trial.difference().is_none_or(|difference| difference >= least));
    };
    let exact = u32::try_from(cycles.len()).ok().and_then(|n| 1usize.checked_shl(n));
    let exact = exact.filter(|&exact| exact <= EXCHANGES_MAX);
    match exact {
        // In Gray's order, in which each differs from the one before it by one cycle.
        Some(exact) => {
            for number in 1..exact {
                trial.exchange(number.trailing_zeros() as usize);
                look(&trial);
            }
        }
        None => {
            let mut random = fastrand::Rng::with_seed(SEED);
            for _ in 1..EXCHANGES_MAX {
                for index in 0..cycles.len() {
                    if random.bool() {
                        trial.exchange(index);
                    }
                }
                look(&trial);
            }
        }
    }
    // All cycles exchanged are as far apart in the other direction, in all exchanges but not in random ones.
    let least = if exact.is_some() { 2 } else { 1 };
    Some(if as_large <= least { 0.0 } else { as_large as f64 / count as f64 })
}

fn without(cycle: &Cycle) -> &[Block; 2] {
    &cycle.without
}

fn with(cycle: &Cycle) -> &[Block; 2] {
    &cycle.with
}

/// Cycles, some of them with their halves exchanged, and the pools of both sides.
struct Exchanged<'a> {
    cycles: &'a [Cycle],
    exchanged: Vec<bool>,
    pools: [Pool; 2],
}

impl Exchanged<'_> {
    /// Exchanges the halves of a cycle.
    fn exchange(&mut self, index: usize) {
        let (Some(cycle), Some(exchanged)) =
            (self.cycles.get(index), self.exchanged.get_mut(index))
        else {
            return;
        };
        *exchanged = !*exchanged;
        let halves = [&cycle.without, &cycle.with];
        let [left, right] = if *exchanged { halves } else { [halves[1], halves[0]] };
        let [a, b] = &mut self.pools;
        for (pool, gone, come) in [(a, left, right), (b, right, left)] {
            for block in come {
                pool.add(&block.observed, false);
            }
            for block in gone {
                pool.add(&block.observed, true);
            }
        }
    }

    /// How far apart the two sides are, as the logarithm of their ratio.
    fn difference(&self) -> Option<f64> {
        let [without, with] = &self.pools;
        Some((with.value()? / without.value()?).ln().abs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_model::Observed;

    fn cycle(without: f64, with: f64) -> Cycle {
        let block = |sum: f64| Block {
            observed: Observed::Ratio { sum, count: 1.0 },
            lost: 0.0,
            errors: 0.0,
            drops: 0.0,
            cpus_busy: 1.0,
            rate_per_s: 1.0,
        };
        let twice = |sum| [block(sum), block(sum)];
        Cycle { without: twice(without), with: twice(with) }
    }

    fn p(cycles: &[Cycle]) -> f64 {
        p_value(cycles).unwrap()
    }

    #[test]
    fn the_share_of_exchanges_is_counted() {
        // All alike: only no exchange and all of them are as far apart.
        let mut alike: Vec<Cycle> = (0..6).map(|n| cycle(100.0 + f64::from(n), 80.0)).collect();
        assert_eq!(p(&alike), 0.0);
        // One says nothing: exchanged or not, the difference is the same.
        alike.push(cycle(100.0, 100.0));
        assert!((p(&alike) - 4.0 / 128.0).abs() < 1e-12);
        // One cycle is far slower, the others say nothing: it is on one side or the other.
        let mut burst = vec![cycle(100.0, 100.0); 11];
        burst.push(cycle(100.0, 5_000.0));
        assert_eq!(p(&burst), 1.0);
        assert_eq!(p(&vec![cycle(100.0, 100.0); 8]), 1.0);
        // More than are all tried: no exchange of 511 random ones is as far apart.
        let many: Vec<Cycle> = (0..20).map(|n| cycle(100.0, 90.0 - f64::from(n % 3))).collect();
        assert_eq!(p(&many), 0.0);
    }

    #[test]
    fn of_cycles_without_an_effect_one_in_twenty_is_significant_whatever_the_noise() {
        let mut random = fastrand::Rng::with_seed(5);
        let mut found = 0;
        for _ in 0..1_000 {
            // One in six is up to a hundred times slower.
            let mut one = || {
                let burst = if random.f64() < 0.17 { (4.6 * random.f64()).exp() } else { 1.0 };
                100.0 * burst * (0.9 + 0.2 * random.f64())
            };
            let cycles: Vec<Cycle> = (0..8).map(|_| cycle(one(), one())).collect();
            found += usize::from(p(&cycles) <= 0.05);
        }
        // 50, and three standard deviations of 6.9; discreteness makes it fewer.
        assert!((20..=71).contains(&found), "{found} of 1,000");
    }
}
