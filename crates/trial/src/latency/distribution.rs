//! Latencies as a distribution. Input: nanoseconds. Output: count, mean, percentiles, maximum.
//!
//! Percentiles are within 0.1% (`hdrhistogram` with three digits); count, minimum, maximum and mean
//! are exact.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The percentiles that are reported, as far as there are enough samples.
pub(super) const PERCENTILES: [&str; 6] = ["50", "90", "99", "99.9", "99.99", "99.999"];
/// Longer latencies are in the last bucket of the histogram; the maximum stays exact.
const LONGEST_NS: u64 = 3_600_000_000_000;

/// A distribution of latencies.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Summary {
    /// Number of samples.
    pub count: u64,
    /// The shortest; `None` if empty.
    pub min_ns: Option<u64>,
    /// The mean.
    pub mean_ns: Option<f64>,
    /// The standard deviation; `None` with fewer than two samples.
    pub stddev_ns: Option<f64>,
    /// By percentile (`"99.9"`): the latency that this share of the samples does not exceed. Absent if too
    /// few samples lie beyond it: none, or fewer than ten for those above the 99th.
    pub percentiles: BTreeMap<String, u64>,
    /// The longest.
    pub max_ns: Option<u64>,
}

/// How many samples lie beyond a percentile (0 to 1); `None` if they are too few for it to mean anything: none, or for a
/// percentile above the 99th fewer than ten. The third of three samples in a hundred thousand says nothing about the
/// next hundred thousand.
pub(crate) fn samples_beyond(count: u64, percentile: f64) -> Option<u64> {
    // Whole samples, rounded so that 1 - 0.999 of 10,000 is ten.
    let beyond = (count as f64 * (1.0 - percentile) + 1e-6).floor() as u64;
    let least = if percentile > 0.99 { 10 } else { 1 };
    (beyond >= least).then_some(beyond)
}

/// A distribution being collected.
#[derive(Debug, Clone)]
pub(crate) struct Distribution {
    histogram: Histogram<u64>,
    min_ns: u64,
    max_ns: u64,
    mean_ns: f64,
    /// Sum of the squared distances from the mean (Welford; merged as by Chan, Golub and LeVeque).
    squares: f64,
}

impl Distribution {
    pub(crate) fn new() -> Self {
        // The bounds are constants that the crate accepts; the fallback is not used.
        let histogram = Histogram::new_with_bounds(1, LONGEST_NS, 3)
            .or_else(|_| Histogram::new(2))
            .unwrap_or_else(|_| unreachable!("hdrhistogram takes two digits"));
        Self { histogram, min_ns: u64::MAX, max_ns: 0, mean_ns: 0.0, squares: 0.0 }
    }

    pub(crate) fn record(&mut self, ns: u64) {
        self.histogram.saturating_record(ns);
        self.min_ns = self.min_ns.min(ns);
        self.max_ns = self.max_ns.max(ns);
        let away = ns as f64 - self.mean_ns;
        self.mean_ns += away / self.count() as f64;
        self.squares += away * (ns as f64 - self.mean_ns);
    }

    /// Records equal values; minimum, maximum and mean are not kept then.
    pub(super) fn record_many(&mut self, ns: u64, count: u64) {
        self.histogram.saturating_record_n(ns, count);
    }

    /// The middle of each bucket that is not empty, ascending, and its count.
    pub(super) fn middles(&self) -> Vec<(u64, u64)> {
        let middle = |value| self.histogram.median_equivalent(value);
        let buckets = self.histogram.iter_recorded();
        buckets.map(|b| (middle(b.value_iterated_to()), b.count_at_value())).collect()
    }

