//! Comparisons whose result is known.

use super::*;
use nearpath_model::GuardState;

fn block(metric: f64) -> Block {
    let observed = Observed::Ratio { sum: metric, count: 1.0 };
    let (lost, errors, drops, cpus_busy, rate_per_s) = (0.0, 0.0, 0.0, 1.0, 1_000.0);
    Block { observed, lost, errors, drops, cpus_busy, rate_per_s }
}

fn cycle(without: Block, with: Block) -> Cycle {
    let twice = |block: Block| [block.clone(), block];
    Cycle { without: twice(without), with: twice(with), placebo: false, with_first: false }
}

fn compared(cycles: &[Cycle]) -> Comparison {
    compare(cycles, &Thresholds::default()).unwrap()
}

/// A cycle per value of the metric with the change, 100 without.
fn varying(values: impl IntoIterator<Item = f64>) -> Vec<Cycle> {
    values.into_iter().map(|with| cycle(block(100.0), block(with))).collect()
}

#[test]
fn numbers_are_those_of_the_blocks() {
    let found = compared(&varying([80.0; 6]));
    assert_eq!((found.blocks, found.verdict), (24, Verdict::Better));
    assert!((found.baseline - 100.0).abs() < 1e-9 && (found.with_plan - 80.0).abs() < 1e-9);
    assert!((found.delta_percent + 20.0).abs() < 1e-9);
    assert_eq!((found.placebo, found.p_value), (None, Some(0.0)));
    // One cycle that says nothing: four of 128 exchanges of halves are as far apart.
    let found = compared(&varying([80.0, 80.0, 80.0, 80.0, 80.0, 80.0, 100.0]));
    assert!(found.p_value.unwrap() >= 4.0 / 128.0 - 1e-6, "{found:?}");
    assert_eq!(compared(&varying([99.9; 6])).verdict, Verdict::NoDifference);
    let found = compared(&varying([90.0, 130.0, 80.0, 101.0, 122.0, 77.0]));
    assert_eq!(found.verdict, Verdict::Inconclusive, "{found:?}");
    let [low, high] = found.ci95.unwrap();
    assert!(low < found.delta_percent && found.delta_percent < high, "{found:?}");
    assert_eq!(
        compared(&varying([130.0, 125.0, 120.0, 128.0, 131.0, 126.0])).verdict,
        Verdict::Worse
    );
}

#[test]
fn a_host_that_differs_from_itself_shows_no_effect() {
    let mut cycles = varying([80.0, 82.0, 81.0, 79.0, 80.5, 81.5]);
    let placebo = |with| Cycle { placebo: true, ..cycle(block(100.0), block(with)) };
    let calm = [99.0, 101.0, 100.5, 99.5].map(placebo);
    let found = compared(&[&cycles[..], &calm].concat());
    assert_eq!((found.verdict, found.blocks), (Verdict::Better, 24));
    assert!(!found.placebo.unwrap().shows_a_difference(), "{found:?}");
    // The writes alone make it faster.
    cycles.extend([85.0, 86.0, 84.0, 85.0].map(placebo));
    let found = compared(&cycles);
    assert_eq!(found.verdict, Verdict::Inconclusive);
    let placebo = found.placebo.unwrap();
    assert!(placebo.shows_a_difference() && (placebo.delta_percent + 15.0).abs() < 0.1);
}

#[test]
fn a_gain_that_costs_too_much_is_worse() {
    let gain = |with: Block| compared(&vec![cycle(block(100.0), with); 6]);
    let busy = gain(Block { cpus_busy: 1.5, ..block(50.0) });
    assert_eq!(busy.verdict, Verdict::Worse);
    assert_eq!(busy.guards.cpus_busy.state, GuardState::Violated);
    assert_eq!(busy.guards.lost.state, GuardState::Holds);
    let little =
        cycle(Block { cpus_busy: 0.02, ..block(100.0) }, Block { cpus_busy: 0.1, ..block(50.0) });
    assert_eq!(compared(&vec![little; 6]).verdict, Verdict::Better, "five times nothing");
    let states = |block: Block| {
        let Guards { lost, errors, drops, rate_per_s, .. } = gain(block).guards;
        [lost, errors, drops, rate_per_s].map(|guard| guard.state == GuardState::Violated)
    };
    assert_eq!(states(Block { lost: 0.01, ..block(50.0) }), [true, false, false, false]);
    assert_eq!(states(Block { errors: 0.01, ..block(50.0) }), [false, true, false, false]);
    assert_eq!(states(Block { drops: 0.01, ..block(50.0) }), [false, false, true, false]);
    assert_eq!(states(Block { rate_per_s: 900.0, ..block(50.0) }), [false, false, false, true]);
}

