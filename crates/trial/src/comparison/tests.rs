//! Trials on known distributions: latencies of each block are drawn, their 99th percentile is the metric, and
//! the blocks have noise and drift, like real hosts.

use super::*;

/// Number of latencies per block; enough for its 99th percentile.
const SAMPLES: usize = 1_000;
/// Cycles of a trial, the default of `tune try`.
const CYCLES: usize = 12;
const TRIALS: u64 = 400;

fn block(metric: f64) -> Block {
    Block { metric, lost: 0.0, cpus_busy: 1.0, rate_per_s: 1000.0 }
}

/// A normal deviate (Box and Muller).
fn normal(random: &mut fastrand::Rng) -> f64 {
    let radius = (-2.0 * (1.0 - random.f64()).ln()).sqrt();
    radius * (std::f64::consts::TAU * random.f64()).cos()
}

/// The 99th percentile of log-normal latencies with a median of 20µs times `factor`.
fn p99(random: &mut fastrand::Rng, factor: f64) -> f64 {
    let mut latencies: Vec<f64> =
        (0..SAMPLES).map(|_| 20_000.0 * factor * (0.6 * normal(random)).exp()).collect();
    let index = SAMPLES * 99 / 100;
    *latencies.select_nth_unstable_by(index, f64::total_cmp).1
}

/// A trial in which the change multiplies latencies; each block has a random error of 5%, also in the values of
/// the guards, and the host becomes slower by 1% per block.
fn trial(seed: u64, effect: f64) -> Comparison {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut blocks = 0;
    let mut measured = |effect: f64| {
        blocks += 1;
        let mut own = || (0.05 * normal(&mut random)).exp();
        let (latency, cpus_busy, rate) = (own(), own(), own());
        let lost = 0.000_1 * own();
        let metric = p99(&mut random, effect * latency * 1.01f64.powi(blocks));
        Block { metric, lost, cpus_busy, rate_per_s: 1000.0 * rate }
    };
    let cycles: Vec<Cycle> = (0..CYCLES)
        .map(|_| {
            let first = measured(1.0);
            let with = [measured(effect), measured(effect)];
            Cycle { without: [first, measured(1.0)], with }
        })
        .collect();
    compare(&cycles, &Thresholds::default(), seed).unwrap()
}

fn verdicts(effect: f64) -> impl Fn(Verdict) -> u64 {
    let all: Vec<Verdict> = (0..TRIALS).map(|seed| trial(seed, effect).verdict).collect();
    move |verdict| all.iter().filter(|&&one| one == verdict).count() as u64
}

#[test]
fn without_a_difference_one_is_rarely_reported() {
    let count = verdicts(1.0);
    let said = count(Verdict::Better) + count(Verdict::Worse);
    println!("without a difference: one is reported in {said} of {TRIALS} trials");
    assert!(said <= TRIALS / 20, "{said} of {TRIALS}");
}

#[test]
fn a_tenth_is_found() {
    for (effect, verdict) in [(0.9, Verdict::Better), (1.1, Verdict::Worse)] {
        let found = verdicts(effect)(verdict);
        println!("times {effect}: {verdict:?} in {found} of {TRIALS} trials");
        assert!(found >= TRIALS * 4 / 5, "{found} of {TRIALS}");
    }
}

#[test]
fn numbers_are_those_of_the_blocks() {
    let cycle = Cycle { without: [block(100.0); 2], with: [block(80.0); 2] };
    let found = compare(&[cycle; 5], &Thresholds::default(), 1).unwrap();
    assert_eq!(found.blocks, 20);
    assert!((found.baseline - 100.0).abs() < 1e-9 && (found.with_plan - 80.0).abs() < 1e-9);
    assert!((found.delta_percent + 20.0).abs() < 1e-9);
    assert_eq!((found.verdict, found.noise_floor_percent), (Verdict::Better, 0.0));
    let tiny = Cycle { with: [block(99.5); 2], ..cycle };
    let found = compare(&[tiny; 5], &Thresholds::default(), 1).unwrap();
    assert_eq!(found.verdict, Verdict::NoDifference);
    let around = [95.0, 130.0, 80.0, 101.0, 122.0, 77.0];
    let noisy =
        around.map(|metric| Cycle { with: [block(metric), block(200.0 - metric)], ..cycle });
    let noisy = noisy.map(|cycle| Cycle { without: [cycle.with[1], cycle.with[0]], ..cycle });
    let found = compare(&noisy, &Thresholds::default(), 1).unwrap();
    assert_eq!(found.verdict, Verdict::NoDifference, "{found:?}");
}

