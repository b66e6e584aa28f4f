//! The metric over several blocks. Input: what each of them observed. Output: one figure of all their packets.

use nearpath_model::Observed;
use nearpath_model::histogram::{BUCKETS, interpolated_ns};

/// A pool of blocks of one kind, from which a block can be taken again.
#[derive(Clone)]
pub enum Pool {
    /// Samples by bucket, and the percentile of them.
    #[allow(missing_docs, reason = "as in Observed")]
    Latencies { percentile: f64, counts: Vec<u64> },
    /// Samples above a limit, of all samples.
    #[allow(missing_docs, reason = "as in Observed")]
    Above { above: f64, of: f64 },
    /// A sum and what it is divided by.
    #[allow(missing_docs, reason = "as in Observed")]
    Ratio { sum: f64, count: f64 },
}

impl Pool {
    /// An empty pool for blocks like this one.
    fn like(observed: &Observed) -> Self {
        match *observed {
            Observed::Latencies { percentile, .. } => {
                Self::Latencies { percentile, counts: vec![0; BUCKETS] }
            }
            Observed::Above { .. } => Self::Above { above: 0.0, of: 0.0 },
            Observed::Ratio { .. } => Self::Ratio { sum: 0.0, count: 0.0 },
        }
    }

    /// All of these; `None` if there are none.
    pub fn of<'a>(all: impl IntoIterator<Item = &'a Observed>) -> Option<Self> {
        let mut all = all.into_iter().peekable();
        let mut pool = Self::like(all.peek()?);
        all.for_each(|observed| pool.add(observed, false));
        Some(pool)
    }

    /// The same pool without some of its blocks.
    pub(super) fn without<'a>(&self, some: impl IntoIterator<Item = &'a Observed>) -> Self {
        let mut pool = self.clone();
        some.into_iter().for_each(|observed| pool.add(observed, true));
        pool
    }

    /// Adds a block, or takes it away.
    pub(super) fn add(&mut self, observed: &Observed, away: bool) {
        let sign = if away { -1.0 } else { 1.0 };
        match (self, observed) {
            (Self::Latencies { counts, .. }, Observed::Latencies { buckets, .. }) => {
                for &(bucket, samples) in buckets {
                    let Some(count) = counts.get_mut(bucket) else { continue };
                    *count = match away {
                        true => count.saturating_sub(samples),
                        false => count.saturating_add(samples),
                    };
                }
            }
            (Self::Above { above, of }, Observed::Above { above: more, of: all }) => {
                *above += sign * more;
                *of += sign * *all as f64;
            }
            (Self::Ratio { sum, count }, Observed::Ratio { sum: more, count: all }) => {
                *sum += sign * more;
                *count += sign * all;
            }
            // All blocks of a trial are of one metric.
            _ => {}
        }
    }

    /// The metric; `None` without samples, or if it is not a positive number.
    pub fn value(&self) -> Option<f64> {
        let value = match self {
            Self::Latencies { percentile, counts } => {
                let filled = |(_, count): &(usize, u64)| *count > 0;
                let buckets: Vec<(usize, u64)> =
                    counts.iter().copied().enumerate().filter(filled).collect();
                interpolated_ns(&buckets, *percentile)?
            }
            // Half a sample more, so that none above the limit is a small share and not nothing.
            Self::Above { above, of } if *of > 0.0 => (above.max(0.0) + 0.5) / (of + 1.0),
            Self::Ratio { sum, count } if *count > 0.0 => sum / count,
            Self::Above { .. } | Self::Ratio { .. } => return None,
        };
        (value.is_finite() && value > 0.0).then_some(value)
    }
}

/// The metric of one block.
pub fn own(observed: &Observed) -> Option<f64> {
    Pool::of([observed])?.value()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_model::histogram::bucket;

    #[test]
    fn packets_are_pooled_not_figures() {
        // 1 of 100 packets is slow in one block, 99 of 9,900 in the other: the p99 of one is that of few packets.
        let block = |fast, slow| Observed::Latencies {
            percentile: 0.99,
            buckets: vec![(bucket(1_000), fast), (bucket(1_000_000), slow)],
        };
        let blocks = [block(90, 10), block(9_900, 10)];
        let pool = Pool::of(&blocks).unwrap();
        assert!(pool.value().unwrap() < 1_100.0, "20 of 10,010 are slow");
        assert!(own(&blocks[0]).unwrap() > 900_000.0, "10 of 100 are slow");
        assert!(pool.without([&blocks[1]]).value().unwrap() > 900_000.0);
        assert!(pool.without(&blocks).value().is_none());
    }

    #[test]
    fn sums_are_added_before_they_are_divided() {
        let blocks =
            [Observed::Ratio { sum: 1.0, count: 1.0 }, Observed::Ratio { sum: 1.0, count: 9.0 }];
        assert!((Pool::of(&blocks).unwrap().value().unwrap() - 0.2).abs() < 1e-12);
        assert!(own(&Observed::Ratio { sum: 1.0, count: 0.0 }).is_none());
        let above =
            [Observed::Above { above: 0.0, of: 999 }, Observed::Above { above: 3.0, of: 1_000 }];
        let value = Pool::of(&above).unwrap().value().unwrap();
        assert!((value - 3.5 / 2_000.0).abs() < 1e-12, "{value}");
        assert!(
            own(&above[0]).unwrap() > 0.0,
            "no packet is above it, and a ratio can still be formed"
        );
    }
}
