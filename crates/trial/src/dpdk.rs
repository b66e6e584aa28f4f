//! Comparison of an application on DPDK with the CPUs of a plan and without, idle and overloaded: loss and latency of a
//! probe that goes through it, its bandwidth, packets that its ports missed, and what disturbed each worker.
//!
//! Input: readings of the application before and after each block, what was observed meanwhile, and the block's probes.
//! Output: a table.

mod disturbance;
mod reading;

use crate::scenarios::{Measured, Scenario, results};
use disturbance::{disturbances, vhost};
use nearpath_model::{Comparison, CpuSet, WorkerCpu};
pub use reading::{DpdkReading, read_application};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of the JSON form of [`DpdkScenariosReport`].
pub const DPDK_SCENARIOS_SCHEMA: u32 = 1;

/// A block: its probes, and the application before and after it.
#[derive(Debug, Clone)]
pub struct DpdkBlock {
    /// Whether the application had the CPUs of the plan.
    pub is_planned: bool,
    /// Whether it ran overloaded.
    pub is_overloaded: bool,
    /// The probes.
    pub measured: Measured,
    /// Bits per second of a TCP stream after the probes; `None`: not measured.
    pub bits_per_s: Option<f64>,
    /// Counters before.
    pub before: DpdkReading,
    /// Counters after.
    pub after: DpdkReading,
    /// What ran on the workers' CPUs; `None` if that could not be observed.
    pub observed: Option<Observed>,
}

/// What ran on the workers' CPUs during a block.
#[derive(Debug, Clone)]
pub struct Observed {
    /// Length of the observation.
    pub seconds: f64,
    /// The CPUs.
    pub cpus: Vec<WorkerCpu>,
}

impl DpdkBlock {
    /// Between its readings.
    fn seconds(&self) -> f64 {
        self.after.at.duration_since(self.before.at).as_secs_f64()
    }
}

/// The application with the plan and without.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DpdkScenariosReport {
    /// Version of this form.
    pub schema: u32,
    /// The command.
    pub application: String,
    /// The command that runs it overloaded; `None`: not compared.
    #[serde(default)]
    pub overloaded: Option<String>,
    /// Where probes go to, through the application.
    pub target: String,
    /// EAL's `--lcores` without the plan: the lowest CPUs.
    pub lcores_without_plan: String,
    /// EAL's `--lcores` of the plan.
    pub lcores_with_plan: String,
    /// Cycles of blocks; each scenario has two in each.
    pub cycles: usize,
    /// Duration of a block in seconds.
    pub block_s: f64,
    /// Without the plan, and with it.
    pub scenarios: Vec<DpdkScenarioResult>,
    /// Notes on the result.
    pub notes: Vec<String>,
}

/// One scenario over all of its blocks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DpdkScenarioResult {
    /// `without_plan` or `with_plan`.
    pub scenario: DpdkScenario,
    /// Whether the application ran overloaded.
    #[serde(default)]
    pub is_overloaded: bool,
    /// Number of answers.
    pub count: u64,
    /// Probes without an answer.
    pub lost: u64,
    /// Latency in nanoseconds by percentile, as far as there are enough samples.
    pub percentiles: BTreeMap<String, u64>,
    /// The longest.
    pub max_ns: Option<u64>,
    /// The 99th percentile of each block, in order.
    pub p99_of_blocks: Vec<u64>,
    /// The 99th percentile relative to that without the plan; `None` with fewer than four cycles.
    pub against_without_plan: Option<Comparison>,
    /// Bits per second of a TCP stream through it, the mean of the blocks in which it was measured.
    #[serde(default)]
    pub bits_per_s: Option<f64>,
    /// The same of each of these blocks, in order.
    #[serde(default)]
    pub bits_per_s_of_blocks: Vec<f64>,
    /// Packets that NICs dropped as a queue was full; `None` if no port counts them.
    pub imissed: Option<u64>,
    /// Packets dropped as no buffer was free.
    pub rx_nombuf: Option<u64>,
    /// What disturbed each worker.
    pub workers: Vec<DpdkDisturbance>,
    /// The threads that move packets of virtio-user ports in the kernel; `None`: there are none.
    #[serde(default)]
    pub vhost: Option<DpdkVhost>,
}

