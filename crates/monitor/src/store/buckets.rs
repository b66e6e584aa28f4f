//! A histogram that only grows, in the kernel's buckets ([`nearpath_model::histogram`]).

use nearpath_model::histogram::{self, BUCKETS};

/// Classic buckets: powers of two from 2^-20 s to 2^1 s, which are boundaries of the kernel's buckets.
const CLASSIC: std::ops::RangeInclusive<i32> = -20..=1;
/// Boundaries per power of two.
const PER_OCTAVE: i32 = 16;

/// Counts by bucket.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Buckets {
    /// `(number, count)` of those that are not empty, ascending.
    counts: Vec<(u16, u64)>,
    /// Sum of all times in nanoseconds.
    sum_ns: u128,
}

/// The positive buckets of a native histogram, as protobuf has them.
#[derive(Debug, Default, PartialEq)]
pub struct Native {
    /// Times of up to 2^(-415/16) s.
    pub zero_count: u64,
    /// `(gap to the last span, length)` of runs of buckets; the first gap is the index of the first bucket.
    pub spans: Vec<(i32, u32)>,
    /// Difference of each count from the one before it.
    pub deltas: Vec<i64>,
}

impl Buckets {
    /// Adds `(longest time in ns, count)` of buckets, and the sum of their times.
    pub fn add(&mut self, buckets: &[(u64, u64)], sum_ns: u64) {
        for &(upper_ns, count) in buckets.iter().filter(|(_, count)| *count > 0) {
            let number = u16::try_from(histogram::bucket(upper_ns)).unwrap_or(u16::MAX);
            match self.counts.binary_search_by_key(&number, |&(number, _)| number) {
                Ok(at) => self.counts[at].1 = self.counts[at].1.saturating_add(count),
                Err(at) => self.counts.insert(at, (number, count)),
            }
        }
        self.sum_ns = self.sum_ns.saturating_add(u128::from(sum_ns));
    }

    /// Number of samples.
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, &(_, n)| sum.saturating_add(n))
    }

    /// Sum of all times in seconds.
    pub fn sum_s(&self) -> f64 {
        self.sum_ns as f64 / 1e9
    }

    /// `(number, count)` of buckets that are not empty, ascending.
    pub fn by_number(&self) -> Vec<(usize, u64)> {
        self.counts.iter().map(|&(number, n)| (usize::from(number), n)).collect()
    }

    /// `(longest time in seconds, count)` of each classic bucket; not cumulative, without the last one (`+Inf`).
    pub fn classic(&self) -> Vec<(f64, u64)> {
        let mut from = 0;
        let upto = |octave: i32| {
            let last = octave * PER_OCTAVE;
            let within = |&&(number, _): &&(u16, u64)| histogram::index(number.into()) <= last;
            self.counts.iter().take_while(within).count()
        };
        let bucket = |octave: i32| {
            let to = upto(octave);
            let count = self.counts[from..to].iter().map(|&(_, n)| n).sum();
            from = to;
            (f64::from(octave).exp2(), count)
        };
        CLASSIC.map(bucket).collect()
    }

    /// The buckets of a native histogram.
    pub fn native(&self) -> Native {
        let mut native = Native::default();
        let (mut next, mut before) = (None, 0i64);
        for &(number, count) in &self.counts {
            if number == 0 {
                native.zero_count = count;
                continue;
            }
            let index = histogram::index(usize::from(number).min(BUCKETS - 1));
            match (native.spans.last_mut(), next) {
                (Some((_, length)), Some(next)) if index == next => *length += 1,
                (_, next) => native.spans.push((index - next.unwrap_or(0), 1)),
            }
            next = Some(index + 1);
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            native.deltas.push(count - before);
            before = count;
        }
        if native.spans.is_empty() {
            // How scrapers know a native histogram without samples from a classic one.
            native.spans.push((0, 0));
        }
        native
    }
}
