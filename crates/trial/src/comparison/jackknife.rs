//! The confidence interval of a figure of pooled packets. Input: the figure of all cycles, and those with one cycle
//! left out. Output: the interval and the probability of chance.
//!
//! The delete-a-group jackknife: packets of a block are not independent of each other, cycles are. A percentile of
//! single samples has no valid jackknife, one of groups of many samples has (Shao and Wu, A General Theory for
//! Jackknife Variance Estimation, Annals of Statistics 17, 1989). The order within a cycle is random, so the
//! differences of two cycles are not correlated, even if those of blocks are.

use super::student;

/// Of a percentile of a dozen cycles, intervals miss the true value up to 1.4 times as often as Student's t says (see
/// `simulation`): the t of a smaller share is used, so that they miss it no more often than stated.
const NOMINAL: f64 = 0.6;

/// A figure with its uncertainty.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Estimate {
    /// The figure.
    pub(super) middle: f64,
    /// Its standard error.
    pub(super) error: f64,
    /// Degrees of freedom of that error.
    pub(super) freedom: usize,
}

impl Estimate {
    /// From the figure of all groups, and those without one of them each; `None` with fewer than two.
    pub(super) fn of(all: f64, left_out: &[f64]) -> Option<Self> {
        let count = left_out.len() as f64;
        if left_out.len() < 2 {
            return None;
        }
        let mean = left_out.iter().sum::<f64>() / count;
        let squares: f64 = left_out.iter().map(|value| (value - mean).powi(2)).sum();
        let error = (squares * (count - 1.0) / count).sqrt();
        Some(Self { middle: all, error, freedom: left_out.len() - 1 })
    }

    /// The mean of one value per group.
    pub(super) fn of_mean(values: &[f64]) -> Option<Self> {
        let (sum, count) = (values.iter().sum::<f64>(), values.len() as f64);
        let left_out: Vec<f64> = values.iter().map(|value| (sum - value) / (count - 1.0)).collect();
        Self::of(sum / count, &left_out)
    }

    /// With an error that is larger by this factor.
    pub(super) fn widened(self, factor: f64) -> Self {
        Self { error: self.error * factor, ..self }
    }

    /// With an error so large that the probability of chance is at least this: the interval of a test (Miettinen,
    /// Estimability and Estimation in Case-Referent Studies, 1976).
    pub(super) fn with_at_least(self, p_value: f64) -> Self {
        if self.middle == 0.0 || p_value <= self.p_value() {
            return self;
        }
        let share = (p_value * NOMINAL).min(1.0);
        Self { error: self.middle.abs() / student::quantile(share, self.freedom).max(1e-9), ..self }
    }

    /// The interval that misses the true value with this probability.
    pub(super) fn interval(&self, missed: f64) -> [f64; 2] {
        let half = self.error * student::quantile(missed * NOMINAL, self.freedom);
        [self.middle - half, self.middle + half]
    }

    /// Probability of a figure at least as far from zero by chance.
    pub(super) fn p_value(&self) -> f64 {
        match (self.middle == 0.0, self.error == 0.0) {
            (true, _) => 1.0,
            (false, true) => 0.0,
            _ => {
                let share = student::two_sided(self.middle / self.error, self.freedom);
                (share / NOMINAL).min(1.0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_a_mean_is_the_usual_one() {
        let found = Estimate::of_mean(&[1.0, 2.0, 3.0, 4.0]).unwrap();
        assert!((found.middle - 2.5).abs() < 1e-12);
        // s = sqrt(5/3), divided by 2.
        assert!((found.error - (5.0f64 / 3.0).sqrt() / 2.0).abs() < 1e-12, "{found:?}");
        assert_eq!(found.freedom, 3);
        assert_eq!(Estimate::of_mean(&[1.0]), None);
        let same = Estimate::of_mean(&[2.0; 5]).unwrap();
        assert_eq!((same.interval(0.05), same.p_value()), ([2.0, 2.0], 0.0));
        assert_eq!(Estimate::of_mean(&[0.0; 5]).unwrap().p_value(), 1.0);
    }

    #[test]
    fn a_larger_probability_of_chance_widens_the_interval() {
        let found = Estimate::of_mean(&[1.0, 1.1, 0.9, 1.2, 0.8, 1.0]).unwrap();
        assert!(found.p_value() < 0.001 && found.interval(0.05)[0] > 0.0);
        assert_eq!(found.with_at_least(1e-9), found);
        for p in [0.04, 0.05, 0.06, 0.5, 1.0] {
            let wider = found.with_at_least(p);
            assert!((wider.p_value() - p).abs() < 0.01, "{p}: {}", wider.p_value());
            let [low, high] = wider.interval(0.05);
            assert_eq!(low > 1e-6, p < 0.05, "{p}: {low} to {high}");
            assert!((f64::midpoint(low, high) - found.middle).abs() < 1e-6);
        }
    }

    #[test]
    fn the_interval_has_the_true_mean_in_nineteen_of_twenty_cases() {
        let mut random = fastrand::Rng::with_seed(7);
        let mut missed = 0;
        for _ in 0..1_000 {
            // Sums of four, as a difference of four blocks.
            let one = |random: &mut fastrand::Rng| (0..4).map(|_| random.f64() - 0.5).sum();
            let values: Vec<f64> = (0..12).map(|_| one(&mut random)).collect();
            let [low, high] = Estimate::of_mean(&values).unwrap().interval(0.05);
            missed += usize::from(low > 0.0 || high < 0.0);
        }
        // Of a mean it is wider than necessary: 3% of 1,000, and two standard deviations of 5.5.
        assert!((19..=42).contains(&missed), "{missed} of 1,000 missed it");
    }
}
