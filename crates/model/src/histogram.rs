//! Histograms of times, as counted by the BPF programs (`bpf/histogram.h`): base-2 exponential, with boundaries
//! at 2^(k/16) seconds. These are the buckets of Prometheus' native histograms of schema 4 and of
//! OpenTelemetry's exponential histograms of scale 4. Percentiles are interpolated as in Prometheus
//! (`histogram_quantile` since 3.0: `promql/quantile.go`), so that both give the same values.
//!
//! ```text
//!   bucket   0          1                       2                            511
//!   index k  (zero)     -414                    -413                         96
//!   holds    0..15.6ns (15.6ns .. 2^(-414/16) s]  (.. 2^(-413/16) s]  …    (61.3 s .. 64 s], and all above
//! ```

mod fine;

pub use fine::{FINE_BUCKETS, bucket_of_fine, fine_bucket, fine_cells, fine_quantile_ns};

/// The resolution in Prometheus' numbering: 2^4 buckets per power of two, each 4.4% wide.
pub const SCHEMA: u32 = 4;
/// Number of buckets of a histogram.
pub const BUCKETS: usize = 512;
/// Prometheus' index of bucket 0, which is its zero bucket: all times up to and including 2^(-415/16) seconds.
pub const ZERO_INDEX: i32 = -415;

/// Boundaries per power of two.
const PER_OCTAVE: usize = 1 << SCHEMA;
/// 10^9 × 2^(k/16) for k from 2 to 17 (mod 16), scaled by a power of two to 64 bits and rounded down: the
/// boundaries in nanoseconds, in ascending order within an octave.
const MANTISSAS: [u64; PER_OCTAVE] = [
    0x81ff_a7a9_549c_a6e3,
    0x87c1_1235_836d_16a3,
    0x8dc3_b896_0164_a7d9,
    0x940a_7e28_259f_b382,
    0x9a98_6705_4d51_2391,
    0xa170_9975_dfb0_6757,
    0xa896_5f74_bf06_5071,
    0xb00d_2843_e106_0dc2,
    0xb7d8_8a12_d0dd_9ea0,
    0xbffc_43b7_e604_a922,
    0xc87c_3e7d_03cd_bec3,
    0xd15c_9000_bf21_1c1f,
    0xdaa1_7c2c_d195_55db,
    0xe44f_7742_cb56_e3dd,
    0xee6b_2800_0000_0000,
    0xf8f9_69d9_b5ab_f948,
];
/// The boundary above 2^e ns is the upper end of bucket 16 e - 63.
const FIRST_BOUNDARY: usize = 63;
/// The bits of an octave's boundaries that the programs compare: times of 36 bits leave the low 28 zero.
const CELL_MASK: u64 = !0 << 28;

/// The lookup table of the programs (`histogram_cells`).
pub fn cells() -> [u64; 32] {
    std::array::from_fn(|cell| {
        let part = |mantissa: u64| (mantissa >> 58) as usize & 31;
        let before = MANTISSAS.iter().filter(|&&m| part(m) < cell).count() as u64;
        let within = MANTISSAS.iter().find(|&&m| part(m) == cell).copied().unwrap_or(u64::MAX);
        (within & CELL_MASK) | before
    })
}

/// The bucket that holds a time: what `histogram_bucket` computes in C.
pub fn bucket(ns: u64) -> usize {
    if ns < 16 {
        return 0;
    }
    let octave = ns.ilog2() as usize;
    let mantissa = ns << (63 - octave);
    let above = MANTISSAS.partition_point(|&boundary| boundary < mantissa);
    (16 * octave + above - FIRST_BOUNDARY).min(BUCKETS - 1)
}

/// Prometheus' index of a bucket: it holds times up to and including 2^(index/16) seconds.
pub fn index(bucket: usize) -> i32 {
    ZERO_INDEX + i32::try_from(bucket.min(BUCKETS - 1)).unwrap_or(0)
}

/// The longest time that a bucket holds, in whole nanoseconds; for the last bucket the end of its range,
/// although it also holds longer times.
pub fn upper_ns(bucket: usize) -> u64 {
    let boundary = bucket.min(BUCKETS - 1) + FIRST_BOUNDARY;
    MANTISSAS[boundary % PER_OCTAVE] >> (63 - boundary / PER_OCTAVE)
}

