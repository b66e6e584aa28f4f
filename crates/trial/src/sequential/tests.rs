//! Trials on known noise: how often is the decision right, and after how many pairs?

use super::*;
use fastrand::Rng;

/// p50, p99, the share of packets above a limit, lost packets per second.
const SCALES: [Scale; 4] = [Scale::Ratio, Scale::Ratio, Scale::Difference, Scale::Losses];
const MINIMUM_EFFECT: f64 = 0.05;

fn trial_of(scales: &[Scale], seed: u64) -> Sequential {
    let figure = |&scale: &Scale| Figure {
        scale,
        decides: true,
        minimum_effect: MINIMUM_EFFECT,
        harmless: 0.0,
    };
    Sequential::new(&scales.iter().map(figure).collect::<Vec<_>>(), seed, 1)
}

/// A normal deviate (Box and Muller).
fn normal(random: &mut Rng) -> f64 {
    let radius = (-2.0 * (1.0 - random.f64()).ln()).sqrt();
    radius * (std::f64::consts::TAU * random.f64()).cos()
}

/// How blocks differ from each other without any effect: the logarithm of latency, with a standard deviation near 1. Takes the
/// state of the host and the number of the block.
type Noise = fn(&mut Rng, &mut f64, usize) -> f64;

const NOISES: [(&str, Noise); 8] = [
    ("white", |random, _, _| normal(random)),
    ("correlated", |random, state, _| {
        *state = 0.9 * *state + (1.0f64 - 0.81).sqrt() * normal(random);
        *state
    }),
    // Latency itself has a Pareto tail; with exponent 1, it has no mean.
    ("Pareto", |random, _, _| -(1.0 - random.f64()).ln()),
    ("drifting", |random, _, block| 0.1 * block as f64 + 0.1 * normal(random)),
    ("bursts", |random, state, _| {
        let ends = *state > 0.0 && random.f64() < 0.33;
        let begins = *state == 0.0 && random.f64() < 0.1;
        if ends || begins {
            *state = if begins { 4.0 * random.f64() } else { 0.0 };
        }
        *state + 0.05 * normal(random)
    }),
    // In step with the blocks of a pair, with pairs, and with neither.
    ("phases of a block", |random, _, block| (block % 2) as f64 + 0.1 * normal(random)),
    ("phases of a pair", |random, _, block| (block / 2 % 2) as f64 + 0.1 * normal(random)),
    ("phases of 7 blocks", |random, _, block| 2.0 * (block / 7 % 2) as f64 + 0.1 * normal(random)),
];

fn noise(name: &str) -> Noise {
    NOISES.iter().find(|(other, _)| *other == name).unwrap().1
}

/// A host whose metrics the plan multiplies: p50 and lost packets by the first factor, p99 and the share by the second.
#[derive(Clone, Copy)]
struct Host {
    noise: Noise,
    /// Standard deviation of the noise of a block.
    deviation: f64,
    factors: [f64; 2],
    /// The order is not random: the plan always comes second.
    fixed_order: bool,
    /// One block in ten loses packets, some of them very many.
    lossy: bool,
}

impl Host {
    fn new(noise: Noise, deviation: f64, factors: [f64; 2]) -> Self {
        Self { noise, deviation, factors, fixed_order: false, lossy: true }
    }

    /// Runs a trial until `done`, or to so many pairs.
    fn run(self, pairs: usize, seed: u64, mut done: impl FnMut(&Sequential) -> bool) -> Sequential {
        let mut random = Rng::with_seed(seed);
        let mut sequential = trial_of(&SCALES, random.u64(..));
        let (mut state, mut block) = (0.0, 0);
        for _ in 0..pairs {
            let first = sequential.with_first() && !self.fixed_order;
            let mut values = [[None; 4]; 2];
            for with in [first, !first] {
                let level = (self.deviation * (self.noise)(&mut random, &mut state, block)).exp();
                let tail = level * (0.5 * self.deviation * normal(&mut random)).exp();
                let [body, beyond] = if with { self.factors } else { [1.0; 2] };
                let is_lossy = self.lossy && random.f64() < 0.1;
                let lost = if is_lossy { 10.0 / (1.0 - random.f64()) } else { 0.0 };
                values[usize::from(with)] = [
                    Some(50.0 * level * body),
                    Some(500.0 * tail * beyond),
                    Some((0.01 * tail * beyond).min(1.0)),
                    Some(lost * body),
                ];
                block += 1;
            }
            sequential.add(&values[0], &values[1]);
            if done(&sequential) {
                break;
            }
        }
        sequential
    }

