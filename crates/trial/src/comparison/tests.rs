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
    Cycle { without: twice(without), with: twice(with) }
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
    assert_eq!(found.p_value, Some(0.0));
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
fn too_few_cycles_have_no_interval() {
    let found = compared(&varying([80.0; CYCLES_MIN - 1]));
    assert_eq!((found.ci95, found.p_value, found.verdict), (None, None, Verdict::Inconclusive));
    let none = Block { observed: Observed::Ratio { sum: 0.0, count: 0.0 }, ..block(1.0) };
    assert_eq!(compare(&vec![cycle(block(1.0), none); 4], &Thresholds::default()), None);
    assert_eq!(compare(&[], &Thresholds::default()), None);
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
