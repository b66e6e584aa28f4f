//! Tests of the programs' histogram (`bpf/histogram.h`) against [`nearpath_model::histogram`], and of both
//! against exact arithmetic.

use libbpf_rs::ProgramInput;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use nearpath_model::histogram::*;
use proptest::prelude::*;
use std::cmp::Ordering;
use std::mem::MaybeUninit;

/// The skeleton of `bpf/histogram.bpf.c`.
#[allow(missing_docs, warnings, clippy::all, clippy::pedantic)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/histogram.skel.rs"));
}

/// A natural number of any size, the lowest 32 bits first.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Natural(Vec<u32>);

impl Natural {
    fn of(n: u64) -> Self {
        Self(vec![n as u32, (n >> 32) as u32]).trimmed()
    }

    fn trimmed(mut self) -> Self {
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
        self
    }

    fn times(&self, other: &Self) -> Self {
        let mut product = vec![0u32; self.0.len() + other.0.len() + 1];
        for (i, &a) in self.0.iter().enumerate() {
            let mut carry = 0u64;
            for (j, digit) in product[i..].iter_mut().enumerate() {
                let b = other.0.get(j).copied().unwrap_or(0);
                let sum = u64::from(a) * u64::from(b) + u64::from(*digit) + carry;
                (*digit, carry) = (sum as u32, sum >> 32);
            }
        }
        Self(product).trimmed()
    }

    fn power(&self, exponent: u32) -> Self {
        (0..exponent).fold(Self::of(1), |power, _| power.times(self))
    }

    fn shifted(&self, bits: u32) -> Self {
        self.times(&Self::of(2).power(bits))
    }

    fn compare(&self, other: &Self) -> Ordering {
        let by_length = self.0.len().cmp(&other.0.len());
        by_length.then_with(|| self.0.iter().rev().cmp(other.0.iter().rev()))
    }
}

/// How a time compares to 2^(index/16) seconds, exactly: ns^16 to 10^144 × 2^index.
fn compare_to_boundary(ns: u64, index: i32) -> Ordering {
    let seconds = Natural::of(1_000_000_000).power(16);
    let time = Natural::of(ns).power(16);
    if index < 0 {
        time.shifted(index.unsigned_abs()).compare(&seconds)
    } else {
        time.compare(&seconds.shifted(index.unsigned_abs()))
    }
}

/// The times next to each boundary, where an error of one part in 10^19 would show.
fn times_at_boundaries() -> impl Iterator<Item = u64> {
    (0..BUCKETS).flat_map(|bucket| {
        let upper = upper_ns(bucket);
        [upper - 1, upper, upper + 1]
    })
}

#[test]
fn each_time_is_in_the_bucket_whose_boundaries_enclose_it() {
    for ns in times_at_boundaries().chain(0..5000).filter(|&ns| ns > 0) {
        let bucket = bucket(ns);
        let index = index(bucket);
        if bucket < BUCKETS - 1 {
            assert_ne!(compare_to_boundary(ns, index), Ordering::Greater, "{ns}ns, {index}");
        }
        if bucket > 0 {
            assert_eq!(compare_to_boundary(ns, index - 1), Ordering::Greater, "{ns}ns, {index}");
        }
    }
    assert_eq!((bucket(0), bucket(15), bucket(16)), (0, 0, 1));
    assert_eq!((index(0), index(BUCKETS - 1)), (-415, 96));
    // Whole powers of two of a second belong to the lower bucket.
    assert_eq!(index(bucket(1_000_000_000)), 0);
    assert_eq!(index(bucket(1_000_000_001)), 1);
    assert_eq!(index(bucket(500_000_000)), -16);
    assert_eq!(bucket(64_000_000_000), BUCKETS - 1);
    assert_eq!((bucket(64_000_000_001), bucket(u64::MAX)), (BUCKETS - 1, BUCKETS - 1));
    assert_eq!(upper_ns(BUCKETS - 1), 64_000_000_000);
}

#[test]
fn a_bucket_is_found_by_the_longest_time_in_it() {
    for ns in times_at_boundaries() {
        let number = bucket(ns);
        assert_eq!(bucket(upper_ns(number)), number, "{ns}");
        assert!(ns <= upper_ns(number) || number == BUCKETS - 1);
    }
}