    /// The first decision, and the pairs until then.
    fn decide(self, pairs: usize, seed: u64) -> (Decision, usize) {
        let found = self.run(pairs, seed, |trial| trial.decision() != Decision::Open);
        (found.decision(), found.pairs())
    }

    /// How many of so many trials end with better or worse.
    fn verdicts(self, pairs: usize, seeds: u64) -> u64 {
        let has_verdict =
            |seed: &u64| matches!(self.decide(pairs, *seed).0, Decision::Better | Decision::Worse);
        (0..seeds).filter(has_verdict).count() as u64
    }
}

/// Simulated trials: in the lengthy tier, ten times as many.
fn trials(short: u64) -> u64 {
    if nearpath_testing::lengthy() { 10 * short } else { short }
}

#[test]
fn without_an_effect_at_most_one_trial_in_twenty_has_a_verdict_with_a_look_after_every_pair() {
    for (name, noise) in NOISES {
        for deviation in [0.05, 1.0] {
            let seeds = trials(400);
            let wrong = Host::new(noise, deviation, [1.0; 2]).verdicts(100, seeds);
            assert!(wrong <= seeds / 20, "{name}, {deviation}: {wrong} of {seeds}");
        }
    }
}

#[test]
fn the_noise_would_deceive_without_the_coin() {
    for name in ["drifting", "phases of a block"] {
        let host = Host::new(noise(name), 1.0, [1.0; 2]);
        let host = Host { fixed_order: true, lossy: false, ..host };
        assert!(host.verdicts(100, 40) >= 38, "{name}");
    }
}

#[test]
fn a_halved_latency_is_better_and_a_doubled_one_worse_within_twelve_pairs() {
    for (name, noise) in NOISES {
        for (factor, decision) in [(0.5, Decision::Better), (2.0, Decision::Worse)] {
            // Two blocks with losses that both happen to have the plan delay a decision of better.
            for (lossy, percent) in [(false, 95), (true, 90)] {
                let host = Host { lossy, ..Host::new(noise, 0.2, [factor; 2]) };
                let seeds = trials(200);
                let is_right = |seed: &u64| host.decide(12, *seed).0 == decision;
                let right = (0..seeds).filter(is_right).count() as u64;
                let least = seeds * percent / 100;
                assert!(right >= least, "{name}, {factor}, losses {lossy}: {right} of {seeds}");
            }
        }
    }
}

#[test]
fn one_of_two_latencies_is_enough() {
    for factors in [[0.5, 1.0], [1.0, 0.5]] {
        let host = Host::new(noise("white"), 0.2, factors);
        let mut pairs: Vec<usize> = (0..trials(200))
            .filter_map(|seed| Some(host.decide(30, seed)).filter(|it| it.0 == Decision::Better))
            .map(|(_, pairs)| pairs)
            .collect();
        assert!(pairs.len() as u64 >= trials(200) * 95 / 100, "{factors:?}: {}", pairs.len());
        pairs.sort_unstable();
        assert!(pairs[pairs.len() / 2] <= 13, "{factors:?}: median {}", pairs[pairs.len() / 2]);
    }
}

#[test]
fn a_tenth_is_found_within_sixty_pairs() {
    let (host, seeds) = (Host::new(noise("white"), 0.05, [0.9; 2]), trials(200));
    let is_right = |seed: &u64| host.decide(60, *seed).0 == Decision::Better;
    let right = (0..seeds).filter(is_right).count() as u64;
    assert!(right >= seeds * 80 / 100, "{right} of {seeds}");
}

