//! Each bucket from 1 µs on divided into four, which are 1.1% wide, for times whose percentiles must be that exact
//! (`bpf/histogram_fine.h`). A percentile lies in the same bucket as without the division.

use super::{BUCKETS, CELL_MASK, MANTISSAS, quantile_with};

/// Parts of a bucket.
const PARTS: usize = 4;
/// The first part: of bucket 97, which holds 1 µs. It also counts all shorter times.
const FIRST: usize = PARTS * 97;
/// Number of parts.
pub const FINE_BUCKETS: usize = PARTS * BUCKETS - FIRST;
/// Boundaries per power of two, and cells of the lookup table.
const PER_OCTAVE: usize = 64;
const CELLS: usize = 128;
/// The boundary above 2^e ns is the upper end of part 64 e - 250; all are numbered from this power of two of a second.
const FIRST_BOUNDARY: i32 = 250;
const ZERO_INDEX: i32 = -1663;

/// The boundary with this number above a power of two, scaled to 64 bits.
fn mantissa(number: usize) -> u64 {
    // Those of the buckets are exact.
    if number % PARTS == 1 {
        return MANTISSAS[number / PARTS];
    }
    let index = ZERO_INDEX - FIRST_BOUNDARY + i32::try_from(number).unwrap_or(0);
    let octave = f64::from(index) / PER_OCTAVE as f64 + 1e9f64.log2();
    (f64::exp2(octave + 63.0)) as u64
}

/// The lookup table of the programs (`histogram_fine_cells`).
pub fn fine_cells() -> [u64; CELLS] {
    let boundaries: [u64; PER_OCTAVE] = std::array::from_fn(mantissa);
    let part = |mantissa: u64| (mantissa >> 56) as usize & (CELLS - 1);
    std::array::from_fn(|cell| {
        let before = boundaries.iter().filter(|&&m| part(m) < cell).count() as u64;
        let within = boundaries.iter().find(|&&m| part(m) == cell).copied().unwrap_or(u64::MAX);
        (within & CELL_MASK) | before
    })
}

/// The part that holds a time: what `histogram_fine_bucket` computes in C.
pub fn fine_bucket(ns: u64) -> usize {
    if ns < 1000 {
        return 0;
    }
    let octave = ns.ilog2() as usize;
    let normalized = ns << (63 - octave);
    let above = (0..PER_OCTAVE).filter(|&number| mantissa(number) < normalized).count();
    let part = (PER_OCTAVE * octave + above).saturating_sub(250 + FIRST);
    part.min(FINE_BUCKETS - 1)
}

/// The bucket of which it is a part.
pub fn bucket_of_fine(part: usize) -> usize {
    (part + FIRST) / PARTS
}

/// The boundaries of a part in nanoseconds.
fn fine_bounds(part: usize) -> (f64, f64) {
    let index = ZERO_INDEX + i32::try_from(part + FIRST).unwrap_or(0);
    let boundary = |index: i32| f64::exp2(f64::from(index) / PER_OCTAVE as f64) * 1e9;
    (boundary(index - 1), boundary(index))
}

/// A percentile in nanoseconds, as [`super::quantile_ns`], of `(part, count)`, ascending.
pub fn fine_quantile_ns(parts: &[(usize, u64)], q: f64) -> Option<f64> {
    quantile_with(parts, q, fine_bounds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::histogram::bucket;
    use proptest::prelude::*;

    #[test]
    fn parts_are_of_the_bucket_that_holds_the_same_times() {
        for us in (1..5000u64).chain((1..60_000).map(|ms| ms * 1000)) {
            for ns in [us * 1000, us * 1000 + 999] {
                assert_eq!(bucket_of_fine(fine_bucket(ns)), bucket(ns), "{ns}");
                let (lower, upper) = fine_bounds(fine_bucket(ns));
                assert!(
                    lower < ns as f64 + 0.5 && ns as f64 <= upper + 0.5,
                    "{lower} {ns} {upper}"
                );
            }
        }
        assert_eq!((fine_bucket(0), fine_bucket(u64::MAX)), (0, FINE_BUCKETS - 1));
        assert_eq!(bucket_of_fine(FINE_BUCKETS - 1), BUCKETS - 1);
    }

    proptest! {
        /// Also if all samples are at one edge of a bucket.
        #[test]
        fn percentiles_are_within_a_part(
            samples in prop::collection::vec((0..4u64, 1000..60_000_000_000u64), 100..300),
            spread in 1..1000u64,
        ) {
            let center = samples[0].1;
            let mut samples: Vec<u64> =
                samples.iter().map(|(kind, ns)| if *kind == 0 { *ns } else { center + ns % spread }).collect();
            samples.sort_unstable();
            let mut parts = std::collections::BTreeMap::new();
            samples.iter().for_each(|ns| *parts.entry(fine_bucket(*ns)).or_insert(0) += 1);
            let parts: Vec<_> = parts.into_iter().collect();
            for q in [0.1, 0.5, 0.9] {
                let found = fine_quantile_ns(&parts, q).unwrap();
                let rank = (samples.len() as f64 * q) as usize;
                let (low, high) = (samples[rank.max(2) - 2] as f64, samples[(rank + 1).min(samples.len() - 1)] as f64);
                prop_assert!(found > low / 1.011 && found < high * 1.011, "{q}: {low} {found} {high}");
            }
        }
    }
}
