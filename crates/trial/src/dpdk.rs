//! Comparison of an application on DPDK with the CPUs of a plan and without: loss and latency of a probe that goes
//! through it, packets that its ports missed, and what disturbed each worker.
//!
//! Input: readings of the application before and after each block, and the block's probes. Output: a table.

use crate::scenarios::{Measured, Scenario, results};
use nearpath_host::parse::parse_interrupts;
use nearpath_host::{Root, run_delay, workers};
use nearpath_model::{Comparison, CpuId, CpuSet, PollingRole};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Instant;

/// Version of the JSON form of [`DpdkScenariosReport`].
pub const DPDK_SCENARIOS_SCHEMA: u32 = 1;

/// Counters of an application at a moment.
#[derive(Debug, Clone)]
pub struct DpdkReading {
    at: Instant,
    workers: Vec<WorkerCounts>,
    imissed: Option<u64>,
    rx_nombuf: Option<u64>,
}

#[derive(Debug, Clone)]
struct WorkerCounts {
    lcore: u32,
    cpus: CpuSet,
    /// Of the worker's CPUs.
    interrupts: Option<u64>,
    involuntary: Option<u64>,
    waited_ns: Option<u64>,
}

/// Reads a process and its workers without the main lcore; `None` if it has none.
pub fn read_application(root: &Root, pid: u32) -> Option<DpdkReading> {
    let process = workers::read(root).processes.into_iter().find(|process| process.pid == pid)?;
    let interrupts = interrupts_by_cpu(root);
    let sum = |of: fn(&nearpath_model::PollingPort) -> Option<u64>| {
        process.ports.iter().map(of).sum::<Option<u64>>().filter(|_| !process.ports.is_empty())
    };
    let counts = |worker: &nearpath_model::PollingWorker| {
        let (tid, cpus) = (worker.tid?, worker.cpus.clone()?);
        let of_cpus =
            |by_cpu: &BTreeMap<CpuId, u64>| cpus.iter().filter_map(|cpu| by_cpu.get(&cpu)).sum();
        Some(WorkerCounts {
            lcore: worker.lcore,
            interrupts: interrupts.as_ref().map(of_cpus),
            involuntary: involuntary(root, pid, tid),
            waited_ns: run_delay(root, pid, tid).map(|delay| delay.ns),
            cpus,
        })
    };
    let polling = process.workers.iter().filter(|worker| worker.role != PollingRole::Main);
    let workers: Vec<WorkerCounts> = polling.filter_map(counts).collect();
    let (imissed, rx_nombuf) = (sum(|port| port.imissed), sum(|port| port.rx_nombuf));
    (!workers.is_empty()).then(|| DpdkReading { at: Instant::now(), workers, imissed, rx_nombuf })
}

/// All interrupts by CPU, those of devices and of the architecture.
fn interrupts_by_cpu(root: &Root) -> Option<BTreeMap<CpuId, u64>> {
    let found = parse_interrupts(&root.read("/proc/interrupts").ok()?).ok()?;
    let counts =
        found.irqs.iter().map(|irq| &irq.counts).chain(found.arch.iter().map(|irq| &irq.counts));
    let mut by_cpu: BTreeMap<CpuId, u64> = BTreeMap::new();
    for (cpu, count) in counts.flatten() {
        let sum = by_cpu.entry(*cpu).or_default();
        *sum = sum.saturating_add(*count);
    }
    Some(by_cpu)
}

/// `nonvoluntary_ctxt_switches` of a thread (fs/proc/array.c): another task took its CPU.
fn involuntary(root: &Root, pid: u32, tid: u32) -> Option<u64> {
    let status = root.text(&format!("/proc/{pid}/task/{tid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"))?;
    line.trim().parse().ok()
}

/// A block: its probes, and the application before and after it.
#[derive(Debug, Clone)]
pub struct DpdkBlock {
    /// Whether the application had the CPUs of the plan.
    pub is_planned: bool,
    /// The probes.
    pub measured: Measured,
    /// Counters before.
    pub before: DpdkReading,
    /// Counters after.
    pub after: DpdkReading,
}

/// The application with the plan and without.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DpdkScenariosReport {
    /// Version of this form.
    pub schema: u32,
    /// The command.
    pub application: String,
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
    /// Packets that NICs dropped as a queue was full; `None` if no port counts them.
    pub imissed: Option<u64>,
    /// Packets dropped as no buffer was free.
    pub rx_nombuf: Option<u64>,
    /// What disturbed each worker.
    pub workers: Vec<DpdkDisturbance>,
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
}