#[test]
fn a_halved_median_is_not_better_if_the_tail_is_doubled() {
    for (name, noise) in NOISES {
        for factors in [[0.5, 2.0], [2.0, 0.5]] {
            for deviation in [0.1, 0.2, 0.3] {
                let host = Host::new(noise, deviation, factors);
                for seed in 0..trials(100) {
                    let found = host.decide(60, seed);
                    let case = format!("{name}, {deviation}, {factors:?}, {seed}: {found:?}");
                    assert_ne!(found.0, Decision::Better, "{case}");
                }
            }
        }
    }
}

#[test]
fn fewer_losses_are_better_unless_the_packets_that_come_are_far_later() {
    let decide = |later: f64, seed: u64| {
        let mut random = Rng::with_seed(seed);
        let mut trial = trial_of(&[Scale::Ratio, Scale::Losses], random.u64(..));
        for _ in 0..60 {
            let first = trial.with_first();
            let mut values = [[None; 2]; 2];
            for with in [first, !first] {
                let p99 = 500.0 * (0.05 * normal(&mut random)).exp();
                // Half of the blocks have a burst that was too large.
                let lost = if random.bool() { 100.0 * random.f64() } else { 0.0 };
                values[usize::from(with)] = match with {
                    true => [Some(p99 * later), Some(0.0)],
                    false => [Some(p99), Some(lost)],
                };
            }
            trial.add(&values[0], &values[1]);
            if trial.decision() != Decision::Open {
                break;
            }
        }
        (trial.decision(), trial.pairs())
    };
    for seed in 0..trials(50) {
        let (decision, pairs) = decide(1.04, seed);
        assert_eq!(decision, Decision::Better, "{seed}");
        assert!(pairs <= 45, "{seed}: {pairs}");
        assert_eq!(decide(2.0, seed).0, Decision::Worse, "{seed}");
    }
}

#[test]
fn a_loss_that_may_be_chance_does_not_excuse_a_later_tail() {
    let scales = [Scale::Ratio, Scale::Ratio, Scale::Losses];
    for seed in 0..trials(50) {
        let mut trial = trial_of(&scales, seed);
        let mut random = Rng::with_seed(seed);
        for pair in 0..40 {
            trial.with_first();
            let noise = (0.02 * normal(&mut random)).exp();
            let lost = if pair == 0 { 5.0 } else { 0.0 };
            trial.add(
                &[Some(50.0), Some(500.0), Some(lost)],
                &[Some(25.0 * noise), Some(600.0 * noise), Some(0.0)],
            );
            assert_ne!(trial.decision(), Decision::Better, "{seed}, {pair}");
        }
    }
}

#[test]
fn small_effects_and_none_are_no_difference() {
    // Without the share of packets and the losses, which are never known to 5 %.
    let decide = |factor: f64, pairs: usize, seed: u64| {
        let mut random = Rng::with_seed(seed);
        let mut trial = trial_of(&SCALES[..2], random.u64(..));
        while trial.decision() == Decision::Open && trial.pairs() < pairs {
            trial.with_first();
            let mut block = |factor: f64| {
                [50.0, 500.0].map(|level| Some(factor * level * (0.03 * normal(&mut random)).exp()))
            };
            trial.add(&block(1.0), &block(factor));
        }
        trial.decision()
    };
    for factor in [0.98, 1.0, 1.02] {
        let is_right = |seed: &u64| decide(factor, 100, *seed) == Decision::NoDifference;
        let right = (0..100).filter(is_right).count();
        assert!(right >= 90, "{factor}: {right} of 100");
    }
    for factor in [0.9, 1.1] {
        let is_wrong = |seed: &u64| decide(factor, 100, *seed) == Decision::NoDifference;
        let wrong = (0..100).filter(is_wrong).count();
        assert!(wrong <= 2, "{factor}: {wrong} of 100");
    }
}

