//! What only each packet shows of a connection (detail `full`): samples of the round-trip time, how long data waited to
//! be read, and closed windows.

use crate::CpuId;
use crate::histogram::{
    bucket, bucket_of_fine, by_number, fine_quantile_ns, quantile_ns, upper_ns,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Times, with their histogram.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TcpTimes {
    /// Number of samples.
    pub count: u64,
    /// Median; `None` if there are too few samples, like all percentiles.
    pub p50_ns: Option<u64>,
    /// 90th percentile.
    pub p90_ns: Option<u64>,
    /// 99th percentile.
    pub p99_ns: Option<u64>,
    /// Longest; exact since the start of the measurement, else the end of its bucket.
    pub max_ns: Option<u64>,
    /// `[upper_ns, count]` of each bucket that is not empty, ascending, as in [`crate::Span`].
    pub buckets: Vec<(u64, u64)>,
    /// The counts of the parts of buckets, by number, if they are known: percentiles are interpolated in these. They are
    /// not part of a document.
    #[serde(skip)]
    parts: Vec<(usize, u64)>,
}

/// The counts by key, each combined with that of the other; those that are 0 are left out.
fn merged<K: Ord + Copy>(
    these: &[(K, u64)],
    others: &[(K, u64)],
    of: fn(u64, u64) -> u64,
) -> Vec<(K, u64)> {
    let mut all: BTreeMap<K, u64> = these.iter().copied().collect();
    for (key, n) in others {
        let value = all.entry(*key).or_default();
        *value = of(*value, *n);
    }
    all.into_iter().filter(|(_, n)| *n > 0).collect()
}

impl TcpTimes {
    /// From the buckets, and the longest time if it is known.
    pub fn new(buckets: Vec<(u64, u64)>, max_ns: Option<u64>) -> Self {
        let numbered = by_number(&buckets);
        Self::with_percentiles(buckets, Vec::new(), max_ns, |q| quantile_ns(&numbered, q))
    }

    /// From parts of buckets, by number, ascending.
    fn of_parts(parts: Vec<(usize, u64)>, max_ns: Option<u64>) -> Self {
        let mut buckets: Vec<(u64, u64)> = Vec::new();
        for (part, n) in &parts {
            let upper = upper_ns(bucket_of_fine(*part));
            match buckets.last_mut() {
                Some((last, count)) if *last == upper => *count = count.saturating_add(*n),
                _ => buckets.push((upper, *n)),
            }
        }
        let of = parts.clone();
        Self::with_percentiles(buckets, parts, max_ns, |q| fine_quantile_ns(&of, q))
    }

    fn with_percentiles(
        buckets: Vec<(u64, u64)>,
        parts: Vec<(usize, u64)>,
        max_ns: Option<u64>,
        quantile_ns: impl Fn(f64) -> Option<f64>,
    ) -> Self {
        // The histogram's percentiles never exceed the longest time.
        let percentile = |q: f64| {
            let ns = quantile_ns(q)?.round() as u64;
            Some(max_ns.map_or(ns, |max| ns.min(max)))
        };
        Self {
            count: buckets.iter().fold(0, |sum, (_, n)| sum.saturating_add(*n)),
            p50_ns: percentile(0.5),
            p90_ns: percentile(0.9),
            p99_ns: percentile(0.99),
            max_ns: max_ns.or_else(|| buckets.last().map(|(upper, _)| *upper)),
            buckets,
            parts,
        }
    }

    /// From the counts of the programs, by bucket number.
    pub fn from_counts(counts: impl IntoIterator<Item = u32>, max_ns: u64) -> Self {
        let buckets: Vec<_> = filled(counts).map(|(at, n)| (upper_ns(at), n)).collect();
        let max_ns = (!buckets.is_empty()).then_some(max_ns);
        Self::new(buckets, max_ns)
    }

    /// From the counts of the programs, by the number of the part of a bucket.
    pub fn from_fine_counts(counts: impl IntoIterator<Item = u32>, max_ns: u64) -> Self {
        let parts: Vec<_> = filled(counts).collect();
        let max_ns = (!parts.is_empty()).then_some(max_ns);
        Self::of_parts(parts, max_ns)
    }

    /// Both together.
    #[must_use]
    pub fn with(&self, other: &Self) -> Self {
        self.combined(other, u64::saturating_add, self.max_ns.max(other.max_ns))
    }

    /// Those since an earlier reading.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let buckets = merged(&self.buckets, &earlier.buckets, u64::saturating_sub);
        // A new maximum is of this interval; otherwise only its bucket is known.
        let max_ns = self.max_ns.filter(|max| Some(*max) > earlier.max_ns);
        let last = buckets.last().map(|(upper, _)| bucket(*upper));
        let max_ns = max_ns.filter(|max| Some(bucket(*max)) == last);
        self.combined(earlier, u64::saturating_sub, max_ns)
    }

    fn combined(&self, other: &Self, of: fn(u64, u64) -> u64, max_ns: Option<u64>) -> Self {
        let has_parts = |times: &Self| times.count == 0 || !times.parts.is_empty();
        if has_parts(self) && has_parts(other) {
            return Self::of_parts(merged(&self.parts, &other.parts, of), max_ns);
        }
        Self::new(merged(&self.buckets, &other.buckets, of), max_ns)
    }
}

/// The counts that are not 0, with their numbers.
fn filled(counts: impl IntoIterator<Item = u32>) -> impl Iterator<Item = (usize, u64)> {
    let counts = counts.into_iter().enumerate().filter(|(_, n)| *n > 0);
    counts.map(|(at, n)| (at, u64::from(n)))
}

