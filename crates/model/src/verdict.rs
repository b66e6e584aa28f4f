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

/// Four blocks, two of each state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cycle {
    /// The blocks without it.
    pub without: [Block; 2],
    /// The blocks with it.
    pub with: [Block; 2],
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
    /// Number of blocks without and with the change.
    pub blocks: usize,
    /// The metric without the change, of the packets of all its blocks.
    pub baseline: f64,
    /// The metric with it.
    pub with_plan: f64,
    /// The difference in percent of the baseline; negative is better.
    pub delta_percent: f64,
    /// 95% confidence interval of the difference; `None` if there are too few cycles.
    pub ci95: Option<[f64; 2]>,
    /// Probability of a difference at least as large if there is none; `None` if there are too few cycles.
    pub p_value: Option<f64>,
    /// The effect on loss, errors, drops, CPU time and throughput.
    pub guards: Guards,
    /// The verdict.
    pub verdict: Verdict,
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
pub const TRIAL_SCHEMA: u32 = 3;

/// A plan that was tried.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrialReport {
    /// [`TRIAL_SCHEMA`] of the nearpath that wrote this.
    pub schema: u32,
    /// What was tried: the ids of the plan's changes.
    pub changes: Vec<String>,
    /// The verdict.
    pub verdict: Verdict,
    /// The kind of packet path that latencies are of, end to end; `None` for probes, spans and rates.
    pub path: Option<PathKind>,
    /// The figures that were compared.
    pub figures: Vec<TrialFigure>,
    /// How it was tried.
    pub design: TrialDesign,
    /// The harm that stopped the trial early.
    pub stopped: Option<Harm>,
    /// Percentiles of the packets without and with the plan; `None` if no figure is of latencies.
    pub tail: Option<Tail>,
    /// Hops of packets, which is how a change of placement works; `None` if packets could not be tracked.
    pub mechanism: Option<Moved>,
    /// Whether the changes are in effect now.
    pub kept: bool,
    /// What cannot be undone, with the reason: it was there from the first switch on, also without the plan.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub one_way: Vec<String>,
}

/// A figure without and with the plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrialFigure {
    /// `p50`, `p99`, `above:1ms`, `lost`, `cpus_busy`, `packets`, or the name of a metric.
    pub name: String,
    /// Its unit.
    pub unit: FigureUnit,
    /// Whether packets are better if it is; one that does not decide can only make the verdict worse.
    pub decides: bool,
    /// Without the plan: of the packets of all blocks, of what is counted the mean of the blocks. `None` without any.
    pub without: Option<f64>,
    /// With it.
    pub with: Option<f64>,
    /// The effect: the ratio of with to without; of `above` and `lost` the difference, in the unit. The median (mean) of
    /// the pairs of blocks.
    pub effect: Option<f64>,
    /// 95% confidence interval of the effect, over all looks and all figures; `None` if there are too few pairs.
    pub ci95: Option<[f64; 2]>,
}

/// How long a lost packet counts as waiting in percentiles, in nanoseconds: a host that loses packets that would otherwise wait
/// is not faster for it.
pub const LOST_NS: f64 = 1e10;

/// The unit of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FigureUnit {
    /// Nanoseconds.
    Ns,
    /// A share of packets, 0 to 1. Its effect is a difference.
    Share,
    /// Lost packets per second. Its effect is a difference.
    LostPerS,
    /// Packets per second; more is better.
    PacketsPerS,
    /// 10⁹ bits per second; more is better.
    Gbps,
    /// CPUs that are busy.
    Cpus,
}

impl FigureUnit {
    /// Whether the effect is a ratio, and not a difference.
    pub fn is_ratio(self) -> bool {
        !matches!(self, Self::Share | Self::LostPerS)
    }
}

/// How a plan was tried.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrialDesign {
    /// Whether it was applied and undone alternately; otherwise applied once, because it interrupts traffic.
    pub alternating: bool,
    /// Number of blocks with the plan. There are as many without it, and two more before the first if they alternate.
    pub blocks: usize,
    /// The order of blocks is reproducible with it.
    pub seed: u64,
    /// Duration of a block in seconds.
    pub block_s: f64,
    /// Time to settle after each switch, in seconds.
    pub settling_s: f64,
    /// Whether that time was measured.
    pub settling_measured: bool,
    /// How long it took, in seconds.
    pub seconds: f64,
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