#[test]
fn pairs_without_values_are_skipped_and_equal_ones_decide_nothing() {
    let mut trial = trial_of(&SCALES, 1);
    let (none, zero) = ([None; 4], [None, None, Some(0.0), Some(0.0)]);
    for _ in 0..100 {
        trial.add(&none, &zero);
        trial.add(&zero, &zero);
        // Not a latency, and too few values.
        trial.add(&[Some(0.0), Some(f64::NAN)], &[Some(1.0), Some(1.0)]);
        trial.add(&[Some(-1.0), Some(f64::INFINITY)], &[Some(1.0), Some(1.0)]);
    }
    assert_eq!((trial.decision(), trial.pairs()), (Decision::Open, 400));
    let effects = trial.effects();
    assert_eq!(effects[0], Effect { estimate: None, interval: None, wealth: [1.0; 2] });
    assert_eq!((effects[3].estimate, effects[3].wealth), (Some(0.0), [1.0; 2]));
    let [low, high] = effects[3].interval.unwrap();
    assert!(low.abs() < 1e-8 && high.abs() < 1e-8, "{low} to {high}");
    // The metrics with values decide: losses that end.
    for pair in 0..12 {
        let lost = 100.0 + f64::from(pair % 3);
        trial.add(&[None, None, None, Some(lost)], &[None, None, None, Some(0.0)]);
    }
    assert_eq!(trial.decision(), Decision::Better);
    assert_eq!(trial.effects()[0].estimate, None);
}

#[test]
fn any_metric_that_seems_worse_and_small_significant_effects_prevent_better() {
    let decide = |scales: &[Scale], with: fn(usize) -> [f64; 2]| {
        let mut trial = trial_of(scales, 1);
        for pair in 0..12 {
            trial.add(&[Some(1.0); 2], &with(pair).map(Some));
        }
        trial.decision()
    };
    // The first is halved; the second is 1 % worse, then equal.
    assert_eq!(decide(&SCALES[..2], |_| [0.5, 1.01]), Decision::Open);
    assert_eq!(decide(&SCALES[..2], |_| [0.5, 1.0]), Decision::Better);
    // Always better, in most pairs by 2 %; 20 % in every fourth, so that the interval is wider than the minimum.
    let mixed = |pair: usize| [if pair % 4 == 1 { 0.8 } else { 0.98 }, 1.0];
    assert_eq!(decide(&SCALES[..1], mixed), Decision::NoDifference);
}

#[test]
fn rare_losses_are_not_shown_to_be_no_difference() {
    let mut trial = trial_of(&[Scale::Ratio, Scale::Difference], 1);
    for pair in 0..40 {
        let [lost, lost_with] = match pair % 10 {
            3 => [0.0, 90.0],
            7 => [50.0, 0.0],
            _ => [0.0; 2],
        };
        let latency = if pair % 2 == 0 { 1.01 } else { 1.0 / 1.01 };
        trial.add(&[Some(1.0), Some(lost)], &[Some(latency), Some(lost_with)]);
    }
    let [latency, lost] = trial.effects()[..] else { panic!() };
    let ([low, high], [least, most]) = (latency.interval.unwrap(), lost.interval.unwrap());
    assert!(low > 0.95 && high < 1.05, "{low} to {high}");
    assert!(lost.estimate == Some(4.0) && least <= 0.0 && most == 4.0, "{lost:?}");
    assert_eq!(trial.decision(), Decision::Open);
}

#[test]
fn estimates_are_ratios_and_differences_of_with_to_without() {
    let mut trial = trial_of(&[Scale::Ratio, Scale::Difference], 1);
    for (with, lost) in [(40.0, 0.0), (50.0, 3.0), (90.0, 0.0)] {
        trial.add(&[Some(100.0), Some(9.0)], &[Some(with), Some(lost)]);
    }
    let [latency, lost] = trial.effects()[..] else { panic!() };
    assert!((latency.estimate.unwrap() - 0.5).abs() < 1e-12);
    assert!((lost.estimate.unwrap() + 8.0).abs() < 1e-12);
    assert!(latency.wealth[0] > 1.0 && latency.wealth[1] < 1.0, "{latency:?}");
    assert_eq!(latency.interval, None, "three pairs bound nothing");
    assert_eq!(trial.threshold(), 80.0);
}

#[test]
fn the_order_is_a_coin() {
    let mut trial = trial_of(&SCALES, 7);
    let tosses: Vec<bool> = (0..1_000).map(|_| trial.with_first()).collect();
    let count = |of: fn(&[bool]) -> bool| tosses.windows(2).filter(|pair| of(pair)).count();
    // Four standard deviations of 16, of the tosses and of their repetition.
    assert!((436..=564).contains(&count(|pair| pair[0])));
    assert!((436..=564).contains(&count(|pair| pair[0] == pair[1])));
}

