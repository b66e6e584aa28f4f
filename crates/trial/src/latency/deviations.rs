//! Differences to a schedule as a distribution. Input: nanoseconds, negative ones too. Output: a [`Deviation`].
//!
//! Percentiles are within 0.1% of their distance from zero; count, minimum, maximum and mean are exact.

use super::distribution::{Distribution, PERCENTILES, samples_beyond};
use nearpath_model::Deviation;

/// Differences being collected.
#[derive(Debug, Clone)]
pub(super) struct Deviations {
    /// Of negative ones, their distance from zero.
    before: Distribution,
    after: Distribution,
    min_ns: i64,
    max_ns: i64,
    mean_ns: f64,
    /// Sum of the squared distances from the mean (Welford; merged as by Chan, Golub and LeVeque).
    squares: f64,
}

impl Deviations {
    pub(super) fn new() -> Self {
        let (before, after) = (Distribution::new(), Distribution::new());
        Self { before, after, min_ns: i64::MAX, max_ns: i64::MIN, mean_ns: 0.0, squares: 0.0 }
    }

    pub(super) fn count(&self) -> u64 {
        self.before.count() + self.after.count()
    }

    pub(super) fn record(&mut self, ns: i64) {
        self.put(ns, 1);
        self.min_ns = self.min_ns.min(ns);
        self.max_ns = self.max_ns.max(ns);
        let away = ns as f64 - self.mean_ns;
        self.mean_ns += away / self.count() as f64;
        self.squares += away * (ns as f64 - self.mean_ns);
    }

    fn put(&mut self, ns: i64, count: u64) {
        let side = if ns < 0 { &mut self.before } else { &mut self.after };
        side.record_many(ns.unsigned_abs(), count);
    }

    /// The values of the buckets with their counts, ascending.
    fn buckets(&self) -> Vec<(i64, u64)> {
        let signed = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX);
        let before =
            self.before.middles().into_iter().rev().map(|(ns, count)| (-signed(ns), count));
        let after = self.after.middles().into_iter().map(|(ns, count)| (signed(ns), count));
        before.chain(after).map(|(ns, count)| (ns.clamp(self.min_ns, self.max_ns), count)).collect()
    }

    /// Adds others, each with this added to it.
    pub(super) fn add(&mut self, other: &Self, shift_ns: i64) {
        let (mine, theirs) = (self.count() as f64, other.count() as f64);
        if theirs == 0.0 {
            return;
        }
        for (ns, count) in other.buckets() {
            self.put(ns.saturating_add(shift_ns), count);
        }
        self.min_ns = self.min_ns.min(other.min_ns.saturating_add(shift_ns));
        self.max_ns = self.max_ns.max(other.max_ns.saturating_add(shift_ns));
        let delta = other.mean_ns + shift_ns as f64 - self.mean_ns;
        self.mean_ns += delta * theirs / (mine + theirs);
        self.squares += other.squares + delta * delta * mine * theirs / (mine + theirs);
    }

    /// The distribution; `None` if empty.
    pub(super) fn summary(&self) -> Option<Deviation> {
        let count = self.count();
        let buckets = self.buckets();
        let percentile = |name: &str| {
            let rank = count - samples_beyond(count, name.parse::<f64>().ok()? / 100.0)?;
            let mut seen = 0;
            let at = buckets.iter().find(|(_, count)| {
                seen += count;
                seen >= rank
            });
            Some((name.to_owned(), at?.0))
        };
        (count > 0).then(|| Deviation {
            count,
            min_ns: Some(self.min_ns),
            mean_ns: Some(self.mean_ns),
            stddev_ns: (count > 1).then(|| (self.squares / (count - 1) as f64).sqrt()),
            percentiles: PERCENTILES.iter().filter_map(|name| percentile(name)).collect(),
            max_ns: Some(self.max_ns),
        })
    }

    /// The distribution beyond the least; `None` if empty.
    pub(super) fn beyond_least(&self) -> Option<Deviation> {
        let mut moved = Self::new();
        moved.add(self, self.min_ns.saturating_neg());
        moved.summary()
    }
}

/// Arrivals by the clock of another host, which is ahead by an unknown constant.
#[derive(Debug, Clone)]
pub(super) struct FarTimes {
    /// The first, from which the others are measured, so that they are small.
    first_ns: i64,
    since_first: Deviations,
}

impl FarTimes {
    pub(super) fn new() -> Self {
        Self { first_ns: 0, since_first: Deviations::new() }
    }

    pub(super) fn record(&mut self, ns: i64) {
        if self.since_first.count() == 0 {
            self.first_ns = ns;
        }
        self.since_first.record(ns.saturating_sub(self.first_ns));
    }

    pub(super) fn add(&mut self, other: &Self) {
        if self.since_first.count() == 0 {
            self.first_ns = other.first_ns;
        }
        self.since_first.add(&other.since_first, other.first_ns.saturating_sub(self.first_ns));
    }

    /// The distribution beyond the earliest; `None` if empty.
    pub(super) fn summary(&self) -> Option<nearpath_model::Deviation> {
        self.since_first.beyond_least()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: impl IntoIterator<Item = i64>) -> Deviations {
        let mut all = Deviations::new();
        values.into_iter().for_each(|ns| all.record(ns));
        all
    }

    #[test]
    fn percentiles_are_those_of_the_sorted_samples() {
        let mut samples: Vec<i64> = (0..20_000).map(|i| (i - 15_000) * 7).collect();
        let summary = of(samples.iter().rev().copied()).summary().unwrap();
        samples.sort_unstable();
        for (name, at) in [("50", 9_999), ("90", 17_999), ("99", 19_799), ("99.9", 19_979)] {
            let (reported, is) = (summary.percentiles[name], samples[at]);
            assert!((reported - is).abs() <= is.abs() / 500 + 1, "{name}: {reported}, not {is}");
        }
        assert_eq!((summary.min_ns, summary.max_ns), (Some(-105_000), Some(34_993)));
        assert!((summary.mean_ns.unwrap() + 35_003.5).abs() < 0.01, "{summary:?}");
    }

    #[test]
    fn an_empty_distribution_has_no_numbers() {
        assert_eq!(of([]).summary(), None);
        assert_eq!(of([]).beyond_least(), None);
        let one = of([-5]).summary().unwrap();
        assert_eq!((one.min_ns, one.max_ns, one.stddev_ns), (Some(-5), Some(-5), None));
        assert!(one.percentiles.is_empty(), "{one:?}");
    }

    #[test]
    fn the_offset_between_two_clocks_does_not_matter() {
        let mut far = FarTimes::new();
        let hour = 3_600_000_000_000;
        [5, 20, 3, 900].iter().for_each(|ns| far.record(hour + ns));
        let mut other = FarTimes::new();
        other.record(hour + 1);
        // Each flow, and each interval, has a first one of its own.
        let mut all = FarTimes::new();
        [&far, &other, &FarTimes::new()].into_iter().for_each(|times| all.add(times));
        let summary = all.summary().unwrap();
        assert_eq!((summary.count, summary.min_ns, summary.max_ns), (5, Some(0), Some(899)));
        assert_eq!(summary.percentiles["50"], 4);
        assert!((summary.mean_ns.unwrap() - 184.8).abs() < 0.01, "{summary:?}");
    }
}
