//! What a change must not cost: in go the cycles, out comes what happened to loss, CPU time and
//! throughput, and whether that is too much.

use super::{Block, Cycle, Demands};
use serde::{Deserialize, Serialize};

/// One of the guards.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Guard {
    /// Without the change.
    pub without: f64,
    /// With it.
    pub with: f64,
    /// Whether that is more than is allowed.
    pub objects: bool,
}

/// All guards, each with the mean of the blocks.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Guards {
    /// Share of messages that were lost.
    pub lost: Guard,
    /// CPU time used by the whole host, in CPUs.
    pub cpus_busy: Guard,
    /// Messages that came through, per second.
    pub rate_per_s: Guard,
}

impl Guards {
    pub(super) fn of(cycles: &[Cycle], demands: &Demands) -> Self {
        let guard = |value: fn(&Block) -> f64, is_too_much: &dyn Fn(f64, f64) -> bool| {
            let without = mean(cycles.iter().flat_map(|cycle| &cycle.without).map(value));
            let with = mean(cycles.iter().flat_map(|cycle| &cycle.with).map(value));
            Guard { without, with, objects: is_too_much(without, with) }
        };
        let lost = |a: f64, b: f64| 100.0 * (b - a) > demands.more_lost_percent;
        let cpus = |a: f64, b: f64| b > a * (1.0 + demands.more_cpu_percent / 100.0);
        let rate = |a: f64, b: f64| b < a * (1.0 - demands.fewer_messages_percent / 100.0);
        Self {
            lost: guard(|block| block.lost, &lost),
            cpus_busy: guard(|block| block.cpus_busy, &cpus),
            rate_per_s: guard(|block| block.rate_per_s, &rate),
        }
    }

    /// Whether any of them objects.
    pub fn object(&self) -> bool {
        self.lost.objects || self.cpus_busy.objects || self.rate_per_s.objects
    }
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0u32), |(sum, count), value| (sum + value, count + 1));
    if count == 0 { 0.0 } else { sum / f64::from(count) }
}