#[test]
fn intervals_contain_the_effect_at_all_looks_and_shrink_to_it() {
    for (name, noise) in NOISES {
        let (seeds, mut missed, mut widths) = (trials(400), 0, Vec::new());
        for seed in 0..seeds {
            let (mut random, mut state, mut block) = (Rng::with_seed(seed), 0.0, 0);
            let scales = [Scale::Ratio, Scale::Difference];
            let mut trial = trial_of(&scales, random.u64(..));
            let mut contains = true;
            while trial.pairs() < 60 {
                let first = trial.with_first();
                let mut values = [[None; 2]; 2];
                for with in [first, !first] {
                    let level = (0.2 * noise(&mut random, &mut state, block)).exp();
                    let [factor, less] = if with { [0.7, 0.3] } else { [1.0, 0.0] };
                    values[usize::from(with)] = [Some(level * factor), Some(level - less)];
                    block += 1;
                }
                trial.add(&values[0], &values[1]);
                for (effect, truth) in trial.effects().iter().zip([0.7, -0.3]) {
                    let is_in = |[low, high]: [f64; 2]| (low..=high).contains(&truth);
                    contains &= effect.interval.is_none_or(is_in);
                }
            }
            missed += u64::from(!contains);
            let [low, high] = trial.effects()[0].interval.unwrap();
            widths.push(high / low);
        }
        assert!(missed <= seeds / 20, "{name}: {missed} of {seeds}");
        widths.sort_unstable_by(f64::total_cmp);
        let median = widths[widths.len() / 2];
        assert!(median < 1.5, "{name}: {median}");
    }
}

#[test]
fn a_figure_that_does_not_decide_makes_nothing_better_but_can_be_worse() {
    let latency = |decides, minimum_effect| Figure {
        scale: Scale::Ratio,
        decides,
        minimum_effect,
        harmless: 0.0,
    };
    let decide = |effects: [f64; 2]| {
        let mut trial = Sequential::new(&[latency(true, 0.05), latency(false, 0.25)], 1, 1);
        for pair in 0..30 {
            let level = 100.0 + f64::from(pair);
            trial.add(&[Some(level); 2], &effects.map(|effect| Some(level * effect)));
        }
        trial.decision()
    };
    assert_eq!(decide([1.0, 0.5]), Decision::Open);
    assert_eq!(decide([0.5, 1.2]), Decision::Better, "not worse by its minimum effect");
    assert_eq!(decide([0.5, 1.3]), Decision::Worse);
    assert_eq!(decide([0.99, 1.2]), Decision::NoDifference);
    assert_eq!(decide([0.99, 1.3]), Decision::Worse);
}

#[test]
fn trials_share_the_probability_of_a_false_verdict() {
    let figure = Figure { scale: Scale::Ratio, decides: true, minimum_effect: 0.05, harmless: 0.0 };
    let of = |trials| Sequential::new(&[figure], 1, trials).threshold();
    assert!((of(5) / of(1) - 5.0).abs() < 1e-9 && (of(0) - of(1)).abs() < 1e-9);
}

#[test]
fn an_increase_that_is_harmless_does_not_prevent_better() {
    let latency =
        |harmless| Figure { scale: Scale::Ratio, decides: true, minimum_effect: 0.05, harmless };
    // p50 and p99 of a reader whose CPU was never idle, in microseconds.
    let decide = |harmless| {
        let mut trial = Sequential::new(&[latency(harmless), latency(0.0)], 1, 1);
        for pair in 0..20 {
            let level = 1.0 + 0.01 * f64::from(pair % 3);
            trial.add(&[Some(36.0 * level), Some(5_000.0)], &[Some(50.0 * level), Some(1_400.0)]);
        }
        trial.decision()
    };
    assert_eq!(decide(0.0), Decision::Worse);
    assert_eq!(decide(10.0), Decision::Worse);
    assert_eq!(decide(36.0), Decision::Better);
}