/// The boundaries of a bucket in nanoseconds, which are not whole numbers.
pub fn bounds(bucket: usize) -> (f64, f64) {
    let boundary = |index: i32| f64::exp2(f64::from(index) / 16.0) * 1e9;
    let index = index(bucket);
    (if bucket == 0 { 0.0 } else { boundary(index - 1) }, boundary(index))
}

/// The value used for a bucket's times in a sum: the middle of its range on a logarithmic scale, at most 2.2%
/// off. Whole nanoseconds, so that sums can be subtracted.
pub fn middle_ns(bucket: usize) -> u64 {
    let (lower, upper) = bounds(bucket);
    (if lower > 0.0 { (lower * upper).sqrt() } else { upper / 2.0 }).round() as u64
}

/// A percentile in nanoseconds, as [`interpolated_ns`]; `None` if there are too few samples for one to lie
/// beyond it.
pub fn quantile_ns(buckets: &[(usize, u64)], q: f64) -> Option<f64> {
    quantile_with(buckets, q, bounds)
}

/// The same for buckets with these boundaries.
fn quantile_with(
    buckets: &[(usize, u64)],
    q: f64,
    bounds: impl Fn(usize) -> (f64, f64),
) -> Option<f64> {
    // Whole samples, rounded so that 1 - 0.999 of 1,000 is one.
    let enough = count(buckets) * (1.0 - q) + 1e-6 >= 1.0;
    enough.then(|| interpolated_with(buckets, q, bounds))?
}

/// The time in nanoseconds that the share `q` (0 to 1) of the samples does not exceed, as computed by
/// Prometheus' `histogram_quantile(q, …)`; `None` without a sample. `buckets` are `(bucket, count)`, ascending.
pub fn interpolated_ns(buckets: &[(usize, u64)], q: f64) -> Option<f64> {
    interpolated_with(buckets, q, bounds)
}

fn interpolated_with(
    buckets: &[(usize, u64)],
    q: f64,
    bounds: impl Fn(usize) -> (f64, f64),
) -> Option<f64> {
    let count = count(buckets);
    let (bucket, within) = if q < 0.5 {
        find(buckets.iter(), q * count)?
    } else {
        let (bucket, from_above) = find(buckets.iter().rev(), (1.0 - q) * count)?;
        (bucket, 1.0 - from_above)
    };
    let (lower, upper) = bounds(bucket);
    if lower <= 0.0 {
        return Some(lower + (upper - lower) * within);
    }
    let (lower, upper) = (lower.log2(), upper.log2());
    Some(f64::exp2(lower + (upper - lower) * within))
}

/// How many samples are above a limit in nanoseconds; those in its bucket by where it lies on a logarithmic scale.
pub fn count_above(buckets: &[(usize, u64)], limit_ns: f64) -> f64 {
    let above = |&(bucket, count): &(usize, u64)| {
        let (lower, upper) = bounds(bucket);
        let share = match limit_ns {
            limit if limit <= lower => 1.0,
            limit if limit >= upper => 0.0,
            limit if lower <= 0.0 => 1.0 - limit / upper,
            limit => (upper / limit).ln() / (upper / lower).ln(),
        };
        count as f64 * share
    };
    buckets.iter().map(above).sum()
}

/// The number of samples.
pub fn count(buckets: &[(usize, u64)]) -> f64 {
    buckets.iter().fold(0u64, |sum, &(_, n)| sum.saturating_add(n)) as f64
}

/// The bucket of the sample with a rank, counted from the first of `buckets`, and the position within the
/// bucket.
fn find<'a>(buckets: impl Iterator<Item = &'a (usize, u64)>, rank: f64) -> Option<(usize, f64)> {
    let (mut before, mut last) = (0.0, None);
    for &(bucket, n) in buckets.filter(|(_, n)| *n > 0) {
        let n = n as f64;
        if before + n >= rank {
            return Some((bucket, (rank - before) / n));
        }
        before += n;
        last = Some((bucket, 1.0));
    }
    last
}

/// Converts buckets given by the longest time that each holds, as in [`crate::Span`], to bucket numbers.
pub fn by_number(buckets: &[(u64, u64)]) -> Vec<(usize, u64)> {
    buckets.iter().map(|&(upper, n)| (bucket(upper), n)).collect()
}
