//! Trials on known distributions: how often is the verdict right? The latencies of a host have a heavy tail, its blocks
//! differ by more than chance, resemble their neighbours, and drift.

use super::*;
use nearpath_model::histogram::{BUCKETS, bounds};
use std::sync::LazyLock;

/// Latencies per block: two seconds of the default probes.
const SAMPLES: f64 = 4_000.0;
/// Cycles of a comparison.
const CYCLES: usize = 12;
const TRIALS: u64 = 600;
/// Trials that should find something; it is there more often than not.
const FINDING: u64 = 200;
/// Median latency in nanoseconds.
const MEDIAN_NS: f64 = 20_000.0;

/// How blocks differ from each other, without any change.
#[derive(Debug, Clone, Copy)]
struct Host {
    name: &'static str,
    /// Standard deviation of the logarithm of latency among blocks.
    deviation: f64,
    /// Correlation of that with the previous block's.
    correlation: f64,
    /// Drift of the logarithm per block.
    drift: f64,
    /// Probability of a block that a disturbance makes slower, by up to a half.
    disturbed: f64,
    /// Probability that a burst of other work begins with a block; it lasts three blocks on average, and makes them up to
    /// sixteen times slower. As on a machine on which compilers run.
    bursts: f64,
}

const CALM: Host = Host {
    name: "white noise",
    deviation: 0.05,
    correlation: 0.0,
    drift: 0.0,
    disturbed: 0.0,
    bursts: 0.0,
};
static HOSTS: [Host; 7] = [
    CALM,
    Host { name: "correlated", correlation: 0.6, ..CALM },
    Host { name: "strongly correlated", correlation: 0.9, ..CALM },
    Host { name: "drifting", correlation: 0.3, drift: 0.01, ..CALM },
    Host { name: "disturbed", deviation: 0.04, correlation: 0.3, disturbed: 0.04, ..CALM },
    Host { name: "all of it", correlation: 0.6, drift: -0.005, disturbed: 0.03, ..CALM },
    Host { name: "bursts", correlation: 0.3, bursts: 0.08, ..CALM },
];
/// Probability that a burst ends with a block.
const BURST_ENDS: f64 = 1.0 / 3.0;

/// All of them in the lengthy tier, else the last three.
fn hosts() -> &'static [Host] {
    if nearpath_testing::lengthy() { &HOSTS } else { &HOSTS[4..] }
}

/// A normal deviate (Box and Muller).
fn normal(random: &mut fastrand::Rng) -> f64 {
    let radius = (-2.0 * (1.0 - random.f64()).ln()).sqrt();
    radius * (std::f64::consts::TAU * random.f64()).cos()
}

/// A Poisson deviate: by multiplication, or near enough to normal.
fn poisson(random: &mut fastrand::Rng, mean: f64) -> u64 {
    if mean > 30.0 {
        return (mean + mean.sqrt() * normal(random)).round().max(0.0) as u64;
    }
    let (limit, mut product, mut count) = ((-mean).exp(), random.f64(), 0);
    while product > limit {
        product *= random.f64();
        count += 1;
    }
    count
}

/// The share of latencies up to a multiple of the median: log-normal, and one in 25 with a Pareto tail (exponent 2),
/// whose variance is infinite.
fn share_up_to(multiple: f64) -> f64 {
    let deviation = multiple.ln() / 0.6;
    // Abramowitz and Stegun 26.2.17.
    let t = 1.0 / (1.0 + 0.231_641_9 * deviation.abs());
    let factors = [0.319_381_530, -0.356_563_782, 1.781_477_937, -1.821_255_978, 1.330_274_429];
    let sum = factors.iter().rev().fold(0.0, |sum, factor| (sum + factor) * t);
    let beyond = (-deviation * deviation / 2.0).exp() / std::f64::consts::TAU.sqrt() * sum;
    let body = if deviation > 0.0 { 1.0 - beyond } else { beyond };
    let tail = if multiple > 1.5 { 1.0 - (1.5 / multiple).powi(2) } else { 0.0 };
    0.96 * body + 0.04 * tail
}

/// Latencies per power of two of the table below.
const STEPS: f64 = 64.0;

/// [`share_up_to`] by the logarithm of the multiple to base two, from 2^-8 to 2^16.
fn tabulated(log2: f64) -> f64 {
    static TABLE: LazyLock<Vec<f64>> = LazyLock::new(|| {
        let steps = 24 * STEPS as u32;
        (0..=steps).map(|step| share_up_to((f64::from(step) / STEPS - 8.0).exp2())).collect()
    });
    let at = ((log2 + 8.0) * STEPS).clamp(0.0, (TABLE.len() - 2) as f64);
    let (index, part) = (at as usize, at.fract());
    TABLE[index] * (1.0 - part) + TABLE[index + 1] * part
}

/// A block's latencies, all of them slower by this factor.
fn latencies(random: &mut fastrand::Rng, factor: f64) -> Observed {
    // Bucket 100 ends at 1 µs, and each is a sixteenth of a power of two.
    let (_, first) = bounds(100);
    let first = (first / MEDIAN_NS / factor).log2();
    let mut below = tabulated(first);
    let mut buckets = Vec::new();
    for bucket in 101..BUCKETS {
        let up_to = tabulated(first + (bucket - 100) as f64 / 16.0);
        let mean = SAMPLES * (up_to - below);
        below = up_to;
        if mean > 1e-4 {
            buckets.push((bucket, poisson(random, mean)));
        }
    }
    Observed::Latencies { percentile: 0.99, buckets }
}