#[test]
fn a_guard_fails_if_a_gain_costs_too_much() {
    let dear = Block { cpus_busy: 1.5, ..block(50.0) };
    let cycle = Cycle { without: [block(100.0); 2], with: [dear; 2] };
    let found = compare(&[cycle; 5], &Thresholds::default(), 1).unwrap();
    assert_eq!(found.verdict, Verdict::Worse);
    assert!(found.guards.cpus_busy.objects && !found.guards.lost.objects);
    let lossy = Block { lost: 0.01, ..block(50.0) };
    let found =
        compare(&[Cycle { with: [lossy; 2], ..cycle }; 5], &Thresholds::default(), 1).unwrap();
    assert!(found.guards.lost.objects);
    let slow = Block { rate_per_s: 900.0, ..block(50.0) };
    let found =
        compare(&[Cycle { with: [slow; 2], ..cycle }; 5], &Thresholds::default(), 1).unwrap();
    assert!(found.guards.rate_per_s.objects);
}

#[test]
fn a_guard_may_see_noise() {
    let rate = |metric, rate_per_s| Block { rate_per_s, ..block(metric) };
    // A tenth less on average, but varying by more than that.
    let cycle = |with| Cycle { without: [rate(100.0, 1_000.0); 2], with: [rate(50.0, with); 2] };
    let found = compare(
        &[500.0, 1_300.0].repeat(4).into_iter().map(cycle).collect::<Vec<_>>(),
        &Thresholds::default(),
        1,
    );
    let found = found.unwrap();
    assert!(found.guards.rate_per_s.objects && !found.guards.rate_per_s.sure, "{found:?}");
    assert_eq!(found.verdict, Verdict::Inconclusive, "neither kept nor blamed");
    let found = compare(&[cycle(900.0); 8], &Thresholds::default(), 1).unwrap();
    assert!(found.guards.rate_per_s.sure && found.verdict == Verdict::Worse, "{found:?}");
}

#[test]
fn a_rate_is_reported_as_a_rate() {
    // Half a second per event, then 0.4: 2 per second, then 2.5.
    let cycle = Cycle { without: [block(0.5); 2], with: [block(0.4); 2] };
    let noisy = Cycle { with: [block(0.38); 2], ..cycle };
    let found = compare(&[cycle, cycle, noisy, cycle], &Thresholds::default(), 1).unwrap();
    let rate = found.clone().of_rate();
    assert!((rate.baseline - 2.0).abs() < 1e-9 && rate.with_plan > 2.5, "{rate:?}");
    assert!((rate.with_plan / rate.baseline - 1.0 - rate.delta_percent / 100.0).abs() < 1e-9);
    let [low, high] = rate.ci95;
    assert!(0.0 < low && low < rate.delta_percent && rate.delta_percent < high, "{rate:?}");
    assert_eq!(
        (rate.verdict, rate.noise_floor_percent),
        (found.verdict, found.noise_floor_percent)
    );
}

#[test]
fn too_few_cycles_are_not_compared() {
    let cycle = Cycle { without: [block(100.0); 2], with: [block(80.0); 2] };
    assert_eq!(compare(&[cycle; CYCLES_MIN - 1], &Thresholds::default(), 1), None);
    let none = Cycle { with: [block(0.0), block(80.0)], ..cycle };
    assert_eq!(compare(&[none; CYCLES_MIN], &Thresholds::default(), 1), None);
}
