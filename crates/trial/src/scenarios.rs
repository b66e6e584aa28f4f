//! Comparison of placement scenarios: an application not bound, bound to CPUs, bound to CPUs and memory, and in
//! addition with the host's interrupts and steering placed nearby; and, as in the chapter on NUMA for SR-IOV paths,
//! bound to the wrong node, with its memory alone there, and with AutoNUMA on and off.
//!
//! Input: blocks of each scenario, measured alternately. Output: a table. The order is 1 2 3 4 4 3 2 1 and so
//! on, so that linear drift cancels out, and disturbances of the host affect all of them.

use crate::comparison::{CYCLES_MIN, compare};
use crate::latency::samples_beyond;
use nearpath_model::histogram::by_number;
use nearpath_model::{Block, Comparison, CpuSet, Cycle, NodeId, Observed, Thresholds};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;

/// Version of the JSON form of [`ScenariosReport`].
pub const SCENARIOS_SCHEMA: u32 = 1;
/// The percentiles reported, with the number of samples that must lie beyond.
const PERCENTILES: [(&str, f64); 4] = [("50", 0.5), ("90", 0.9), ("99", 0.99), ("99.9", 0.999)];
/// A scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scenario {
    /// The scheduler places the application.
    NoBinding,
    /// It runs on the CPUs near the NIC.
    CpuBinding,
    /// And its memory is on that node.
    CpuAndMemoryBinding,
    /// And interrupts, RPS and XPS are placed by a plan.
    FullOptimisation,
    /// It runs on another node than the NIC's, with its memory there.
    WrongNode,
    /// It runs near the NIC, and its memory is on another node.
    WrongMemory,
    /// The scheduler places it, and AutoNUMA moves its pages.
    AutoNuma,
    /// The scheduler places it, without AutoNUMA.
    NoAutoNuma,
}

impl Scenario {
    /// All scenarios, in the order of the table.
    pub const ALL: [Self; 8] = [
        Self::NoBinding,
        Self::CpuBinding,
        Self::CpuAndMemoryBinding,
        Self::FullOptimisation,
        Self::WrongNode,
        Self::WrongMemory,
        Self::AutoNuma,
        Self::NoAutoNuma,
    ];

    /// Whether it takes several nodes to differ from another.
    pub fn takes_nodes(self) -> bool {
        matches!(self, Self::WrongNode | Self::WrongMemory | Self::AutoNuma | Self::NoAutoNuma)
    }

    /// Display name.
    pub fn name(self) -> &'static str {
        match self {
            Self::NoBinding => "no binding",
            Self::CpuBinding => "CPU binding",
            Self::CpuAndMemoryBinding => "CPU + memory binding",
            Self::FullOptimisation => "full optimisation",
            Self::WrongNode => "wrong node",
            Self::WrongMemory => "CPU binding, wrong memory",
            Self::AutoNuma => "no binding, AutoNUMA on",
            Self::NoAutoNuma => "no binding, AutoNUMA off",
        }
    }
}

/// The order of the blocks: each scenario twice a cycle, there and back.
pub fn order<T: Copy>(scenarios: &[T], cycles: usize) -> Vec<T> {
    let there = || scenarios.iter().copied();
    let cycle = |_| -> Vec<T> {
        match fastrand::bool() {
            true => there().chain(there().rev()).collect(),
            false => there().rev().chain(there()).collect(),
        }
    };
    (0..cycles).flat_map(cycle).collect()
}

/// A measured block.
#[derive(Debug, Clone, Default)]
pub struct Measured {
    /// Requests or probes sent.
    pub sent: u64,
    /// Those without an answer.
    pub lost: u64,
    /// Duration.
    pub seconds: f64,
    /// Busy CPUs meanwhile, of the whole host.
    pub cpus_busy: f64,
    /// Share of the application's memory, without pages of files, that is not on the NIC's node, at the end; `None` if
    /// unknown.
    pub memory_elsewhere: Option<f64>,
    /// Cache misses of the application meanwhile; `None` if no PMU counts them.
    pub cache_misses: Option<u64>,
    /// `[upper_ns, count]` of each bucket that is not empty, ascending.
    pub histogram: Vec<(u64, u64)>,
}

/// The scenarios side by side.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScenariosReport {
    /// Version of this form.
    pub schema: u32,
    /// What was measured: `bench reflect`, or the command of the application.
    pub application: String,
    /// The address on which it listened.
    pub target: String,
    /// The interface whose node it was bound to.
    pub nic: Option<String>,
    /// The NUMA node of the interface.
    pub node: Option<NodeId>,
    /// The CPUs to which it was bound; `None`: there was no node to bind it to.
    pub cpus: Option<CpuSet>,
    /// Ids of the changes of the full optimisation.
    pub changes: Vec<String>,
    /// Cycles of blocks; each scenario has two in each.
    pub cycles: usize,
    /// Duration of a block in seconds.
    pub block_s: f64,
    /// The rows of the table.
    pub scenarios: Vec<ScenarioResult>,
    /// Notes on the result.
    pub notes: Vec<String>,
}

