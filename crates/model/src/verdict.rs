//! Verdicts: the result of trying a plan.

use crate::PathKind;
use serde::{Deserialize, Serialize};

/// What a block contributes to the metric, so that the metric can be computed over several blocks: packets are
/// pooled, not the blocks' figures averaged. Of all of them less is better.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Observed {
    /// A percentile of latencies.
    Latencies {
        /// The share of samples at or below it, 0 to 1.
        percentile: f64,
        /// `(bucket, count)` in the numbering of [`crate::histogram`], ascending.
        buckets: Vec<(usize, u64)>,
    },
    /// The share of samples above a limit.
    Above {
        /// Samples above it; not a whole number, as the limit may lie within a bucket.
        above: f64,
        /// All samples.
        of: u64,
    },
    /// A mean, or the inverse of a rate: a sum divided by a count.
    Ratio {
        /// The sum: nanoseconds of all packets, or seconds of the block.
        sum: f64,
        /// What it is divided by: packets, or 10⁹ bits.
        count: f64,
    },
}

/// One block: a period in one of the two states.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Block {
    /// What it contributes to the metric.
    pub observed: Observed,
    /// Share of messages that were lost, 0 to 1.
    pub lost: f64,
    /// Packets with errors that interfaces count, per packet.
    pub errors: f64,
    /// Packets dropped by interfaces and CPU backlogs, per packet.
    pub drops: f64,
    /// CPU time used by the whole host, in CPUs.
    pub cpus_busy: f64,
    /// Messages delivered per second.
    pub rate_per_s: f64,
}

/// Four blocks: without the change, with it, with it, without it; or with it, without it, without it, with it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cycle {
    /// The blocks without it.
    pub without: [Block; 2],
    /// The blocks with it; in a placebo cycle those in which it was undone again.
    pub with: [Block; 2],
    /// Whether the change was not made: the same writes, the same settling, and no effect.
    pub placebo: bool,
    /// Whether its first and last block are those with it.
    pub with_first: bool,
}

/// Thresholds for a difference.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Thresholds {
    /// Smaller differences are ignored, in percent.
    pub minimum_effect_percent: f64,
    /// Margin of loss, errors and drops, in percent of all messages.
    pub more_lost_percent: f64,
    /// Margin of CPU time, in percent of the baseline.
    pub more_cpu_percent: f64,
    /// Smallest margin of CPU time, in CPUs: on an idle host a percentage of the baseline is nothing.
    pub more_cpus: f64,
    /// Margin of messages delivered, in percent.
    pub fewer_messages_percent: f64,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            minimum_effect_percent: 2.0,
            more_lost_percent: 0.1,
            more_cpu_percent: 25.0,
            more_cpus: 0.1,
            fewer_messages_percent: 5.0,
        }
    }
}

/// The effect of the change on the metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The metric fell by more than noise and minimum effect, and all guards hold.
    Better,
    /// It rose, or a guard is violated.
    Worse,
    /// The effect is smaller than the minimum effect.
    NoDifference,
    /// Noise hides the effect, or whether a guard holds.
    Inconclusive,
}

/// A comparison of all cycles.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Number of blocks without and with the change; those of placebo cycles are not included.
    pub blocks: usize,
    /// The metric without the change, of the packets of all its blocks.
    pub baseline: f64,
    /// The metric with it.
    pub with_plan: f64,
    /// The difference in percent of the baseline; negative is better (for a rate, positive).
    pub delta_percent: f64,
    /// 95% confidence interval of the difference; `None` if there are too few cycles.
    pub ci95: Option<[f64; 2]>,
    /// Probability of a difference at least as large if there is none; `None` if there are too few cycles.
    pub p_value: Option<f64>,
    /// The same, corrected for the number of trials (Holm); `None` for a single trial.
    #[serde(default)]
    pub p_adjusted: Option<f64>,
    /// The comparison of the placebo cycles; `None` if there are too few.
    pub placebo: Option<Placebo>,
    /// Correlation of a block's deviation with the previous block's, -1 to 1; `None` if there are too few.
    pub autocorrelation: Option<f64>,
    /// The effect on loss, errors, drops, CPU time and throughput.
    pub guards: Guards,
    /// The verdict.
    pub verdict: Verdict,
}

