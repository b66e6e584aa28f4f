//! The latencies of one span, as counted by the programs (`struct histogram` of `bpf/histogram.h`). Input: its
//! words. Output: a [`Span`]. Samples can be added and subtracted, so that groups and their remainder agree
//! with the whole.

use super::load::types::histogram;
use super::table::Stage;
use crate::kernel::{word_of, words_of};
use crate::layout::Layout;
use nearpath_model::histogram::{BUCKETS, middle_ns, quantile_ns, upper_ns};
use nearpath_model::{Place, Span};

/// Size of `struct histogram` in 64-bit words, and offsets of its fields.
pub const HISTOGRAM_WORDS: usize = words_of::<histogram>();
/// The shortest latency; the largest number if there is none.
pub const MIN: usize = word_of!(histogram, min_ns);
const MAX: usize = word_of!(histogram, max_ns);
const OTHER_CPU: usize = word_of!(histogram, other_cpu);
const OTHER_LLC: usize = word_of!(histogram, other_llc);
const OTHER_NODE: usize = word_of!(histogram, other_node);
const ABOVE: usize = word_of!(histogram, above);
/// The first of the counts.
pub const FIRST_BUCKET: usize = word_of!(histogram, buckets);

/// Everything after the extremes is a count, up to the last bucket.
const _: () = assert!(MIN < OTHER_CPU && MAX < OTHER_CPU && OTHER_CPU < FIRST_BUCKET);
const _: () = assert!(FIRST_BUCKET + BUCKETS == HISTOGRAM_WORDS);

/// Latencies of one span.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Samples {
    /// The shortest and the longest, if known.
    extremes: Option<(u64, u64)>,
    /// Crossings and buckets, at their offsets.
    words: Vec<u64>,
}

impl Default for Samples {
    fn default() -> Self {
        Self { extremes: None, words: vec![0; HISTOGRAM_WORDS] }
    }
}

impl Samples {
    /// Adds the programs' counts; returns the number of samples.
    pub fn add_words(&mut self, word: impl Fn(usize) -> u64) -> u64 {
        let shortest = word(MIN);
        if shortest == u64::MAX {
            return 0; // most spans have no sample on most CPUs
        }
        self.extend((shortest, word(MAX)));
        let mut added = 0;
        for (index, total) in self.words.iter_mut().enumerate().skip(OTHER_CPU) {
            let value = word(index);
            *total = total.saturating_add(value);
            added += if index >= FIRST_BUCKET { value } else { 0 };
        }
        added
    }

    /// Adds other samples.
    pub fn add(&mut self, other: &Self) {
        if let Some(extremes) = other.extremes {
            self.extend(extremes);
        }
        for (total, more) in self.words.iter_mut().zip(&other.words) {
            *total = total.saturating_add(*more);
        }
    }

    /// Subtracts samples that are part of these; the extremes of the remainder are unknown.
    pub fn subtract(&mut self, other: &Self) {
        self.extremes = None;
        for (total, less) in self.words.iter_mut().zip(&other.words) {
            *total = total.saturating_sub(*less);
        }
    }

    /// The number of samples.
    pub fn count(&self) -> u64 {
        self.buckets().iter().fold(0, |sum, &n| sum.saturating_add(n))
    }

    fn extend(&mut self, (shortest, longest): (u64, u64)) {
        let (min, max) = self.extremes.unwrap_or((u64::MAX, 0));
        self.extremes = Some((min.min(shortest), max.max(longest)));
    }

    fn buckets(&self) -> &[u64] {
        self.words.get(FIRST_BUCKET..).unwrap_or_default()
    }

    /// The buckets that are not empty, by number.
    pub fn filled(&self) -> Vec<(usize, u64)> {
        let buckets = self.buckets().iter().copied().enumerate();
        buckets.filter(|&(_, n)| n > 0).collect()
    }

    /// How many took longer than the threshold with that number.
    pub fn above(&self, number: usize) -> u64 {
        self.words.get(ABOVE + number).copied().unwrap_or_default()
    }