#[test]
fn a_guard_that_noise_hides_does_not_hold() {
    let with = |rate_per_s: f64| cycle(block(100.0), Block { rate_per_s, ..block(50.0) });
    // As many on average, but varying by more than the margin.
    let cycles: Vec<Cycle> = [700.0, 1_300.0].repeat(4).into_iter().map(with).collect();
    let found = compared(&cycles);
    assert_eq!(found.guards.rate_per_s.state, GuardState::NotShown, "{found:?}");
    assert_eq!(found.verdict, Verdict::Inconclusive, "neither kept nor blamed");
    // Fewer by less than the margin, without noise.
    let found = compared(&vec![with(970.0); 8]);
    assert_eq!(
        (found.guards.rate_per_s.state, found.verdict),
        (GuardState::Holds, Verdict::Better)
    );
}

#[test]
fn a_rate_is_reported_as_a_rate() {
    // Half a second per event, then 0.4: 2 per second, then 2.5.
    let with = |with| cycle(block(0.5), block(with));
    let found = compared(&[0.4, 0.4, 0.38, 0.4, 0.41, 0.39].map(with));
    let rate = found.clone().of_rate();
    assert!((rate.baseline - 2.0).abs() < 1e-9 && rate.with_plan > 2.5, "{rate:?}");
    assert!((rate.with_plan / rate.baseline - 1.0 - rate.delta_percent / 100.0).abs() < 1e-9);
    let [low, high] = rate.ci95.unwrap();
    assert!(0.0 < low && low < rate.delta_percent && rate.delta_percent < high, "{rate:?}");
    assert_eq!(rate.verdict, found.verdict);
}

#[test]
fn too_few_cycles_have_no_interval() {
    let found = compared(&varying([80.0; CYCLES_MIN - 1]));
    assert_eq!((found.ci95, found.p_value, found.verdict), (None, None, Verdict::Inconclusive));
    let none = Block { observed: Observed::Ratio { sum: 0.0, count: 0.0 }, ..block(1.0) };
    assert_eq!(compare(&vec![cycle(block(1.0), none); 4], &Thresholds::default()), None);
    assert_eq!(compare(&[], &Thresholds::default()), None);
}

#[test]
fn blocks_that_resemble_the_previous_one_need_to_be_longer() {
    // Phases of eight blocks, each slower or faster.
    let phase = |number: usize| if (number / 2).is_multiple_of(2) { 100.0 } else { 130.0 };
    let slow: Vec<Cycle> = (0..8).map(|n| cycle(block(phase(n)), block(phase(n)))).collect();
    assert!(needs_longer_blocks(&slow), "{:?}", compared(&slow).autocorrelation);
    // An effect and a drift are none.
    let drift = |n: f64| cycle(block(100.0 * (1.0 + 0.02 * n)), block(70.0 * (1.0 + 0.02 * n)));
    let steady: Vec<Cycle> = (0..8).map(|n| drift(f64::from(n))).collect();
    assert!(!needs_longer_blocks(&steady[..2]), "too few");
    let found = compared(&steady).autocorrelation.unwrap();
    assert!(found < 0.5, "{found}");
}

#[test]
fn a_change_made_once_is_compared_before_and_after() {
    let blocks = |metric: f64| -> Vec<Block> {
        (0..16).map(|n| block(metric * if n % 2 == 0 { 1.02 } else { 0.98 })).collect()
    };
    let thresholds = Thresholds::default();
    let found = compare_once(&blocks(100.0), &blocks(70.0), &thresholds).unwrap();
    assert_eq!((found.verdict, found.blocks), (Verdict::Better, 32));
    // A host that was already becoming faster.
    let faster = |from: i32, step: f64| -> Vec<Block> {
        let noise = |n: i32| if n % 3 == 0 { 1.02 } else { 0.99 };
        (from..from + 16).map(|n| block(step * 100.0 * 0.97f64.powi(n) * noise(n))).collect()
    };
    let found = compare_once(&faster(0, 1.0), &faster(16, 1.0), &thresholds).unwrap();
    assert!(
        found.with_plan < 0.7 * found.baseline && found.verdict != Verdict::Better,
        "{found:?}"
    );
    let found = compare_once(&faster(0, 1.0), &faster(16, 0.8), &thresholds).unwrap();
    assert_eq!(found.verdict, Verdict::Better);
    assert!((found.delta_percent + 20.0).abs() < 3.0, "{found:?}");
    assert_eq!(compare_once(&faster(0, 1.0)[..2], &faster(2, 1.0), &thresholds), None);
}

#[test]
fn many_trials_find_something_by_chance() {
    let helps = [80.0, 65.0, 97.0, 80.0, 95.0, 70.0];
    let mut one = compared(&varying(helps));
    let p = one.p_value.unwrap();
    assert!(one.verdict == Verdict::Better && p > 0.005 && p < 0.05, "{one:?}");
    let mut others: Vec<Comparison> =
        (0..9).map(|_| compared(&varying([90.0, 110.0, 100.0, 101.0, 95.0, 104.0]))).collect();
    let mut all: Vec<&mut Comparison> = others.iter_mut().chain([&mut one]).collect();
    correct(&mut all);
    assert_eq!(one.verdict, Verdict::Inconclusive);
    assert!((one.p_adjusted.unwrap() - 10.0 * p).abs() < 1e-9);
    let mut alone = compared(&varying(helps));
    correct(&mut [&mut alone]);
    assert_eq!(alone.verdict, Verdict::Better);
}
