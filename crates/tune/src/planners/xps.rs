//! XPS, so that each CPU sends on the queue whose interrupt is nearest.
//!
//! Input: the planned CPUs of the queues' interrupts. Output: changes of `xps_cpus` that partition the online CPUs
//! among the transmit queues: a CPU's own queue, else one on its core, cache or node, among equals the one with the
//! fewest CPUs.
//!
//! With traffic classes (mqprio), the queues of each class have all CPUs among them.
//!
//! Rules: Documentation/networking/scaling.rst (XPS), `__netdev_pick_tx` and `get_xps_queue` of net/core/dev.c
//! (classes), Cloudflare's "Perfect locality" (send and complete on one CPU).

use super::Planner;
use super::draft::{Draft, DraftChange};
use super::situation::{Situation, cpus};
use nearpath_model::{
    CpuId, CpuSet, LlcId, Nic, NodeId, QueueFile, QueueId, SettingFile, Target, TxQueue,
};
use std::collections::BTreeMap;

pub(super) const PLANNER: Planner = Planner {
    name: "xps",
    plans: "XPS of each transmit queue to the CPUs nearest to its interrupt",
    run,
};

fn run(situation: &Situation<'_>, draft: &mut Draft) {
    if situation.host.topology.online.len() < 2 {
        return;
    }
    for nic in situation.hardware().filter(|nic| nic.tx_queues.len() > 1) {
        match irq_cpus(situation, draft, nic) {
            Ok(irq_cpus) => plan(situation, draft, nic, &irq_cpus),
            Err(reason) => draft.note(format!("no XPS of {}: {reason}", nic.name)),
        }
    }
}

/// The CPU of each transmit queue: that of the receive interrupt with the same number, else its own.
fn irq_cpus<'a>(
    situation: &Situation<'_>,
    draft: &Draft,
    nic: &'a Nic,
) -> Result<Vec<(&'a TxQueue, CpuId)>, String> {
    if nic.tx_queues.iter().any(|queue| queue.xps_cpus.is_none()) {
        return Err("its xps_cpus are unknown".to_owned());
    }
    if nic.tx_queues.iter().any(|queue| queue.xps_rxqs.as_ref().is_some_and(|q| !q.is_empty())) {
        return Err("it uses receive queues (xps_rxqs)".to_owned());
    }
    let rx: BTreeMap<QueueId, _> =
        nic.rx_queues.iter().map(|queue| (queue.queue, queue.irq)).collect();
    let irq_cpu = |queue: &'a TxQueue| {
        let number = rx.get(&queue.queue).copied().flatten().or(queue.irq)?;
        let irq = situation.irq(number)?;
        let cpus = draft.irq_cpus(irq).filter(|cpus| cpus.len() == 1)?;
        Some((queue, cpus.first()?))
    };
    let irq_cpus: Option<Vec<_>> = nic.tx_queues.iter().map(irq_cpu).collect();
    irq_cpus.ok_or_else(|| "the CPUs of its queues' interrupts are unknown".to_owned())
}

fn plan(situation: &Situation<'_>, draft: &mut Draft, nic: &Nic, irq_cpus: &[(&TxQueue, CpuId)]) {
    let classes = by_class(situation, nic, irq_cpus);
    let masks = classes.iter().flat_map(|queues| queues.iter().zip(partition(situation, queues)));
    for (&(queue, irq_cpu), mask) in masks {
        let Some(before) = queue.xps_cpus.as_ref().filter(|before| **before != mask) else {
            continue;
        };
        let number = queue.queue;
        let target = Target::from(SettingFile::queue(&nic.name, number, QueueFile::XpsCpus));
        let now = if before.is_empty() {
            "currently a hash selects the queue".to_owned()
        } else {
            format!("currently {}", cpus(before))
        };
        draft.add(DraftChange {
            id: format!("{}/tx-{number}/xps_cpus", nic.name),
            finding: situation.asked_by(&target),
            target,
            before: before.to_mask().into(),
            after: mask.to_mask().into(),
            why: format!(
                "{} should send on the queue with the nearest interrupt, queue {number} of {} on \
                 CPU {irq_cpu}; {now}",
                cpus(&mask),
                nic.name
            ),
        });
    }
}

/// The queues by traffic class (mqprio): a sender's CPU selects among those of the packet's class, so that each class
/// needs all CPUs. Queues of no class send nothing, and have no XPS.
fn by_class<'a>(
    situation: &Situation<'_>,
    nic: &Nic,
    irq_cpus: &[(&'a TxQueue, CpuId)],
) -> Vec<Vec<(&'a TxQueue, CpuId)>> {
    let Some(classes) = situation.request.system.traffic_classes(&nic.name) else {
        return vec![irq_cpus.to_vec()];
    };
    let mut queues: BTreeMap<u32, Vec<(&TxQueue, CpuId)>> = BTreeMap::new();
    for &(queue, cpu) in irq_cpus {
        if let Some(class) = classes.get(&queue.queue) {
            queues.entry(*class).or_default().push((queue, cpu));
        }
    }
    queues.into_values().collect()
}

/// The online CPUs, each in the set of its nearest queue.
fn partition(situation: &Situation<'_>, irq_cpus: &[(&TxQueue, CpuId)]) -> Vec<CpuSet> {
    let topology = &situation.host.topology;
    let mut near = Near::default();
    for (i, &(_, irq_cpu)) in irq_cpus.iter().enumerate() {
        near.cpus.entry(irq_cpu).or_default().push(i);
        let Some(cpu) = topology.cpu(irq_cpu) else { continue };
        near.cores.entry(cpu.siblings.first().unwrap_or(irq_cpu)).or_default().push(i);
        cpu.llc.into_iter().for_each(|llc| near.llcs.entry(llc).or_default().push(i));
        cpu.node.into_iter().for_each(|node| near.nodes.entry(node).or_default().push(i));
    }
    let all: Vec<usize> = (0..irq_cpus.len()).collect();
    let mut masks = vec![CpuSet::new(); irq_cpus.len()];
    let mut sizes = vec![0usize; irq_cpus.len()];
    // CPUs that handle a queue are assigned before others share it.
    let (at_home, others): (Vec<CpuId>, Vec<CpuId>) =
        topology.online.iter().partition(|cpu| near.cpus.contains_key(cpu));
    for cpu in at_home.into_iter().chain(others) {
        let facts = topology.cpu(cpu);
        let core = facts.and_then(|facts| facts.siblings.first()).unwrap_or(cpu);
        let nearest = near
            .cpus
            .get(&cpu)
            .or_else(|| near.cores.get(&core))
            .or_else(|| near.llcs.get(&facts?.llc?))
            .or_else(|| near.nodes.get(&facts?.node?))
            .unwrap_or(&all);
        let emptiest = nearest.iter().copied().min_by_key(|&i| (sizes.get(i).copied(), i));
        if let Some(i) = emptiest
            && let (Some(mask), Some(size)) = (masks.get_mut(i), sizes.get_mut(i))
        {
            mask.insert(cpu);
            *size += 1;
        }
    }
    masks
}

/// Queues by the CPU of their interrupt.
#[derive(Default)]
struct Near {
    cpus: BTreeMap<CpuId, Vec<usize>>,
    cores: BTreeMap<CpuId, Vec<usize>>,
    llcs: BTreeMap<LlcId, Vec<usize>>,
    nodes: BTreeMap<NodeId, Vec<usize>>,
}
