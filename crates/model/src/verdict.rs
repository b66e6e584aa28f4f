//! Verdicts: what a trial says of a plan.

use crate::PathKind;
use serde::{Deserialize, Serialize};

/// One block: a stretch of time in one of the two states.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Block {
    /// The metric, of which less is better: a latency in nanoseconds, or the inverse of a rate.
    pub metric: f64,
    /// Share of messages that were lost, 0 to 1.
    pub lost: f64,
    /// CPU time used by the whole host, in CPUs.
    pub cpus_busy: f64,
    /// Messages that came through, per second.
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

/// What is asked of a difference.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Demands {
    /// A smaller difference is none, in percent.
    pub minimum_effect_percent: f64,
    /// How much more may be lost, in percent of all messages.
    pub more_lost_percent: f64,
    /// How much more CPU time may be used, in percent of what was used before.
    pub more_cpu_percent: f64,
    /// How many fewer messages may come through, in percent.
    pub fewer_messages_percent: f64,
}

impl Default for Demands {
    fn default() -> Self {
        Self {
            minimum_effect_percent: 2.0,
            more_lost_percent: 0.1,
            more_cpu_percent: 25.0,
            fewer_messages_percent: 2.0,
        }
    }
}

/// What the change did to the metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The metric fell, beyond noise and minimum effect, and no guard objects.
    Better,
    /// It rose, or a guard objects beyond noise.
    Worse,
    /// Whatever it did is smaller than the minimum effect.
    NoDifference,
    /// Noise hides what it did, or whether a guard objects.
    Inconclusive,
}

/// A comparison of all cycles.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Blocks in all.
    pub blocks: usize,
    /// The metric without the change: geometric mean of its blocks.
    pub baseline: f64,
    /// The metric with it.
    pub with_plan: f64,
    /// The difference in percent of the baseline; negative is better (of a rate positive).
    pub delta_percent: f64,
    /// Where it lies with a confidence of 95 %.
    pub ci95: [f64; 2],
    /// How large a difference the blocks without the change show among themselves, at 95 %.
    pub noise_floor_percent: f64,
    /// What happened to loss, CPU time and throughput.
    pub guards: Guards,
    /// What follows.
    pub verdict: Verdict,
}

/// One of the guards.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Guard {
    /// Without the change.
    pub without: f64,
    /// With it.
    pub with: f64,
    /// Whether that is more than is allowed.
    pub objects: bool,
    /// Whether it is more than noise: the interval of the difference leaves out zero.
    pub sure: bool,
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
    fn all(&self) -> [&Guard; 3] {
        [&self.lost, &self.cpus_busy, &self.rate_per_s]
    }

    /// Whether any of them objects.
    pub fn object(&self) -> bool {
        self.all().into_iter().any(|guard| guard.objects)
    }

    /// Whether any of them objects to what is no noise.
    pub fn are_sure(&self) -> bool {
        self.all().into_iter().any(|guard| guard.objects && guard.sure)
    }
}

/// How often packets went to another CPU, cache or node between two stages; hops for each packet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Hops {
    /// To another CPU.
    pub other_cpu: f64,
    /// To another last-level cache; `None` where caches are not known.
    pub other_llc: Option<f64>,
    /// To another node; `None` where there are none.
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
    /// What was compared; latencies are in nanoseconds, `pps` in packets and `gbps` in 10⁹ bits a second.
    pub metric: String,
    /// Of which packets' path from end to end the metric is; `None` of probes, spans and rates, and in what an
    /// older nearpath wrote.
    #[serde(default)]
    pub path: Option<PathKind>,
    /// The numbers and the verdict.
    #[serde(flatten)]
    pub comparison: Comparison,
    /// Whether packets went elsewhere, which is how a change of placement works; `None` where they could
    /// not be followed.
    pub mechanism: Option<Moved>,
    /// Whether the changes are in force now.
    pub kept: bool,
}

/// How far packets went, without the change and with it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Moved {
    /// Without.
    pub without: Hops,
    /// With.
    pub with: Hops,
}

impl Comparison {
    /// The same numbers for a metric of which more is better, and whose inverse was compared: they are
    /// of the metric itself, and a positive difference is better. Means of logarithms turn round
    /// exactly.
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
