//! Which share of packets crosses to another CPU, cache or node, from where interrupts, RPS and
//! readers are.
//!
//! In go the queues with their interrupt counts as weights, and a draft; out come the shares. A
//! packet's way has three legs: the NIC's node to the interrupt's CPU, from there to the CPU that
//! RPS gives it to, and to the thread that reads it. Where several CPUs may take it, each is as
//! likely. The last leg counts only for readers that were asked for: of other threads it is not known
//! which packets are theirs.

use super::draft::Draft;
use super::situation::Situation;
use crate::plan::Crossings;
use nearpath_host::{CpuId, CpuSet, Nic, RxQueue};
use std::collections::BTreeMap;

/// What two CPUs may have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bound {
    Cpu,
    Llc,
    Node,
}

/// The shares with a draft applied; with an empty one those of the host as it is.
pub(super) fn crossings(situation: &Situation<'_>, draft: &Draft) -> Crossings {
    let readers = readers(situation, draft);
    let share = |bound| share(situation, draft, readers.as_ref(), bound);
    Crossings {
        other_cpu: share(Bound::Cpu),
        other_llc: share(Bound::Llc),
        other_node: share(Bound::Node),
    }
}

/// The CPUs of all readers, each as often as threads may run there; `None` without readers.
fn readers(situation: &Situation<'_>, draft: &Draft) -> Option<BTreeMap<CpuId, f64>> {
    let mut weights: BTreeMap<CpuId, f64> = BTreeMap::new();
    for worker in situation.workloads.iter().flat_map(|workload| &workload.threads) {
        let cpus = draft.thread_cpus(worker.thread.tid, &worker.cpus);
        let cpus = cpus.intersection(&situation.host.topology.online);
        for cpu in cpus.iter() {
            *weights.entry(cpu).or_default() += 1.0 / cpus.len() as f64;
        }
    }
    if weights.is_empty() { None } else { Some(weights) }
}

fn share(
    situation: &Situation<'_>,
    draft: &Draft,
    readers: Option<&BTreeMap<CpuId, f64>>,
    bound: Bound,
) -> Option<f64> {
    let key = |cpu: CpuId| bound_of(situation, cpu, bound);
    // Readers by what they are in.
    let reading = match readers {
        None => None,
        Some(readers) => {
            let all: f64 = readers.values().sum();
            let mut by_key: BTreeMap<u32, f64> = BTreeMap::new();
            for (&cpu, weight) in readers {
                *by_key.entry(key(cpu)?).or_default() += weight / all;
            }
            Some(by_key)
        }
    };
    let (mut crossed, mut total) = (0.0, 0.0);
    for nic in situation.hardware() {
        for queue in &nic.rx_queues {
            let Some((stays, weight)) =
                stays(situation, draft, nic, queue, reading.as_ref(), bound)
            else {
                // A queue of which nothing is known makes all unknown, unless nothing comes by it.
                return None;
            };
            crossed += weight * (1.0 - stays);
            total += weight;
        }
    }
    // What adding up has left of nothing is nothing.
    (total > 0.0).then(|| (crossed / total * 1e9).round().clamp(0.0, 1e9) / 1e9)
}

/// The share of a queue's packets that stays, and the queue's weight.
fn stays(
    situation: &Situation<'_>,
    draft: &Draft,
    nic: &Nic,
    queue: &RxQueue,
    reading: Option<&BTreeMap<u32, f64>>,
    bound: Bound,
) -> Option<(f64, f64)> {
    let key = |cpu: CpuId| bound_of(situation, cpu, bound);
    let irq = situation.irq(queue.irq?)?;
    // An idle queue counts for as little as one packet, so that a new host has shares as well.
    let weight = irq.counts.values().map(|&count| count as f64).sum::<f64>().max(1.0);
    let arrive = draft.irq_cpus(irq)?;
    let rps = draft.rps_cpus(nic, queue)?.intersection(&situation.host.topology.online);
    let of_arrival = by_key(arrive, key)?;
    let at_home = |key: u32| match (bound, nic.numa_node) {
        (Bound::Node, Some(node)) => key == node.0,
        _ => true,
    };
    let read = |key: u32| reading.map_or(1.0, |by_key| by_key.get(&key).copied().unwrap_or(0.0));
    let stays = if rps.is_empty() {
        // Delivered where it arrives.
        of_arrival.iter().filter(|(key, _)| at_home(**key)).map(|(key, p)| p * read(*key)).sum()
    } else {
        let delivered = by_key(&rps, key)?;
        let both = delivered
            .iter()
            .filter(|(key, _)| at_home(**key))
            .map(|(key, p)| p * of_arrival.get(key).copied().unwrap_or(0.0) * read(*key));
        both.sum()
    };
    Some((stays, weight))
}

/// The share of some CPUs that is in each CPU, cache or node.
fn by_key(cpus: &CpuSet, key: impl Fn(CpuId) -> Option<u32>) -> Option<BTreeMap<u32, f64>> {
    let each = 1.0 / cpus.len() as f64;
    let mut shares = BTreeMap::new();
    for cpu in cpus.iter() {
        *shares.entry(key(cpu)?).or_default() += each;
    }
    Some(shares)
}

/// The number of the CPU, cache or node that a CPU is; on a host without nodes all are on one.
fn bound_of(situation: &Situation<'_>, cpu: CpuId, bound: Bound) -> Option<u32> {
    let topology = &situation.host.topology;
    match bound {
        Bound::Cpu => Some(cpu.0),
        Bound::Llc => topology.llc_of(cpu).map(|llc| llc.0),
        Bound::Node if topology.nodes.is_empty() => Some(0),
        Bound::Node => topology.node_of(cpu).map(|node| node.0),
    }
}