/// One scenario over all of its blocks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScenarioResult {
    /// The scenario.
    pub scenario: Scenario,
    /// Number of answers.
    pub count: u64,
    /// Requests or probes without an answer.
    pub lost: u64,
    /// Answers per second.
    #[serde(default)]
    pub per_s: f64,
    /// Share of the application's memory, without pages of files, that is not on the NIC's node, the mean of the
    /// blocks; `None` if unknown.
    #[serde(default)]
    pub memory_elsewhere: Option<f64>,
    /// Cache misses of the application for each answer; `None` if no PMU counts them.
    #[serde(default)]
    pub cache_misses_per_answer: Option<f64>,
    /// By percentile, as far as there are enough samples.
    pub percentiles: BTreeMap<String, u64>,
    /// The longest.
    pub max_ns: Option<u64>,
    /// The 99th percentile of each block, in order.
    pub p99_of_blocks: Vec<u64>,
    /// The 99th percentile relative to that without binding; `None` for the latter, and with fewer than four
    /// cycles.
    pub against_no_binding: Option<Comparison>,
}

/// The table, from blocks in the order of [`order`].
pub fn results(scenarios: &[Scenario], blocks: &[(Scenario, Measured)]) -> Vec<ScenarioResult> {
    let of = |wanted: Scenario| -> Vec<&Measured> {
        let wanted = blocks.iter().filter(|(scenario, _)| *scenario == wanted);
        wanted.map(|(_, measured)| measured).collect()
    };
    let without = of(Scenario::NoBinding);
    let row = |&scenario: &Scenario| {
        let blocks = of(scenario);
        let mut merged = BTreeMap::new();
        for &(upper, count) in blocks.iter().flat_map(|block| &block.histogram) {
            *merged.entry(upper).or_insert(0) += count;
        }
        let merged: Vec<(u64, u64)> = merged.into_iter().collect();
        let deep =
            |(name, share): (&str, f64)| Some((name.to_owned(), percentile(&merged, share)?));
        let compared = scenario != Scenario::NoBinding;
        let seconds: f64 = blocks.iter().map(|block| block.seconds).sum();
        let count: u64 = merged.iter().map(|bucket| bucket.1).sum();
        let elsewhere: Option<Vec<f64>> = blocks.iter().map(|b| b.memory_elsewhere).collect();
        let elsewhere = elsewhere.filter(|shares| !shares.is_empty());
        let misses: Option<u64> = blocks.iter().map(|block| block.cache_misses).sum();
        ScenarioResult {
            scenario,
            count,
            per_s: if seconds > 0.0 { count as f64 / seconds } else { 0.0 },
            memory_elsewhere: elsewhere.map(|all| all.iter().sum::<f64>() / all.len() as f64),
            cache_misses_per_answer: misses
                .filter(|_| count > 0)
                .map(|misses| misses as f64 / count as f64),
            lost: blocks.iter().map(|block| block.lost).sum(),
            percentiles: PERCENTILES.into_iter().filter_map(deep).collect(),
            max_ns: merged.last().map(|bucket| bucket.0),
            p99_of_blocks: blocks.iter().filter_map(|b| percentile(&b.histogram, 0.99)).collect(),
            against_no_binding: compared.then(|| against(&without, &blocks)).flatten(),
        }
    };
    scenarios.iter().map(row).collect()
}

/// The latency that a share of the samples does not exceed; `None` if too few samples lie beyond it.
fn percentile(histogram: &[(u64, u64)], share: f64) -> Option<u64> {
    let count: u64 = histogram.iter().map(|bucket| bucket.1).sum();
    let rank = count - samples_beyond(count, share)?;
    let mut seen = 0;
    let found = histogram.iter().find(|bucket| {
        seen += bucket.1;
        seen >= rank
    });
    found.map(|bucket| bucket.0)
}

/// In the buckets of instruments, ascending.
fn numbered(histogram: &[(u64, u64)]) -> Vec<(usize, u64)> {
    let mut numbered = BTreeMap::new();
    by_number(histogram)
        .into_iter()
        .for_each(|(bucket, n)| *numbered.entry(bucket).or_insert(0) += n);
    numbered.into_iter().collect()
}

