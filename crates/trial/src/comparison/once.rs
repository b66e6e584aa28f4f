//! A change that is made once. Input: the blocks before it and after it. Output: the step between them.
//!
//! A line with a step is fitted to the logarithms of the blocks' metric (ordinary least squares, one slope on both
//! sides), so that a linear drift is not mistaken for an effect. Blocks that resemble the previous one count for less:
//! the error is widened by their correlation, as for the mean of an autoregressive process.

use super::jackknife::Estimate;
use super::pool::own;
use super::{Block, Cycle};

/// Correlations above this would widen the error without end.
const CORRELATION_MAX: f64 = 0.9;

/// Cycles of two blocks before and two after, for the guards.
pub(super) fn paired(before: &[Block], after: &[Block]) -> Vec<Cycle> {
    let pair = |blocks: &[Block]| Some([blocks.first()?.clone(), blocks.get(1)?.clone()]);
    let pairs = before.chunks_exact(2).zip(after.chunks_exact(2));
    let cycle = |(a, b): (&[Block], &[Block])| Some(Cycle { without: pair(a)?, with: pair(b)? });
    pairs.filter_map(cycle).collect()
}

/// The factor of an error for blocks with this correlation.
pub(super) fn widening(correlation: f64) -> f64 {
    ((1.0 + correlation) / (1.0 - correlation)).sqrt()
}

/// The values of one side, with their times.
struct Side {
    points: Vec<(f64, f64)>,
    time: f64,
    mean: f64,
}

impl Side {
    fn new(blocks: &[Block], first: usize) -> Option<Self> {
        let points: Option<Vec<(f64, f64)>> = blocks
            .iter()
            .zip(first..)
            .map(|(block, time)| Some((time as f64, own(&block.observed)?.ln())))
            .collect();
        let points = points.filter(|points| points.len() >= 3)?;
        let mean =
            |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / points.len() as f64;
        let (time, mean) = (mean(|point| point.0), mean(|point| point.1));
        Some(Self { points, time, mean })
    }

    /// Sums of squares and products around the means: of times, and of times and values.
    fn sums(&self) -> [f64; 2] {
        let away = self.points.iter().map(|(time, value)| (time - self.time, value - self.mean));
        away.fold([0.0; 2], |[squares, products], (t, v)| [squares + t * t, products + t * v])
    }

    fn residuals(&self, slope: f64) -> impl Iterator<Item = f64> + '_ {
        self.points.iter().map(move |(time, value)| value - self.mean - slope * (time - self.time))
    }
}

/// The step in the logarithm, and the correlation of successive blocks, 0 or more; `None` with fewer than three blocks
/// on a side, or if one has no value of the metric.
pub(super) fn step(before: &[Block], after: &[Block]) -> Option<(Estimate, f64)> {
    let (a, b) = (Side::new(before, 0)?, Side::new(after, before.len())?);
    let ([a_squares, a_products], [b_squares, b_products]) = (a.sums(), b.sums());
    let squares = a_squares + b_squares;
    let slope = (a_products + b_products) / squares;
    let between = b.time - a.time;
    let residuals: Vec<f64> = a.residuals(slope).chain(b.residuals(slope)).collect();
    let freedom = residuals.len().checked_sub(3).filter(|&freedom| freedom > 0)?;
    let all: f64 = residuals.iter().map(|residual| residual * residual).sum();
    let products: f64 = residuals.windows(2).map(|pair| pair[0] * pair[1]).sum();
    // The correlation of residuals is lower than that of what they remain of, by about three in their number.
    let correlation = if all > 0.0 { products / all + 3.0 / residuals.len() as f64 } else { 0.0 };
    let correlation = correlation.clamp(0.0, CORRELATION_MAX);
    let parts =
        1.0 / a.points.len() as f64 + 1.0 / b.points.len() as f64 + between * between / squares;
    let error = (all / freedom as f64 * parts).sqrt() * widening(correlation);
    Some((Estimate { middle: b.mean - a.mean - slope * between, error, freedom }, correlation))
}