/// A host in time.
struct Simulated {
    host: Host,
    random: fastrand::Rng,
    deviation: f64,
    blocks: i32,
    /// How much slower the burst makes it, that is under way.
    burst: Option<f64>,
}

impl Simulated {
    fn new(host: Host, seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let deviation = host.deviation * normal(&mut random);
        Self { host, random, deviation, blocks: 0, burst: None }
    }

    fn next(&mut self, effect: f64) -> Block {
        let Host { deviation, correlation, drift, disturbed, bursts, .. } = self.host;
        let own = deviation * (1.0 - correlation * correlation).sqrt() * normal(&mut self.random);
        self.deviation = correlation * self.deviation + own;
        self.blocks += 1;
        let disturbance =
            if self.random.f64() < disturbed { 1.0 + 0.5 * self.random.f64() } else { 1.0 };
        let changes = if self.burst.is_some() { BURST_ENDS } else { bursts };
        if bursts > 0.0 && self.random.f64() < changes {
            let slower = (4.0 * self.random.f64()).exp2();
            self.burst = if self.burst.is_some() { None } else { Some(slower) };
        }
        let disturbance = disturbance * self.burst.unwrap_or(1.0);
        let slower = (self.deviation + drift * f64::from(self.blocks)).exp() * disturbance;
        let observed = latencies(&mut self.random, effect * slower);
        let mut around = |value: f64| value * (0.03 * normal(&mut self.random)).exp();
        Block {
            observed,
            lost: 0.0001 * around(1.0),
            errors: 0.0,
            drops: 0.0,
            cpus_busy: around(1.0) * (0.1 * self.deviation).exp(),
            rate_per_s: around(2_000.0),
        }
    }
}

/// Cycles in which the change multiplies latencies.
fn trial(host: Host, seed: u64, effect: f64) -> Verdict {
    let mut simulated = Simulated::new(host, seed);
    let cycles: Vec<Cycle> = (0..CYCLES)
        .map(|_| {
            let [a1, b1, b2, a2] = [1.0, effect, effect, 1.0].map(|effect| simulated.next(effect));
            Cycle { without: [a1, a2], with: [b1, b2] }
        })
        .collect();
    compare(&cycles, &Thresholds::default()).unwrap().verdict
}

fn count(host: Host, trials: u64, effect: f64, is_wanted: impl Fn(Verdict) -> bool) -> u64 {
    let wanted = (0..trials).filter(|&seed| is_wanted(trial(host, seed, effect)));
    wanted.count() as u64
}

#[test]
fn without_a_difference_one_is_rarely_reported() {
    let mut all = Vec::new();
    for host in hosts() {
        let said = |verdict| matches!(verdict, Verdict::Better | Verdict::Worse);
        let false_verdicts = count(*host, TRIALS, 1.0, said);
        println!(
            "{}: {false_verdicts} of {TRIALS} report a difference that is not there",
            host.name
        );
        all.push((host.name, false_verdicts));
    }
    assert!(all.iter().all(|(_, count)| *count <= TRIALS / 20), "{all:?}");
}

/// Hosts on which an effect can be found: bursts that make blocks sixteen times slower hide one of a tenth.
fn quiet() -> impl Iterator<Item = &'static Host> {
    hosts().iter().filter(|host| host.bursts == 0.0)
}

#[test]
fn a_tenth_is_found() {
    for host in quiet() {
        for (effect, verdict) in [(0.9, Verdict::Better), (1.0 / 0.9, Verdict::Worse)] {
            let found = count(*host, FINDING, effect, |found| found == verdict);
            println!("{}: times {effect:.2}: {verdict:?} in {found} of {}", host.name, FINDING);
            assert!(found >= FINDING * 4 / 5, "{}: {found}", host.name);
        }
    }
}

/// Blocks of a change that is made once, 24 before and 24 after it.
fn once(host: Host, seed: u64, effect: f64) -> Verdict {
    let mut simulated = Simulated::new(host, seed);
    let before: Vec<Block> = (0..24).map(|_| simulated.next(1.0)).collect();
    let after: Vec<Block> = (0..24).map(|_| simulated.next(effect)).collect();
    compare_once(&before, &after, &Thresholds::default()).unwrap().verdict
}

#[test]
fn a_change_that_is_made_once_is_not_mistaken_for_drift() {
    for host in quiet().filter(|host| host.correlation < 0.5) {
        let said = |seed: &u64| matches!(once(*host, *seed, 1.0), Verdict::Better | Verdict::Worse);
        let false_verdicts = (0..TRIALS).filter(said).count();
        let found = (0..FINDING).filter(|seed| once(*host, *seed, 0.7) == Verdict::Better).count();
        println!(
            "once, {}: {false_verdicts} of {TRIALS}; -30% in {found} of {}",
            host.name, FINDING
        );
        assert!(false_verdicts <= 30, "{}: {false_verdicts}", host.name);
        assert!(found >= 160, "{}: {found}", host.name);
    }
}