/// What the packets of a connection, or of several, showed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TcpSamples {
    /// Samples of the round-trip time, as the kernel takes them: one per acknowledgement of new data.
    pub rtt: TcpTimes,
    /// How long segments waited in the receive queue, from their arrival at the socket until the application began
    /// to read them.
    pub read_wait: TcpTimes,
    /// The CPU that last read data.
    pub read_on_cpu: Option<CpuId>,
    /// Parts of receive calls that copied data,
    pub reads: u64,
    /// of these, on another CPU than the last segment was processed on.
    pub reads_on_other_cpu: u64,
    /// How often the peer closed its window.
    pub peer_zero_windows: u64,
    /// How often this host closed its window, because the application did not read.
    pub own_zero_windows: u64,
}

impl TcpSamples {
    /// Adds those of another connection.
    #[must_use]
    pub fn with(&self, other: &Self) -> Self {
        Self {
            rtt: self.rtt.with(&other.rtt),
            read_wait: self.read_wait.with(&other.read_wait),
            read_on_cpu: self.read_on_cpu.filter(|_| self.read_on_cpu == other.read_on_cpu),
            reads: self.reads.saturating_add(other.reads),
            reads_on_other_cpu: self.reads_on_other_cpu.saturating_add(other.reads_on_other_cpu),
            peer_zero_windows: self.peer_zero_windows.saturating_add(other.peer_zero_windows),
            own_zero_windows: self.own_zero_windows.saturating_add(other.own_zero_windows),
        }
    }

    /// Those since an earlier reading.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            rtt: self.rtt.since(&earlier.rtt),
            read_wait: self.read_wait.since(&earlier.read_wait),
            read_on_cpu: self.read_on_cpu,
            reads: self.reads.saturating_sub(earlier.reads),
            reads_on_other_cpu: self.reads_on_other_cpu.saturating_sub(earlier.reads_on_other_cpu),
            peer_zero_windows: self.peer_zero_windows.saturating_sub(earlier.peer_zero_windows),
            own_zero_windows: self.own_zero_windows.saturating_sub(earlier.own_zero_windows),
        }
    }
}

/// How packets were observed for [`TcpSamples`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct TcpSampling {
    /// How long packets were observed, in seconds: less than the measurement if the overhead limit paused it.
    pub observed_s: f64,
    /// Segments and reads observed.
    pub observed: u64,
    /// Segments of connections for which there was no room.
    pub collided: u64,
    /// Segments whose wait was not measured, as many others of their connection waited.
    pub unmarked: u64,
}

/// Who reset a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TcpReset {
    /// This host.
    Sent,
    /// The peer.
    Received,
}

/// How often congestion control reduced the window, by its reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TcpReductions {
    /// Losses found by duplicate or selective acknowledgements (fast recovery).
    pub recoveries: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Marks by ECN, or a full queue of this host.
    pub marks: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::histogram::{FINE_BUCKETS, fine_bucket};

    fn times(ns: &[u64]) -> TcpTimes {
        let mut counts = vec![0u32; crate::histogram::BUCKETS];
        ns.iter().for_each(|ns| counts[bucket(*ns)] += 1);
        TcpTimes::from_counts(counts, ns.iter().copied().max().unwrap_or(0))
    }

    /// Nearly equal samples, at the lower edge of a bucket and at its upper one.
    #[test]
    fn percentiles_of_parts_are_exact_to_one_percent() {
        let parts = |ns: &[u64]| {
            let mut counts = vec![0u32; FINE_BUCKETS];
            ns.iter().for_each(|ns| counts[fine_bucket(*ns)] += 1);
            TcpTimes::from_fine_counts(counts, ns.iter().copied().max().unwrap_or(0))
        };
        let (lower, upper) = (upper_ns(299) + 1, upper_ns(300));
        for ns in [lower, upper] {
            let times = parts(&[[ns; 100].as_slice(), &[10 * ns; 40]].concat());
            let p50 = times.p50_ns.unwrap() as f64;
            assert!((p50 / ns as f64 - 1.0).abs() < 0.011, "{p50} of {ns}");
            assert_eq!((times.buckets[0], times.count), ((upper, 100), 140));
            let again = times.with(&parts(&[ns; 60]));
            assert_eq!((again.count, again.since(&times).buckets), (200, vec![(upper, 60)]));
            let p50 = again.since(&times).p50_ns.unwrap() as f64;
            assert!((p50 / ns as f64 - 1.0).abs() < 0.011, "{p50} of {ns}");
        }
        assert_eq!(parts(&[]).since(&parts(&[])), TcpTimes::default());
    }

    #[test]
    fn times_are_added_and_subtracted_by_bucket() {
        let (early, late) = (times(&[1000, 2000, 3000]), times(&[50_000, 60_000]));
        let all = early.with(&late);
        assert_eq!((all.count, all.max_ns), (5, Some(60_000)));
        let since = all.since(&early);
        assert_eq!((since.count, since.max_ns), (2, Some(60_000)));
        assert_eq!(since.buckets, late.buckets);
        // The maximum was before: only the bucket of the longest is known.
        let again = all.with(&times(&[2000]));
        let since = again.since(&all);
        assert_eq!((since.count, since.max_ns), (1, Some(upper_ns(bucket(2000)))));
        assert_eq!(all.since(&all), TcpTimes::default());
        assert_eq!(times(&[]).max_ns, None);
    }
}