/// Compares blocks of a scenario with those without binding: a cycle has two of each.
fn against(without: &[&Measured], with: &[&Measured]) -> Option<Comparison> {
    let block = |measured: &Measured| {
        percentile(&measured.histogram, 0.99)?;
        Some(Block {
            observed: Observed::Latencies {
                percentile: 0.99,
                buckets: numbered(&measured.histogram),
            },
            errors: 0.0,
            drops: 0.0,
            lost: measured.lost as f64 / measured.sent.max(1) as f64,
            cpus_busy: measured.cpus_busy,
            rate_per_s: (measured.sent - measured.lost.min(measured.sent)) as f64
                / measured.seconds.max(1e-9),
        })
    };
    let pair = |blocks: &[&Measured]| Some([block(blocks.first()?)?, block(blocks.get(1)?)?]);
    let cycles: Option<Vec<Cycle>> = without
        .chunks_exact(2)
        .zip(with.chunks_exact(2))
        .map(|(without, with)| Some(Cycle { without: pair(without)?, with: pair(with)? }))
        .collect();
    let cycles = cycles.filter(|cycles| cycles.len() >= CYCLES_MIN)?;
    compare(&cycles, &Thresholds::default())
}

/// The interface with an address.
///
/// # Errors
/// An error of the kernel.
pub fn interface_of(address: IpAddr) -> io::Result<Option<String>> {
    let has = |interface: &nix::ifaddrs::InterfaceAddress| {
        let Some(storage) = interface.address else { return false };
        let v4 = storage.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
        let v6 = storage.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip()));
        v4.or(v6) == Some(address)
    };
    let mut all = nix::ifaddrs::getifaddrs()?;
    Ok(all.find(has).map(|interface| interface.interface_name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_model::Verdict;

    fn measured(ns: u64) -> Measured {
        // 980 with the latency, 19 with twice that, one with ten times that.
        let histogram = vec![(ns, 980), (2 * ns, 19), (10 * ns, 1)];
        let memory_elsewhere = Some(0.25);
        let (cpus_busy, cache_misses) = (0.5, Some(4_000));
        Measured {
            sent: 1_001,
            lost: 1,
            seconds: 1.0,
            cpus_busy,
            memory_elsewhere,
            cache_misses,
            histogram,
        }
    }

    #[test]
    fn scenarios_alternate_there_and_back() {
        let [none, cpu, ..] = Scenario::ALL;
        let all = order(&[none, cpu], 100);
        let count = |cycle: [Scenario; 4]| all.chunks(4).filter(|one| *one == cycle).count();
        let (first, second) = (count([none, cpu, cpu, none]), count([cpu, none, none, cpu]));
        assert!(first > 10 && second > 10 && first + second == 100, "{first} and {second}");
        assert_eq!(order(&Scenario::ALL, 3).len(), 48);
    }

    #[test]
    fn blocks_of_a_scenario_are_merged_and_compared() {
        let scenarios = [Scenario::NoBinding, Scenario::CpuBinding];
        let blocks: Vec<(Scenario, Measured)> = order(&scenarios, 6)
            .into_iter()
            .zip(0..)
            .map(|(scenario, number)| {
                let ns = if scenario == Scenario::NoBinding { 2_000 } else { 1_000 };
                (scenario, measured(ns + number % 3))
            })
            .collect();
        let rows = results(&scenarios, &blocks);
        let [none, cpu] = &rows[..] else { panic!("{rows:?}") };
        assert_eq!((none.count, none.lost, none.p99_of_blocks.len()), (12_000, 12, 12));
        assert_eq!((none.per_s, none.memory_elsewhere), (1_000.0, Some(0.25)));
        assert_eq!(none.cache_misses_per_answer, Some(4.0));
        assert!((2_000..=2_002).contains(&none.percentiles["50"]));
        assert!((4_000..=4_004).contains(&none.percentiles["99"]));
        assert!(none.max_ns >= Some(20_000) && none.against_no_binding.is_none());
        let compared = cpu.against_no_binding.as_ref().unwrap();
        assert_eq!(compared.verdict, Verdict::Better);
        assert!((compared.delta_percent + 50.0).abs() < 1.0, "{compared:?}");
    }

    #[test]
    fn too_few_blocks_are_not_compared_and_none_have_no_numbers() {
        let scenarios = [Scenario::NoBinding, Scenario::CpuBinding];
        let blocks: Vec<_> =
            order(&scenarios, 3).into_iter().map(|scenario| (scenario, measured(5))).collect();
        assert!(results(&scenarios, &blocks)[1].against_no_binding.is_none());
        let none = &results(&scenarios, &[])[0];
        assert_eq!((none.count, none.max_ns, none.percentiles.len()), (0, None, 0));
    }

    #[test]
    fn the_loopback_has_its_address() {
        let interface = interface_of("127.0.0.1".parse().unwrap()).unwrap();
        assert_eq!(interface.as_deref(), Some("lo"));
        assert_eq!(interface_of("192.0.2.7".parse().unwrap()).unwrap(), None);
    }
}
