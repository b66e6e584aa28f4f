//! Verdicts: the result of trying a plan.

use crate::PathKind;
use serde::{Deserialize, Serialize};

/// One block: a period in one of the two states.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Block {
    /// The metric, where less is better: a latency in nanoseconds, or the inverse of a rate.
    pub metric: f64,
    /// Share of messages that were lost, 0 to 1.
    pub lost: f64,
    /// CPU time used by the whole host, in CPUs.
    pub cpus_busy: f64,
    /// Messages delivered per second.
    pub rate_per_s: f64,
}

/// Four blocks: without the change, with it, with it, without it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Cycle {
    /// The first and the last block.
    pub without: [Block; 2],
    /// The two between them.
    pub with: [Block; 2],
}

/// Thresholds for a difference.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Thresholds {
    /// Smaller differences are ignored, in percent.
    pub minimum_effect_percent: f64,
    /// Allowed increase of loss, in percent of all messages.
    pub more_lost_percent: f64,
    /// Allowed increase of CPU time, in percent of the baseline.
    pub more_cpu_percent: f64,
    /// Allowed decrease of messages delivered, in percent.
    pub fewer_messages_percent: f64,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            minimum_effect_percent: 2.0,
            more_lost_percent: 0.1,
            more_cpu_percent: 25.0,
            fewer_messages_percent: 2.0,
        }
    }
}

/// The effect of the change on the metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The metric fell by more than noise and minimum effect, and no guard failed.
    Better,
    /// It rose, or a guard failed beyond noise.
    Worse,
    /// The effect is smaller than the minimum effect.
    NoDifference,
    /// Noise hides the effect, or whether a guard failed.
    Inconclusive,
}

/// A comparison of all cycles.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Number of blocks.
    pub blocks: usize,
    /// The metric without the change: geometric mean of its blocks.
    pub baseline: f64,
    /// The metric with it.
    pub with_plan: f64,
    /// The difference in percent of the baseline; negative is better (for a rate, positive).
    pub delta_percent: f64,
    /// 95% confidence interval of the difference.
    pub ci95: [f64; 2],
    /// A/A noise: the difference among the blocks without the change (95% CI).
    pub noise_floor_percent: f64,
    /// The effect on loss, CPU time and throughput.
    pub guards: Guards,
    /// The verdict.
    pub verdict: Verdict,
}

/// One of the guards.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Guard {
    /// Without the change.
    pub without: f64,
    /// With it.
    pub with: f64,
    /// Whether the difference is more than allowed.
    pub objects: bool,
    /// Whether it is more than noise: the confidence interval excludes zero.
    pub sure: bool,
}

/// All guards, each with the mean of the blocks.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Guards {
    /// Share of messages that were lost.
    pub lost: Guard,
    /// CPU time used by the whole host, in CPUs.
    pub cpus_busy: Guard,
    /// Messages delivered per second.
    pub rate_per_s: Guard,
}

impl Guards {
    fn all(&self) -> [&Guard; 3] {
        [&self.lost, &self.cpus_busy, &self.rate_per_s]
    }

    /// Whether any of them failed.
    pub fn object(&self) -> bool {
        self.all().into_iter().any(|guard| guard.objects)
    }

    /// Whether any of them failed by more than noise.
    pub fn are_sure(&self) -> bool {
        self.all().into_iter().any(|guard| guard.objects && guard.sure)
    }
}

/// How often packets changed CPU, cache or node between two stages; hops per packet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Hops {
    /// To another CPU.
    pub other_cpu: f64,
    /// To another last-level cache; `None` if caches are unknown.
    pub other_llc: Option<f64>,
    /// To another node; `None` if there are none.
    pub other_node: Option<f64>,
}

/// Version of the JSON form of [`TrialReport`].
pub const TRIAL_SCHEMA: u32 = 1;

/// A plan that was tried.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrialReport {
    /// [`TRIAL_SCHEMA`] of the nearpath that wrote this.
    pub schema: u32,
    /// What was tried: the ids of the plan's changes.
    pub changes: Vec<String>,
    /// The metric compared; latencies are in nanoseconds, `pps` in packets and `gbps` in 10⁹ bits per second.
    pub metric: String,
    /// The kind of packet path that the metric is of, end to end; `None` for probes, spans and rates, and in
    /// reports of an older nearpath.
    #[serde(default)]
    pub path: Option<PathKind>,
    /// The figures and the verdict.
    #[serde(flatten)]
    pub comparison: Comparison,
    /// Hops of packets, which is how a change of placement works; `None` if packets could not be tracked.
    pub mechanism: Option<Moved>,
    /// Whether the changes are in effect now.
    pub kept: bool,
    /// What cannot be undone, with the reason: it was there from the first switch on, also without the plan.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub one_way: Vec<String>,
}

/// Hops of packets, without the change and with it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Moved {
    /// Without.
    pub without: Hops,
    /// With.
    pub with: Hops,
}

impl Comparison {
    /// The same figures for a metric where more is better, whose inverse was compared: they are of the metric
    /// itself, and a positive difference is better. The inversion of means of logarithms is exact.
    #[must_use]
    pub fn of_rate(self) -> Self {
        let turned = |percent: f64| 100.0 * (1.0 / (1.0 + percent / 100.0) - 1.0);
        let [low, high] = self.ci95;
        Self {
            baseline: 1.0 / self.baseline,
            with_plan: 1.0 / self.with_plan,
            delta_percent: turned(self.delta_percent),
            ci95: [turned(high), turned(low)],
            ..self
        }
    }
}
