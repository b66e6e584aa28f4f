//! Bets on the sign of a difference. Input: the gains of pairs, in order. Output: the wealth of a bettor who bets that gains
//! lie above an assumed gain, or below it.
//!
//! Let the gain of a pair be `g` and the assumed gain `a`. If `a` is the true one, `g - a` is as often positive as negative,
//! given its size and all earlier pairs: which block of the pair has the plan is a fair coin. So a bettor who stakes a share
//! of the wealth that depends on that size and on earlier pairs plays a fair game, and a mean of such bettors does, too.
//!
//! The share grows with the size of `g - a` in units of the spread of earlier gains, up to a limit, so that one pair cannot
//! ruin a bettor. The spread (median absolute deviation) does not depend on `a`. Therefore the wealth falls as `a` rises, and
//! the gains that are not excluded are an interval.

use std::array;

/// Bettors, each with its part of the initial wealth. Cautious ones find small effects, bold ones decide large effects soon.
const BETTORS: [Bettor; 3] = [
    Bettor { capital: 0.2, slope: 0.2, most: 0.5 },
    Bettor { capital: 0.3, slope: 0.6, most: 0.8 },
    Bettor { capital: 0.5, slope: 1.5, most: 0.95 },
];
/// The largest `most / slope`: at so many spreads, all bettors stake the most.
const SATURATED: f64 = 2.5;
/// Fewer earlier gains have no spread to speak of.
const SPREAD_OF: usize = 3;
/// Halvings of the range in which an end of the interval lies.
const HALVINGS: usize = 36;

#[derive(Debug)]
struct Bettor {
    capital: f64,
    /// Share of the wealth that is staked for each spread that a gain is away.
    slope: f64,
    /// The largest share.
    most: f64,
}

impl Bettor {
    /// The share of the wealth that is won: negative if the bet was lost.
    fn share(&self, away: f64, spread: f64) -> f64 {
        // Without a spread, only the sign counts.
        let spreads = if spread > 0.0 { away / spread } else { sign(away) };
        (self.slope * spreads).clamp(-self.most, self.most)
    }
}

/// Whether gains lie above the assumed one, or below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Above,
    Below,
}

/// The gains of a metric, one of each pair that has a value.
#[derive(Debug, Default)]
pub(super) struct Gains {
    /// Each with the spread of those before it.
    pairs: Vec<(f64, f64)>,
    sorted: Vec<f64>,
}

impl Gains {
    /// Adds the gain of the next pair.
    pub(super) fn push(&mut self, gain: f64) {
        self.pairs.push((gain, self.spread()));
        self.sorted.insert(self.sorted.partition_point(|other| *other < gain), gain);
    }

    /// Median absolute deviation; 0 with few gains, or if most are equal.
    fn spread(&self) -> f64 {
        let Some(centre) = self.median().filter(|_| self.sorted.len() >= SPREAD_OF) else {
            return 0.0;
        };
        let mut away: Vec<f64> = self.sorted.iter().map(|gain| (gain - centre).abs()).collect();
        away.sort_unstable_by(f64::total_cmp);
        median(&away).unwrap_or(0.0)
    }

    pub(super) fn median(&self) -> Option<f64> {
        median(&self.sorted)
    }

    pub(super) fn mean(&self) -> Option<f64> {
        let count = self.sorted.len();
        (count > 0).then(|| self.sorted.iter().sum::<f64>() / count as f64)
    }

    /// No pair differs, or there is none.
    pub(super) fn are_zero(&self) -> bool {
        self.sorted.iter().all(|gain| *gain == 0.0)
    }

    /// The wealth of who has bet, from an initial wealth of 1, that gains lie on this side of the assumed one.
    pub(super) fn wealth(&self, assumed: f64, side: Side) -> f64 {
        let mut wealth: [f64; BETTORS.len()] = array::from_fn(|index| BETTORS[index].capital);
        for (gain, spread) in &self.pairs {
            let away = match side {
                Side::Above => gain - assumed,
                Side::Below => assumed - gain,
            };
            for (wealth, bettor) in wealth.iter_mut().zip(&BETTORS) {
                *wealth *= 1.0 + bettor.share(away, *spread);
            }
        }
        wealth.iter().sum()
    }

    /// The lowest and the highest gain on which no bet has reached this wealth; `None` while the pairs are too few to bound it.
    pub(super) fn interval(&self, threshold: f64) -> Option<[f64; 2]> {
        let (first, last) = (*self.sorted.first()?, *self.sorted.last()?);
        // From this far outside, every bet wins the most that it can.
        let far = (SATURATED * (last - first)).max(1e-9 * first.abs()).max(f64::MIN_POSITIVE);
        let end = |side: Side, mut outside: f64, mut inside: f64| {
            if self.wealth(outside, side) < threshold {
                return None;
            }
            for _ in 0..HALVINGS {
                let middle = f64::midpoint(outside, inside);
                if self.wealth(middle, side) < threshold {
                    inside = middle;
                } else {
                    outside = middle;
                }
            }
            Some(outside)
        };
        let low = end(Side::Above, first - far, last)?;
        let high = end(Side::Below, last + far, first)?;
        Some([low.min(high), low.max(high)])
    }
}

fn sign(value: f64) -> f64 {
    if value == 0.0 { 0.0 } else { value.signum() }
}