/// The A/A control: cycles in which the change is made and undone at once instead of made, so that nothing but the
/// writes and chance can make a difference.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Placebo {
    /// Number of blocks.
    pub blocks: usize,
    /// The difference in percent.
    pub delta_percent: f64,
    /// Its 95% confidence interval.
    pub ci95: [f64; 2],
}

impl Placebo {
    /// Whether there is a difference although nothing was changed.
    pub fn shows_a_difference(&self) -> bool {
        self.ci95[0] > 0.0 || self.ci95[1] < 0.0
    }
}

/// The outcome of a non-inferiority test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GuardState {
    /// The harm is less than the margin (one-sided 95% bound).
    Holds,
    /// It may be more: the bound exceeds the margin.
    NotShown,
    /// It is more than the margin, and more than noise.
    Violated,
}

/// One of the guards.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Guard {
    /// Without the change.
    pub without: f64,
    /// With it.
    pub with: f64,
    /// The harm that is tolerated, in the unit of the two.
    pub margin: f64,
    /// Upper bound of the harm, one-sided 95%; negative if it is a gain, `None` if there are too few cycles.
    pub harm_bound: Option<f64>,
    /// The outcome.
    pub state: GuardState,
}

/// All guards, each with the mean of the blocks.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Guards {
    /// Share of messages that were lost.
    pub lost: Guard,
    /// Packets with errors, per packet.
    pub errors: Guard,
    /// Packets dropped by interfaces and CPU backlogs, per packet.
    pub drops: Guard,
    /// CPU time used by the whole host, in CPUs.
    pub cpus_busy: Guard,
    /// Messages delivered per second.
    pub rate_per_s: Guard,
}

impl Guards {
    fn all(&self) -> [&Guard; 5] {
        [&self.lost, &self.errors, &self.drops, &self.cpus_busy, &self.rate_per_s]
    }

    /// Whether all of them hold.
    pub fn hold(&self) -> bool {
        self.all().into_iter().all(|guard| guard.state == GuardState::Holds)
    }

    /// Whether one of them is violated.
    pub fn are_violated(&self) -> bool {
        self.all().into_iter().any(|guard| guard.state == GuardState::Violated)
    }
}

/// Why a trial was stopped early: harm to live traffic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Harm {
    /// What happened, in one line.
    pub what: String,
    /// Blocks with the change until then, including the one in which it was stopped.
    pub blocks_with: usize,
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
pub const TRIAL_SCHEMA: u32 = 2;

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
    /// How it was tried.
    pub design: TrialDesign,
    /// The harm that stopped the trial early.
    pub stopped: Option<Harm>,
    /// Percentiles of the packets without and with the plan; `None` if the metric is not of latencies.
    pub tail: Option<Tail>,
    /// Hops of packets, which is how a change of placement works; `None` if packets could not be tracked.
    pub mechanism: Option<Moved>,
    /// Whether the changes are in effect now.
    pub kept: bool,
    /// What cannot be undone, with the reason: it was there from the first switch on, also without the plan.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub one_way: Vec<String>,
}

/// How a plan was tried.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrialDesign {
    /// Whether it was applied and undone alternately; otherwise applied once, because it interrupts traffic.
    pub alternating: bool,
    /// The order of blocks is reproducible with it.
    pub seed: u64,
    /// Duration of a block in seconds, of the last if blocks were lengthened.
    pub block_s: f64,
    /// Time to settle after each switch, in seconds.
    pub settling_s: f64,
    /// Whether that time was measured.
    pub settling_measured: bool,
}

/// The tail of latencies, pooled over all blocks of a kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tail {
    /// Number of samples without the plan and with it.
    pub count: [u64; 2],
    /// `percentile`, without and with: nanoseconds; only those with at least ten samples beyond on both sides.
    pub percentiles: Vec<(String, [f64; 2])>,
    /// Shares of the samples above a limit in nanoseconds, without and with.
    pub above: Vec<(u64, [f64; 2])>,
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
        let ends = |[low, high]: [f64; 2]| [turned(high), turned(low)];
        let placebo = self.placebo.map(|placebo| Placebo {
            delta_percent: turned(placebo.delta_percent),
            ci95: ends(placebo.ci95),
            ..placebo
        });
        Self {
            baseline: 1.0 / self.baseline,
            with_plan: 1.0 / self.with_plan,
            delta_percent: turned(self.delta_percent),
            ci95: self.ci95.map(ends),
            placebo,
            ..self
        }
    }
}