/// The programs compute the same as the code here: at each boundary, and elsewhere.
#[test]
fn the_kernel_finds_the_same_bucket() {
    if !nearpath_testing::require_bpf() {
        return;
    }
    let mut storage = MaybeUninit::uninit();
    let mut open = skeleton::HistogramSkelBuilder::default().open(&mut storage).unwrap();
    let constants = open.maps.rodata_data.as_deref_mut().unwrap();
    constants.histogram_cells = cells();
    constants.histogram_fine_cells = fine_cells();
    let mut loaded = open.load().unwrap();
    // Random numbers of all magnitudes.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let random = (0..200_000).map(|i| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state ^ state >> 31) >> (i % 64)
    });
    let times: Vec<u64> = times_at_boundaries().chain(0..5000).chain(random).collect();
    for times in times.chunks(256) {
        let variables = loaded.maps.bss_data.as_deref_mut().unwrap();
        variables.times_ns[..times.len()].copy_from_slice(times);
        loaded.progs.find_buckets.test_run(ProgramInput::default()).unwrap();
        let variables = loaded.maps.bss_data.as_deref().unwrap();
        let found = variables.buckets.iter().zip(&variables.fine_buckets);
        for (&ns, (&found, &fine)) in times.iter().zip(found) {
            assert_eq!((found as usize, fine as usize), (bucket(ns), fine_bucket(ns)), "{ns}ns");
        }
    }
}

fn counted(samples: &[u64]) -> Vec<(usize, u64)> {
    let mut buckets = vec![0; BUCKETS];
    samples.iter().for_each(|&ns| buckets[bucket(ns)] += 1);
    buckets.into_iter().enumerate().filter(|&(_, n)| n > 0).collect()
}

proptest! {
    #[test]
    fn percentiles_are_within_a_bucket(
        mut samples in prop::collection::vec((4..34u32, any::<u64>()), 1000..3000),
    ) {
        let mut samples: Vec<u64> =
            samples.drain(..).map(|(bits, ns)| (1 << bits) + ns % (1 << bits)).collect();
        let buckets = counted(&samples);
        samples.sort_unstable();
        for q in [0.1, 0.5, 0.9, 0.99, 0.999] {
            let found = quantile_ns(&buckets, q).unwrap();
            // There may be a gap between the samples next to the rank; either end is correct.
            let rank = samples.len() as f64 * q;
            let at = |rank: f64| samples[(rank as usize).clamp(1, samples.len()) - 1] as f64;
            let (low, high) = (at((rank - 1e-6).floor()), at((rank + 1e-6).ceil() + 1.0));
            prop_assert!(found > low / 1.0443 && found < high * 1.0443, "{q}: {low} {found} {high}");
        }
    }

    #[test]
    fn sums_of_middles_are_close(
        samples in prop::collection::vec(1000..64_000_000_000u64, 1..500),
    ) {
        let sum: f64 = samples.iter().map(|&ns| ns as f64).sum();
        let middles: u64 = counted(&samples).iter().map(|&(bucket, n)| middle_ns(bucket) * n).sum();
        prop_assert!((middles as f64 / sum - 1.0).abs() < 0.0225, "{middles} for {sum}");
    }

    /// File contents may be arbitrary.
    #[test]
    fn no_buckets_panic(
        buckets in prop::collection::vec((any::<u64>(), any::<u64>()), 0..20),
        q in 0.0..=1.0f64,
    ) {
        let _ = quantile_ns(&by_number(&buckets), q);
    }
}

/// The results of Prometheus 3.5.3 for the same buckets (queried by `tests/prometheus.rs`).
#[test]
fn percentiles_are_interpolated_on_the_logarithmic_scale() {
    let all_in_one = [(bucket(1_000_000_000), 1000)];
    // (2^(-1/16), 1] seconds.
    let at = |share: f64| f64::exp2((share - 1.0) / 16.0) * 1e9;
    for q in [0.25, 0.5, 0.99] {
        let found = quantile_ns(&all_in_one, q).unwrap();
        assert!((found / at(q) - 1.0).abs() < 1e-12, "{q}: {found}");
    }
    // Within the zero bucket, linear from 0.
    assert!((quantile_ns(&[(0, 10)], 0.5).unwrap() - 15.558 / 2.0).abs() < 0.01);
    // If the half is at the end of a bucket, it is the lower bound of the next one.
    let halves = [(100, 5), (200, 5)];
    assert!((quantile_ns(&halves, 0.5).unwrap() - bounds(200).0).abs() < 1e-6);
}

#[test]
fn too_few_samples_have_no_deep_percentile() {
    assert_eq!(quantile_ns(&[], 0.5), None);
    assert_eq!(quantile_ns(&[(100, 999)], 0.999), None);
    assert!(quantile_ns(&[(100, 999)], 0.99).is_some());
    assert!(quantile_ns(&[(100, 1000)], 0.999).is_some());
    assert_eq!(quantile_ns(&[(100, 1)], 0.5), None);
}