fn median(sorted: &[f64]) -> Option<f64> {
    let middle = sorted.len() / 2;
    let upper = *sorted.get(middle)?;
    match sorted.len() % 2 {
        1 => Some(upper),
        _ => Some(f64::midpoint(*sorted.get(middle.checked_sub(1)?)?, upper)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gains(of: impl IntoIterator<Item = f64>) -> Gains {
        let mut gains = Gains::default();
        of.into_iter().for_each(|gain| gains.push(gain));
        gains
    }

    /// Sizes with ties, a far outlier and none.
    const SIZES: [f64; 12] = [1.0, 0.1, 3.0, 3.0, 0.0, 1e6, 0.5, 2.0, 1e-9, 4.0, 0.7, 40.0];

    /// All gains with these sizes, each as probable as another if the coin is fair.
    fn signed() -> impl Iterator<Item = Vec<f64>> {
        (0u32..1 << SIZES.len()).map(|signs| {
            let sign = |index: usize| if signs >> index & 1 == 0 { 1.0 } else { -1.0 };
            SIZES.iter().enumerate().map(|(index, size)| size * sign(index)).collect()
        })
    }

    #[test]
    fn the_game_is_fair_for_all_sizes() {
        let count = f64::from(1u32 << SIZES.len());
        for side in [Side::Above, Side::Below] {
            let mean = signed().map(|signed| gains(signed).wealth(0.0, side)).sum::<f64>() / count;
            assert!((mean - 1.0).abs() < 1e-9, "{side:?}: {mean}");
        }
        // Ville's inequality, counted.
        for most in [2.0, 5.0, 20.0] {
            let reaches = |signed: &Vec<f64>| {
                (1..=signed.len())
                    .any(|n| gains(signed[..n].to_vec()).wealth(0.0, Side::Above) >= most)
            };
            let share = signed().filter(reaches).count() as f64 / count;
            assert!(share > 0.0 && share <= 1.0 / most, "{most}: {share}");
        }
    }

    #[test]
    fn shares_leave_something_and_are_limited_at_the_saturation() {
        for bettor in &BETTORS {
            assert!(bettor.most < 1.0 && bettor.most / bettor.slope <= SATURATED);
            assert_eq!(bettor.share(SATURATED, 1.0), bettor.most);
            assert_eq!(bettor.share(-f64::MAX, 1e-300), -bettor.most);
            assert_eq!(bettor.share(0.0, 0.0), 0.0);
        }
        assert!((BETTORS.iter().map(|bettor| bettor.capital).sum::<f64>() - 1.0).abs() < 1e-12);
    }

    #[test]
    fn wealth_is_monotonic_and_the_interval_ends_where_it_reaches_the_threshold() {
        let mut random = fastrand::Rng::with_seed(3);
        for count in [12, 30, 100] {
            let gains = gains((0..count).map(|_| 1.0 / (random.f64() - 0.4)));
            let at = |step: i32, side| gains.wealth(f64::from(step) * 0.1, side);
            for step in -500..500 {
                assert!(at(step, Side::Above) >= at(step + 1, Side::Above) * (1.0 - 1e-12));
                assert!(at(step, Side::Below) <= at(step + 1, Side::Below) * (1.0 + 1e-12));
            }
            let [low, high] = gains.interval(40.0).unwrap();
            let near = 1e-6 * (high - low);
            assert!(gains.wealth(low, Side::Above) >= 40.0);
            assert!(gains.wealth(low + near, Side::Above) < 40.0, "{count}: {low}");
            assert!(gains.wealth(high, Side::Below) >= 40.0);
            assert!(gains.wealth(high - near, Side::Below) < 40.0, "{count}: {high}");
        }
    }

    #[test]
    fn an_end_is_found_as_soon_as_any_assumption_is_excluded() {
        let mut random = fastrand::Rng::with_seed(5);
        let (mut gains, mut unbounded) = (Gains::default(), 0);
        for _ in 0..30 {
            gains.push(random.f64());
            let is_bounded = gains.wealth(-1e12, Side::Above) >= 40.0;
            assert_eq!(gains.interval(40.0).is_some(), is_bounded, "{gains:?}");
            unbounded += usize::from(!is_bounded);
        }
        assert!((5..12).contains(&unbounded), "{unbounded}");
    }

    #[test]
    fn few_pairs_bound_nothing_and_equal_ones_are_a_point() {
        assert_eq!(gains([]).interval(40.0), None);
        assert_eq!(gains([1.0, 1.1, 0.9]).interval(40.0), None);
        let [low, high] = gains([2.0; 20]).interval(40.0).unwrap();
        assert!((low - 2.0).abs() < 1e-8 && (high - 2.0).abs() < 1e-8, "{low} to {high}");
        let [low, high] = gains([0.0; 20]).interval(40.0).unwrap();
        assert!(low.abs() < 1e-8 && high.abs() < 1e-8, "{low} to {high}");
    }

    #[test]
    fn median_and_spread_are_of_all_gains() {
        let few = gains([4.0, 1.0]);
        assert_eq!((few.median(), few.mean(), few.spread()), (Some(2.5), Some(2.5), 0.0));
        let more = gains([4.0, 1.0, 2.0, 100.0]);
        assert_eq!((more.median(), more.spread()), (Some(3.0), 1.5));
        assert_eq!((gains([]).median(), gains([]).mean()), (None, None));
        assert!(gains([0.0, 0.0]).are_zero() && !gains([0.0, 1e-9]).are_zero());
    }
}
