//! Several trials at once. Input: the probability of chance of each. Output: the same, corrected for their number.
//!
//! Of 20 changes without effect one would be found to have one. The correction of Holm (A Simple Sequentially
//! Rejective Multiple Test Procedure, Scandinavian Journal of Statistics 6, 1979) bounds the probability that any
//! is, and assumes nothing about how the trials depend on each other.

use nearpath_model::{Comparison, Verdict};

/// A probability above this is chance.
const CHANCE: f64 = 0.05;

/// The corrected probabilities, in the order given.
fn adjusted(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[a].total_cmp(&values[b]));
    let (mut corrected, mut highest) = (vec![1.0; values.len()], 0.0f64);
    for (rank, &index) in order.iter().enumerate() {
        highest = highest.max(values[index] * (values.len() - rank) as f64).min(1.0);
        corrected[index] = highest;
    }
    corrected
}

/// Corrects the trials of one session: a difference that may be chance among so many trials is inconclusive.
/// Trials that were stopped early, and violated guards, are not affected.
pub fn correct(all: &mut [&mut Comparison]) {
    let values: Vec<f64> = all.iter().map(|found| found.p_value.unwrap_or(1.0)).collect();
    for (found, p) in all.iter_mut().zip(adjusted(&values)) {
        if found.p_value.is_none() {
            continue;
        }
        found.p_adjusted = Some(p);
        let by_metric = matches!(found.verdict, Verdict::Better | Verdict::Worse);
        if by_metric && p > CHANCE && !found.guards.are_violated() {
            found.verdict = Verdict::Inconclusive;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::adjusted;

    #[test]
    fn the_smallest_is_multiplied_by_their_number() {
        // The example of R's p.adjust(c(0.01, 0.04, 0.03, 0.005), "holm").
        let found = adjusted(&[0.01, 0.04, 0.03, 0.005]);
        for (is, should) in found.iter().zip([0.03, 0.06, 0.06, 0.02]) {
            assert!((is - should).abs() < 1e-12, "{found:?}");
        }
        assert_eq!(adjusted(&[0.6, 0.7]), [1.0, 1.0]);
        assert_eq!(adjusted(&[]), Vec::<f64>::new());
    }
}
