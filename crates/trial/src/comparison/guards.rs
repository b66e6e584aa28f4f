//! Limits on the cost of a change. Input: the cycles. Output: the effect on loss, CPU time and throughput, and
//! whether it exceeds the limits.

use super::bootstrap::{interval, mean};
use super::{Block, Cycle, Thresholds};
use nearpath_model::{Guard, Guards};

/// Evaluates all cycles.
pub(super) fn guards(cycles: &[Cycle], thresholds: &Thresholds, seed: u64) -> Guards {
    let guard = |value: fn(&Block) -> f64, is_too_much: &dyn Fn(f64, f64) -> bool| {
        let mean_of = |blocks: fn(&Cycle) -> &[Block; 2]| {
            let of = |cycle: &Cycle| mean(&blocks(cycle).map(|block| value(&block)));
            cycles.iter().map(of).collect::<Vec<f64>>()
        };
        let (without, with) = (mean_of(|cycle| &cycle.without), mean_of(|cycle| &cycle.with));
        let differences: Vec<f64> = with.iter().zip(&without).map(|(b, a)| b - a).collect();
        let found = interval(&differences, seed);
        let (without, with) = (mean(&without), mean(&with));
        let sure = found.low > 0.0 || found.high < 0.0;
        Guard { without, with, objects: is_too_much(without, with), sure }
    };
    let lost = |a: f64, b: f64| 100.0 * (b - a) > thresholds.more_lost_percent;
    let cpus = |a: f64, b: f64| b > a * (1.0 + thresholds.more_cpu_percent / 100.0);
    let rate = |a: f64, b: f64| b < a * (1.0 - thresholds.fewer_messages_percent / 100.0);
    Guards {
        lost: guard(|block| block.lost, &lost),
        cpus_busy: guard(|block| block.cpus_busy, &cpus),
        rate_per_s: guard(|block| block.rate_per_s, &rate),
    }
}
