//! Whether blocks are long enough. Input: the metric of each block in order. Output: the correlation of their
//! deviations with those of the previous block, after what is expected has been removed: the effect of the change,
//! and a drift that is linear.

use super::pool::own;
use super::{Block, Cycle};

/// Fewer blocks do not allow an estimate.
const BLOCKS_MIN: usize = 12;

/// The blocks of a cycle in the order in which they were measured, and whether each is with the change.
pub(super) fn in_order(cycle: &Cycle) -> [(&Block, bool); 4] {
    let ([a1, a2], [b1, b2]) = (&cycle.without, &cycle.with);
    let with = !cycle.placebo;
    match cycle.with_first {
        false => [(a1, false), (b1, with), (b2, with), (a2, false)],
        true => [(b1, with), (a1, false), (a2, false), (b2, with)],
    }
}

/// The correlation at lag 1, -1 to 1; `None` with too few blocks, or if a block has no value of the metric.
pub(super) fn autocorrelation(cycles: &[Cycle]) -> Option<f64> {
    let blocks = cycles.iter().flat_map(in_order);
    let logs: Option<Vec<(f64, bool)>> =
        blocks.map(|(block, with)| Some((own(&block.observed)?.ln(), with))).collect();
    let logs = logs.filter(|logs| logs.len() >= BLOCKS_MIN)?;
    let deviations = deviations(&logs);
    let square = |values: &[f64]| values.iter().map(|value| value * value).sum::<f64>();
    let products: f64 = deviations.windows(2).map(|pair| pair[0] * pair[1]).sum();
    let all = square(&deviations);
    (all > 0.0).then(|| (products / all).clamp(-1.0, 1.0))
}

/// What is left of each after its kind's mean and a linear drift.
fn deviations(logs: &[(f64, bool)]) -> Vec<f64> {
    let count = logs.len() as f64;
    let centre = (count - 1.0) / 2.0;
    let mean_of = |kind: bool| {
        let of_kind: Vec<f64> =
            logs.iter().filter(|(_, with)| *with == kind).map(|(log, _)| *log).collect();
        of_kind.iter().sum::<f64>() / of_kind.len().max(1) as f64
    };
    let means = [mean_of(false), mean_of(true)];
    let flat: Vec<f64> = logs.iter().map(|(log, with)| log - means[usize::from(*with)]).collect();
    let time = |index: usize| index as f64 - centre;
    let slope = flat.iter().enumerate().map(|(index, value)| time(index) * value).sum::<f64>()
        / (0..logs.len()).map(|index| time(index).powi(2)).sum::<f64>();
    flat.iter().enumerate().map(|(index, value)| value - slope * time(index)).collect()
}

/// Whether the blocks are correlated by more than chance (one-sided 5%): longer blocks are less so.
pub fn needs_longer_blocks(cycles: &[Cycle]) -> bool {
    let limit = 1.645 / (4.0 * cycles.len() as f64).sqrt();
    autocorrelation(cycles).is_some_and(|found| found > limit)
}