    /// Their statistics; `None` without a sample.
    pub fn figures(&self, layout: &Layout) -> Option<Figures> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        let buckets = self.filled();
        let (min, max) = self.extremes.unwrap_or((0, u64::MAX));
        // A percentile is exact to its bucket only; the exact extremes bound it.
        let within = |ns: f64| (ns.round() as u64).clamp(min, max.max(min));
        let percentile = |q: f64| quantile_ns(&buckets, q).map(within);
        let share = |word: usize| {
            let crossings = self.words.get(word).copied().unwrap_or_default();
            (crossings as f64 / count as f64).min(1.0)
        };
        Some(Figures {
            count,
            min_ns: self.extremes.map(|(min, _)| min),
            p50_ns: percentile(0.5),
            p90_ns: percentile(0.9),
            p99_ns: percentile(0.99),
            p999_ns: percentile(0.999),
            max_ns: self.extremes.map(|(_, max)| max),
            total_ns: (buckets.iter())
                .map(|&(bucket, n)| middle_ns(bucket).saturating_mul(n))
                .fold(0, u64::saturating_add),
            other_cpu: Some(share(OTHER_CPU)),
            other_llc: layout.knows_llcs.then(|| share(OTHER_LLC)),
            other_node: layout.knows_nodes.then(|| share(OTHER_NODE)),
            buckets: buckets.iter().map(|&(bucket, n)| (upper_ns(bucket), n)).collect(),
        })
    }

    /// The span between two stages; `None` without a sample.
    pub fn span(
        &self,
        (from, to): (&Stage, &Stage),
        layout: &Layout,
        places: Vec<Place>,
    ) -> Option<Span> {
        let figures = self.figures(layout)?;
        Some(Span {
            direction: from.direction,
            from: from.name.to_owned(),
            to: to.name.to_owned(),
            count: figures.count,
            min_ns: figures.min_ns,
            p50_ns: figures.p50_ns,
            p90_ns: figures.p90_ns,
            p99_ns: figures.p99_ns,
            p999_ns: figures.p999_ns,
            max_ns: figures.max_ns,
            total_ns: figures.total_ns,
            other_cpu: figures.other_cpu,
            other_llc: figures.other_llc,
            other_node: figures.other_node,
            buckets: figures.buckets,
            places,
        })
    }
}

/// The fields shared by spans and paths.
#[derive(Debug, Clone, PartialEq)]
pub struct Figures {
    pub count: u64,
    pub min_ns: Option<u64>,
    pub p50_ns: Option<u64>,
    pub p90_ns: Option<u64>,
    pub p99_ns: Option<u64>,
    pub p999_ns: Option<u64>,
    pub max_ns: Option<u64>,
    pub total_ns: u64,
    pub other_cpu: Option<f64>,
    pub other_llc: Option<f64>,
    pub other_node: Option<f64>,
    pub buckets: Vec<(u64, u64)>,
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use nearpath_model::histogram::bucket;
    use proptest::prelude::*;

    /// Samples as the programs would count these latencies.
    pub fn counted(latencies: &[u64]) -> Samples {
        let mut words = vec![0; HISTOGRAM_WORDS];
        words[MIN] = latencies.iter().copied().min().unwrap_or(u64::MAX);
        words[MAX] = latencies.iter().copied().max().unwrap_or(0);
        words[ABOVE] = latencies.iter().filter(|&&ns| ns > 1000).count() as u64;
        for &ns in latencies {
            words[FIRST_BUCKET + bucket(ns)] += 1;
        }
        let mut samples = Samples::default();
        assert_eq!(samples.add_words(|word| words[word]), latencies.len() as u64);
        samples
    }

    proptest! {
        #[test]
        fn parts_and_remainder_are_the_whole(
            part in prop::collection::vec(0..5000u64, 0..50),
            rest in prop::collection::vec(0..5000u64, 0..50),
        ) {
            let mut whole = counted(&[part.clone(), rest.clone()].concat());
            let mut sum = counted(&part);
            sum.add(&counted(&rest));
            prop_assert_eq!(&sum, &whole);
            whole.subtract(&counted(&part));
            let rest = counted(&rest);
            prop_assert_eq!(whole.buckets(), rest.buckets());
            prop_assert_eq!(whole.count(), rest.count());
        }
    }
}
