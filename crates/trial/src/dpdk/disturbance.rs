//! What disturbed the workers of an application over several blocks, and what its vhost threads did.
//!
//! Input: the blocks of a scenario, each with a process of its own. Output: rates and shares.

use super::{DpdkBlock, DpdkDisturbance, DpdkOther, DpdkVhost};
use crate::dpdk::reading::WorkerReading;
use nearpath_model::{CpuSet, CpuTask};
use std::collections::BTreeMap;

/// Tasks named for each worker.
const OTHERS: usize = 3;
/// vhost threads, whose names end with the id of their process.
const VHOST: &str = "vhost";

/// Sums of one worker.
struct Sums {
    cpus: CpuSet,
    seconds: f64,
    /// Interrupts, involuntary switches, nanoseconds waited.
    counts: [Option<u64>; 3],
    /// Time in which tasks on its CPUs were observed, and theirs in ns by name.
    observed_s: f64,
    others: BTreeMap<String, u64>,
}

fn counts(worker: &WorkerReading) -> [Option<u64>; 3] {
    [worker.interrupts, worker.involuntary, worker.waited_ns]
}

/// The workers by lcore.
pub(super) fn disturbances(blocks: &[&DpdkBlock]) -> Vec<DpdkDisturbance> {
    let mut by_lcore: BTreeMap<u32, Sums> = BTreeMap::new();
    for block in blocks {
        for after in &block.after.workers {
            let before = block.before.workers.iter().find(|before| before.lcore == after.lcore);
            let Some(before) = before else { continue };
            let sums = by_lcore.entry(after.lcore).or_insert_with(|| Sums {
                cpus: after.cpus.clone(),
                seconds: 0.0,
                counts: [Some(0); 3],
                observed_s: 0.0,
                others: BTreeMap::new(),
            });
            sums.seconds += block.seconds();
            let pairs = counts(before).into_iter().zip(counts(after));
            for (sum, (before, after)) in sums.counts.iter_mut().zip(pairs) {
                let more = before.zip(after).map(|(before, after)| after.saturating_sub(before));
                *sum = sum.zip(more).map(|(sum, more)| sum.saturating_add(more));
            }
            sums.add_tasks(block);
        }
    }
    by_lcore.into_iter().map(|(lcore, sums)| sums.disturbance(lcore)).collect()
}

impl Sums {
    fn add_tasks(&mut self, block: &DpdkBlock) {
        let Some(observed) = &block.observed else { return };
        self.observed_s += observed.seconds;
        let cpus = observed.cpus.iter().filter(|cpu| self.cpus.contains(cpu.cpu));
        for task in cpus.flat_map(|cpu| &cpu.tasks).filter(|task| !task.is_worker) {
            let ns = self.others.entry(name(task)).or_default();
            *ns = ns.saturating_add(task.ran_ns);
        }
    }

    fn disturbance(self, lcore: u32) -> DpdkDisturbance {
        let seconds = self.seconds;
        let [interrupts, involuntary, waited] =
            self.counts.map(|sum| sum.filter(|_| seconds > 0.0).map(|sum| sum as f64 / seconds));
        let is_observed = self.observed_s > 0.0;
        let percent = |ns: u64| ns as f64 / self.observed_s / 1e7;
        let vhost = self.others.get(VHOST).copied().unwrap_or(0);
        let mut others: Vec<(String, u64)> = self.others.into_iter().collect();
        others.sort_by(|(a, ns_a), (b, ns_b)| ns_b.cmp(ns_a).then_with(|| a.cmp(b)));
        others.truncate(OTHERS);
        let other = |(name, ns): (String, u64)| DpdkOther { name, percent: percent(ns) };
        DpdkDisturbance {
            lcore,
            cpus: self.cpus,
            interrupts_per_s: interrupts,
            involuntary_switches_per_s: involuntary,
            waited_percent: waited.map(|ns_per_s| ns_per_s / 1e7),
            vhost_percent: is_observed.then(|| percent(vhost)),
            others: others.into_iter().map(other).collect(),
        }
    }
}

/// The name of a task: each block has other processes, so a vhost thread is without the id of its own.
fn name(task: &CpuTask) -> String {
    let is_vhost = task.comm.strip_prefix("vhost-").is_some_and(|id| id.parse::<u32>().is_ok());
    if is_vhost { VHOST.to_owned() } else { task.comm.clone() }
}

/// The vhost threads; `None` if there were none.
pub(super) fn vhost(blocks: &[&DpdkBlock]) -> Option<DpdkVhost> {
    let threads = blocks.iter().map(|block| block.after.vhost.len()).max().filter(|n| *n > 0)?;
    let (mut cpus, mut seconds) = (CpuSet::new(), 0.0);
    let (mut ran, mut waited) = (Some(0u64), Some(0u64));
    let add = |sum: &mut Option<u64>, before: Option<u64>, after: Option<u64>| {
        let more = before.zip(after).map(|(before, after)| after.saturating_sub(before));
        *sum = sum.zip(more).map(|(sum, more)| sum.saturating_add(more));
    };
    for block in blocks {
        seconds += block.seconds();
        for after in &block.after.vhost {
            cpus = cpus.union(after.cpus.as_ref().unwrap_or(&CpuSet::new()));
            let before = block.before.vhost.iter().find(|before| before.tid == after.tid);
            let Some(before) = before else { continue };
            add(&mut ran, before.ran_ns, after.ran_ns);
            add(&mut waited, before.waited_ns, after.waited_ns);
        }
    }
    let percent =
        |ns: Option<u64>| ns.filter(|_| seconds > 0.0).map(|ns| ns as f64 / seconds / 1e7);
    let (ran_percent, waited_percent) = (percent(ran), percent(waited));
    Some(DpdkVhost { threads, cpus, ran_percent, waited_percent })
}
