//! The tail of latencies beside the metric. Input: histograms without and with the change. Output: percentiles, as deep
//! as there are packets for, and shares of packets above round limits, which need no packets beyond them.

use nearpath_model::Tail;
use nearpath_model::histogram::{count_above, interpolated_ns};

/// Percentiles, with their shares.
const PERCENTILES: [(&str, f64); 5] =
    [("50", 0.5), ("90", 0.9), ("99", 0.99), ("99.9", 0.999), ("99.99", 0.9999)];
/// Samples that must lie beyond a percentile on both sides, and above a limit on one.
const BEYOND: f64 = 10.0;
/// Number of limits.
const LIMITS: usize = 3;

/// A histogram: `(bucket, count)`, ascending.
pub type Buckets = Vec<(usize, u64)>;

/// The tail; `None` if a side has no packets.
pub fn tail(sides: &[Buckets; 2]) -> Option<Tail> {
    let count = sides.each_ref().map(|side| side.iter().map(|(_, n)| n).sum::<u64>());
    if count.contains(&0) {
        return None;
    }
    let deep = |share: f64| count.iter().all(|&n| n as f64 * (1.0 - share) + 1e-6 >= BEYOND);
    let percentile = |(name, share): (&str, f64)| {
        let [without, with] = sides.each_ref().map(|side| interpolated_ns(side, share));
        Some((name.to_owned(), [without?, with?])).filter(|_| deep(share))
    };
    let above = |limit: u64| sides.each_ref().map(|side| count_above(side, limit as f64));
    let first = interpolated_ns(&sides[0], 0.99)?;
    let limits = round_numbers().skip_while(|&limit| (limit as f64) < first);
    let shares = limits
        .map(|limit| (limit, above(limit)))
        .take_while(|(_, counts)| counts.iter().any(|&n| n >= BEYOND))
        .map(|(limit, [a, b])| (limit, [a / count[0] as f64, b / count[1] as f64]));
    Some(Tail {
        count,
        percentiles: PERCENTILES.into_iter().filter_map(percentile).collect(),
        above: shares.take(LIMITS).collect(),
    })
}

/// 1, 2, 5, 10 µs and so on, up to 50 s.
fn round_numbers() -> impl Iterator<Item = u64> {
    (3..11).flat_map(|power| [1, 2, 5].map(|digit| digit * 10u64.pow(power)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_model::histogram::bucket;

    #[test]
    fn shares_reach_beyond_the_last_percentile() {
        let side = |slow: u64| vec![(bucket(30_000), 9_980), (bucket(400_000), slow)];
        let found = tail(&[side(20), side(5)]).unwrap();
        assert_eq!(found.count, [10_000, 9_985]);
        // Ten of 10,000 are beyond p99.9, but fewer of 9,985.
        let names: Vec<&str> = found.percentiles.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["50", "90", "99"]);
        let limits: Vec<u64> = found.above.iter().map(|(limit, _)| *limit).collect();
        assert_eq!(limits, [50_000, 100_000, 200_000]);
        let (_, [without, with]) = found.above[2];
        assert!((without - 0.002).abs() < 1e-9 && (with - 5.0 / 9_985.0).abs() < 1e-9);
        assert_eq!(tail(&[Vec::new(), side(1)]), None);
    }
}