/// The table.
pub fn dpdk_results(blocks: &[DpdkBlock]) -> Vec<DpdkScenarioResult> {
    let of = |is_planned: bool| {
        if is_planned { Scenario::FullOptimisation } else { Scenario::NoBinding }
    };
    let measured: Vec<(Scenario, Measured)> =
        blocks.iter().map(|block| (of(block.is_planned), block.measured.clone())).collect();
    let rows = results(&[of(false), of(true)], &measured);
    let row = |(row, is_planned): (crate::scenarios::ScenarioResult, bool)| {
        let blocks: Vec<&DpdkBlock> =
            blocks.iter().filter(|block| block.is_planned == is_planned).collect();
        let sum = |of: fn(&DpdkReading) -> Option<u64>| {
            let more =
                |block: &&DpdkBlock| Some(of(&block.after)?.saturating_sub(of(&block.before)?));
            blocks.iter().map(more).sum::<Option<u64>>()
        };
        DpdkScenarioResult {
            scenario: if is_planned { DpdkScenario::WithPlan } else { DpdkScenario::WithoutPlan },
            count: row.count,
            lost: row.lost,
            percentiles: row.percentiles,
            max_ns: row.max_ns,
            p99_of_blocks: row.p99_of_blocks,
            against_without_plan: row.against_no_binding,
            imissed: sum(|reading| reading.imissed),
            rx_nombuf: sum(|reading| reading.rx_nombuf),
            workers: disturbances(&blocks),
        }
    };
    rows.into_iter().zip([false, true]).map(row).collect()
}

/// Sums over blocks, each of a process of its own, as rates.
fn disturbances(blocks: &[&DpdkBlock]) -> Vec<DpdkDisturbance> {
    let mut by_lcore: BTreeMap<u32, (CpuSet, f64, [Option<u64>; 3])> = BTreeMap::new();
    for block in blocks {
        let seconds = block.after.at.duration_since(block.before.at).as_secs_f64();
        for after in &block.after.workers {
            let before = block.before.workers.iter().find(|before| before.lcore == after.lcore);
            let Some(before) = before else { continue };
            let counts = |its: &WorkerCounts| [its.interrupts, its.involuntary, its.waited_ns];
            let zero = (after.cpus.clone(), 0.0, [Some(0); 3]);
            let (_, all, sums) = by_lcore.entry(after.lcore).or_insert(zero);
            *all += seconds;
            for ((sum, before), after) in sums.iter_mut().zip(counts(before)).zip(counts(after)) {
                let more = before.zip(after).map(|(before, after)| after.saturating_sub(before));
                *sum = sum.zip(more).map(|(sum, more)| sum.saturating_add(more));
            }
        }
    }
    let result = |(lcore, (cpus, seconds, sums)): (u32, (CpuSet, f64, [Option<u64>; 3]))| {
        let [interrupts, involuntary, waited] =
            sums.map(|sum| sum.filter(|_| seconds > 0.0).map(|sum| sum as f64 / seconds));
        DpdkDisturbance {
            lcore,
            cpus,
            interrupts_per_s: interrupts,
            involuntary_switches_per_s: involuntary,
            waited_percent: waited.map(|ns_per_s| ns_per_s / 1e7),
        }
    };
    by_lcore.into_iter().map(result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn reading(
        at: Instant,
        [interrupts, involuntary, waited]: [u64; 3],
        imissed: u64,
    ) -> DpdkReading {
        let worker = WorkerCounts {
            lcore: 1,
            cpus: CpuSet::from_list("3").unwrap(),
            interrupts: Some(interrupts),
            involuntary: Some(involuntary),
            waited_ns: Some(waited),
        };
        DpdkReading { at, workers: vec![worker], imissed: Some(imissed), rx_nombuf: None }
    }

    #[test]
    fn rates_are_of_all_blocks_of_a_scenario() {
        let start = Instant::now();
        let end = start + Duration::from_secs(2);
        let block = |is_planned: bool, more: u64| DpdkBlock {
            is_planned,
            measured: Measured {
                sent: 10,
                lost: more,
                histogram: vec![(1000, 10 - more)],
                ..Measured::default()
            },
            before: reading(start, [100, 5, 1_000], 7),
            after: reading(end, [100 + 200 * more, 5 + more, 1_000 + 20_000_000 * more], 7 + more),
        };
        let [without, with] =
            &dpdk_results(&[block(false, 2), block(true, 0), block(true, 0), block(false, 4)])[..]
        else {
            panic!()
        };
        assert_eq!((without.lost, without.imissed, without.rx_nombuf), (6, Some(6), None));
        let worker = &without.workers[0];
        assert_eq!(
            (worker.interrupts_per_s, worker.involuntary_switches_per_s),
            (Some(300.0), Some(1.5))
        );
        assert_eq!(worker.waited_percent, Some(3.0));
        assert_eq!(
            (with.lost, with.imissed, with.workers[0].waited_percent),
            (0, Some(0), Some(0.0))
        );
    }
}