/// A scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DpdkScenario {
    /// Lcores on the lowest CPUs, as EAL places them.
    WithoutPlan,
    /// Lcores on the CPUs of the plan.
    WithPlan,
}

/// What disturbed a worker, over all blocks of a scenario; `None` is unknown.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DpdkDisturbance {
    /// Its lcore.
    pub lcore: u32,
    /// Its CPUs.
    pub cpus: CpuSet,
    /// Interrupts of its CPUs per second, with the timer's.
    pub interrupts_per_s: Option<f64>,
    /// How often another task took its CPU, per second.
    pub involuntary_switches_per_s: Option<f64>,
    /// Share of the time in which it waited while another task had its CPU, in percent.
    pub waited_percent: Option<f64>,
    /// Share of the time that the vhost threads of the application had its CPUs, in percent.
    #[serde(default)]
    pub vhost_percent: Option<f64>,
    /// The tasks that had its CPUs longest.
    #[serde(default)]
    pub others: Vec<DpdkOther>,
}

/// Tasks of one name on the CPUs of a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DpdkOther {
    /// Their name; `vhost` is any vhost thread.
    pub name: String,
    /// Share of the time that they had the CPUs, in percent.
    pub percent: f64,
}

/// vhost threads of an application.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DpdkVhost {
    /// How many.
    pub threads: usize,
    /// The CPUs on which they may run.
    pub cpus: CpuSet,
    /// Share of the time that they ran, of all together; may exceed 100.
    pub ran_percent: Option<f64>,
    /// Share of the time that they waited while another task had their CPU, of all together.
    pub waited_percent: Option<f64>,
}

/// The table: without the plan and with it, then the same overloaded.
pub fn dpdk_results(blocks: &[DpdkBlock]) -> Vec<DpdkScenarioResult> {
    let load = |is_overloaded: bool| -> Vec<&DpdkBlock> {
        blocks.iter().filter(|block| block.is_overloaded == is_overloaded).collect()
    };
    let loads = [false, true].map(load).into_iter().filter(|blocks| !blocks.is_empty());
    loads.flat_map(|blocks| results_of_load(&blocks)).collect()
}

/// The rows of blocks with the same load.
fn results_of_load(blocks: &[&DpdkBlock]) -> Vec<DpdkScenarioResult> {
    let of = |is_planned: bool| {
        if is_planned { Scenario::FullOptimisation } else { Scenario::NoBinding }
    };
    let measured: Vec<(Scenario, Measured)> =
        blocks.iter().map(|block| (of(block.is_planned), block.measured.clone())).collect();
    let rows = results(&[of(false), of(true)], &measured);
    let row = |(row, is_planned): (crate::scenarios::ScenarioResult, bool)| {
        let blocks: Vec<&DpdkBlock> =
            blocks.iter().filter(|block| block.is_planned == is_planned).copied().collect();
        let sum = |of: fn(&DpdkReading) -> Option<u64>| {
            let more =
                |block: &&DpdkBlock| Some(of(&block.after)?.saturating_sub(of(&block.before)?));
            blocks.iter().map(more).sum::<Option<u64>>()
        };
        let bits: Vec<f64> = blocks.iter().filter_map(|block| block.bits_per_s).collect();
        DpdkScenarioResult {
            scenario: if is_planned { DpdkScenario::WithPlan } else { DpdkScenario::WithoutPlan },
            is_overloaded: blocks.iter().any(|block| block.is_overloaded),
            count: row.count,
            lost: row.lost,
            percentiles: row.percentiles,
            max_ns: row.max_ns,
            p99_of_blocks: row.p99_of_blocks,
            against_without_plan: row.against_no_binding,
            bits_per_s: (!bits.is_empty()).then(|| bits.iter().sum::<f64>() / bits.len() as f64),
            bits_per_s_of_blocks: bits,
            imissed: sum(|reading| reading.imissed),
            rx_nombuf: sum(|reading| reading.rx_nombuf),
            workers: disturbances(&blocks),
            vhost: vhost(&blocks),
        }
    };
    rows.into_iter().zip([false, true]).map(row).collect()
}

#[cfg(test)]
mod tests;
