//! The log-linear histogram of `bpf/histogram.h`, read back: bounds of its buckets, percentiles.

/// Buckets of a histogram.
pub const BUCKETS: usize = 512;
const SUB_BITS: u32 = 4;

/// The lowest and the highest latency that a bucket holds, in nanoseconds, both included.
pub fn bounds(bucket: usize) -> (u64, u64) {
    let sub = 1u64 << SUB_BITS;
    let bucket = bucket as u64;
    if bucket < sub {
        return (bucket, bucket);
    }
    let shift = (bucket >> SUB_BITS) - 1;
    let low = (sub + bucket % sub) << shift;
    (low, low + (1 << shift) - 1)
}

/// The bucket that holds a latency: the same computation as `histogram_bucket` in C.
pub fn bucket(ns: u64) -> usize {
    let sub = 1u64 << SUB_BITS;
    if ns < sub {
        return ns as usize;
    }
    let bits = 63 - ns.leading_zeros();
    let group = u64::from(bits - SUB_BITS + 1) << SUB_BITS;
    ((group + ((ns >> (bits - SUB_BITS)) & (sub - 1))) as usize).min(BUCKETS - 1)
}

/// The middle of a bucket: what its samples are taken to be.
pub fn middle(bucket: usize) -> u64 {
    let (low, high) = bounds(bucket);
    low + (high - low) / 2
}

/// The latency below which the share `p` (0 to 1) of the samples lies, within 3.2 %; `None` when
/// there are too few samples to have one beyond it.
pub fn percentile(buckets: &[u64], p: f64) -> Option<u64> {
    let count: u64 = buckets.iter().sum();
    // Whole samples, rounded so that 1 - 0.999 of 1,000 is one.
    let beyond = ((count as f64) * (1.0 - p) + 1e-6).floor() as u64;
    if beyond == 0 {
        return None;
    }
    let rank = count - beyond;
    let mut seen = 0;
    for (bucket, &n) in buckets.iter().enumerate() {
        seen += n;
        if seen >= rank {
            return Some(middle(bucket));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_join_without_a_gap() {
        let mut next = 0;
        for b in 0..BUCKETS {
            let (low, high) = bounds(b);
            assert_eq!(low, next);
            assert_eq!((bucket(low), bucket(high)), (b, b));
            next = high + 1;
        }
        assert_eq!(next, 1 << 35);
    }

    #[test]
    fn percentiles_are_within_five_per_cent() {
        // An even spread, a long tail, and everything in one place.
        let sets: [Vec<u64>; 3] = [
            (1..=100_000).map(|i| i * 7).collect(),
            (1..=100_000u64).map(|i| 500 + 10_000_000 / (100_001 - i)).collect(),
            vec![123_456; 5000],
        ];
        for mut samples in sets {
            samples.sort_unstable();
            let mut buckets = vec![0; BUCKETS];
            samples.iter().for_each(|&ns| buckets[bucket(ns)] += 1);
            for p in [0.5, 0.9, 0.99, 0.999] {
                let exact = samples[(samples.len() as f64 * p) as usize - 1] as f64;
                let found = percentile(&buckets, p).unwrap() as f64;
                assert!((found / exact - 1.0).abs() < 0.05, "{p}: {found} for {exact}");
            }
        }
    }

    #[test]
    fn too_few_samples_have_no_deep_percentile() {
        let mut buckets = vec![0; BUCKETS];
        assert_eq!(percentile(&buckets, 0.5), None);
        buckets[100] = 999;
        assert_eq!(percentile(&buckets, 0.999), None);
        assert!(percentile(&buckets, 0.99).is_some());
        buckets[100] = 1000;
        assert!(percentile(&buckets, 0.999).is_some());
    }
}