    pub(crate) fn add(&mut self, other: &Self) {
        let (mine, theirs) = (self.count() as f64, other.count() as f64);
        if theirs == 0.0 {
            return;
        }
        // Both have the same bounds.
        let _ = self.histogram.add(&other.histogram);
        self.min_ns = self.min_ns.min(other.min_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
        let delta = other.mean_ns - self.mean_ns;
        self.mean_ns += delta * theirs / (mine + theirs);
        self.squares += other.squares + delta * delta * mine * theirs / (mine + theirs);
    }

    pub(crate) fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// The latency that a share of the samples does not exceed; `None` if too few samples lie beyond it.
    fn percentile(&self, percent: f64) -> Option<u64> {
        let count = self.count();
        let rank = count - samples_beyond(count, percent / 100.0)?;
        let mut seen = 0;
        for bucket in self.histogram.iter_recorded() {
            seen += bucket.count_at_value();
            if seen >= rank {
                let middle = self.histogram.median_equivalent(bucket.value_iterated_to());
                return Some(middle.clamp(self.min_ns, self.max_ns));
            }
        }
        None
    }

    pub(crate) fn summary(&self) -> Summary {
        let count = self.count();
        let some = |value| (count > 0).then_some(value);
        let percentile = |name: &str| Some((name.to_owned(), self.percentile(name.parse().ok()?)?));
        Summary {
            count,
            min_ns: some(self.min_ns),
            mean_ns: (count > 0).then_some(self.mean_ns),
            stddev_ns: (count > 1).then(|| (self.squares / (count - 1) as f64).sqrt()),
            percentiles: PERCENTILES.iter().filter_map(|name| percentile(name)).collect(),
            max_ns: some(self.max_ns),
        }
    }

    /// Buckets that are not empty, ascending: the highest latency of each, and its count.
    pub(crate) fn buckets(&self) -> Vec<(u64, u64)> {
        let bucket = |value: u64, count| (value.min(self.max_ns), count);
        self.histogram
            .iter_recorded()
            .map(|b| bucket(b.value_iterated_to(), b.count_at_value()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: impl IntoIterator<Item = u64>) -> Distribution {
        let mut all = Distribution::new();
        values.into_iter().for_each(|ns| all.record(ns));
        all
    }

    #[test]
    fn percentiles_are_those_of_the_sorted_samples() {
        let samples: Vec<u64> =
            (1..=100_000u64).map(|i| 500 + 10_000_000 / (100_001 - i)).collect();
        let summary = of(samples.iter().copied()).summary();
        for (name, at) in
            [("50", 50_000), ("90", 90_000), ("99", 99_000), ("99.9", 99_900), ("99.99", 99_990)]
        {
            let (reported, is) = (summary.percentiles[name] as f64, samples[at - 1] as f64);
            assert!((reported / is - 1.0).abs() < 0.001, "{name}: {reported}, not {is}");
        }
        assert_eq!((summary.min_ns, summary.max_ns), (Some(600), Some(10_000_500)));
        assert_eq!(summary.count, 100_000);
    }

    #[test]
    fn a_percentile_without_enough_samples_is_omitted() {
        let reported =
            |count| -> Vec<String> { of(1..=count).summary().percentiles.into_keys().collect() };
        assert_eq!(reported(1), Vec::<String>::new());
        assert_eq!(reported(2), ["50"]);
        assert_eq!(reported(9_999), ["50", "90", "99"]);
        assert_eq!(reported(10_000), ["50", "90", "99", "99.9"]);
        assert_eq!(reported(999_999).len(), 5);
        assert_eq!(reported(1_000_000).len(), 6);
    }

    #[test]
    fn an_empty_distribution_has_no_numbers() {
        let summary = of([]).summary();
        assert_eq!((summary.count, summary.min_ns, summary.max_ns), (0, None, None));
        assert!(summary.mean_ns.is_none() && summary.stddev_ns.is_none());
        assert_eq!(of([5]).summary().stddev_ns, None);
    }

    #[test]
    fn two_merged_distributions_equal_one() {
        let (few, many) = ((0..10u64).map(|i| i * 1_000), (0..500u64).map(|i| 40_000 + i * i));
        let mut joined = Distribution::new();
        joined.add(&of(few.clone()));
        joined.add(&of([]));
        joined.add(&of(many.clone()));
        let (joined, one) = (joined.summary(), of(few.chain(many)).summary());
        assert_eq!(joined.percentiles, one.percentiles);
        assert_eq!(
            (joined.count, joined.min_ns, joined.max_ns),
            (one.count, one.min_ns, one.max_ns)
        );
        let close = |a: Option<f64>, b: Option<f64>| (a.unwrap() / b.unwrap() - 1.0).abs() < 1e-9;
        assert!(close(joined.mean_ns, one.mean_ns) && close(joined.stddev_ns, one.stddev_ns));
    }

    #[test]
    fn the_maximum_is_exact_beyond_the_histogram() {
        let all = of([u64::MAX, 3]);
        assert_eq!(all.summary().max_ns, Some(u64::MAX));
        assert_eq!(all.buckets().iter().map(|b| b.1).sum::<u64>(), 2);
    }
}
