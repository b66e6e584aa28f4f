//! Limits on the cost of a change, as non-inferiority tests. Input: the cycles. Output: for loss, errors, drops, CPU
//! time and throughput, whether the harm is shown to be less than a margin.
//!
//! That no harm was found is not enough: with few or noisy blocks none would ever be. A guard holds if the one-sided
//! 95% bound of the harm is within the margin (ICH E9, Statistical Principles for Clinical Trials, 3.3.2).

use super::jackknife::Estimate;
use super::{Block, Cycle, Thresholds};
use nearpath_model::{Guard, GuardState, Guards};

/// Two-sided share of a one-sided bound of 95%.
const ONE_SIDED: f64 = 0.10;
/// Two-sided share of the interval that must exclude zero for a violation.
const TWO_SIDED: f64 = 0.05;

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len() as f64;
    values.sum::<f64>() / count
}

/// Evaluates all cycles; `widening` is the factor of their error.
pub(super) fn guards(cycles: &[Cycle], thresholds: &Thresholds, widening: f64) -> Guards {
    // `sign` is 1 if more is harmful.
    let guard = |value: fn(&Block) -> f64, sign: f64, margin: &dyn Fn(f64) -> f64| {
        let of = |blocks: &[Block; 2]| f64::midpoint(value(&blocks[0]), value(&blocks[1]));
        let harm: Vec<f64> =
            cycles.iter().map(|cycle| sign * (of(&cycle.with) - of(&cycle.without))).collect();
        let without = mean(cycles.iter().map(|cycle| of(&cycle.without)));
        let with = mean(cycles.iter().map(|cycle| of(&cycle.with)));
        let margin = margin(without);
        let found = Estimate::of_mean(&harm).filter(|_| cycles.len() >= super::CYCLES_MIN);
        let found = found.map(|found| found.widened(widening));
        let harm_bound = found.map(|found| found.interval(ONE_SIDED)[1]);
        let is_certain = found.is_none_or(|found| found.interval(TWO_SIDED)[0] > 0.0);
        let state = match harm_bound {
            Some(bound) if bound <= margin => GuardState::Holds,
            _ if sign * (with - without) > margin && is_certain => GuardState::Violated,
            _ => GuardState::NotShown,
        };
        Guard { without, with, margin, harm_bound, state }
    };
    let lost = |_: f64| thresholds.more_lost_percent / 100.0;
    let share = |percent: f64| move |without: f64| without * percent / 100.0;
    let cpus = |without: f64| share(thresholds.more_cpu_percent)(without).max(thresholds.more_cpus);
    Guards {
        lost: guard(|block| block.lost, 1.0, &lost),
        errors: guard(|block| block.errors, 1.0, &lost),
        drops: guard(|block| block.drops, 1.0, &lost),
        cpus_busy: guard(|block| block.cpus_busy, 1.0, &cpus),
        rate_per_s: guard(
            |block| block.rate_per_s,
            -1.0,
            &share(thresholds.fewer_messages_percent),
        ),
    }
}
