//! Places NIC interrupts on CPUs of the NIC's node: one CPU per queue, on separate cores as long as there are some, SMT
//! siblings last.
//!
//! Input: the interrupts of each queue with their affinity, and the NIC's node. Output: changes of `smp_affinity_list`;
//! an interrupt that is alone on a good CPU stays there. All interrupts of a queue number go to one CPU, so that
//! transmit completions run where packets are received.
//!
//! Rules: everoute's analysis of latency tails (the NIC's interrupts to its node), DPVS's guide to worker tuning (not
//! both hardware threads of a core), Documentation/networking/scaling.rst (a queue for each CPU, none on two).

use super::Planner;
use super::cpu_allocator::CpuAllocator;
use super::draft::{Draft, DraftChange};
use super::situation::{Situation, cpus_and_nodes, goes_to};
use nearpath_diagnose::why_near;
use nearpath_model::{CpuId, CpuSet, Irq, Nic, QueueId, SettingFile, Target};
use std::collections::BTreeMap;

pub(super) const PLANNER: Planner = Planner {
    name: "nic_irqs",
    plans: "NIC interrupts to CPUs of the NIC's node, one queue per core",
    run,
};

/// A queue whose interrupts need a CPU.
struct Queue<'a> {
    nic: &'a Nic,
    number: QueueId,
    irqs: Vec<&'a Irq>,
    /// Index into the pools.
    pool: usize,
}

fn run(situation: &Situation<'_>, draft: &mut Draft) {
    let mut places = CpuAllocator::new(&situation.host.topology);
    // CPUs of other NICs are taken.
    for nic in situation.other_hardware() {
        for irqs in situation.queue_irqs(nic).values() {
            irqs.iter().find_map(|irq| only_cpu(irq)).into_iter().for_each(|cpu| places.take(cpu));
        }
    }
    // So are those placed by earlier planners.
    for irq in draft.planned_irqs() {
        draft.placed(irq).into_iter().for_each(|cpu| places.take(cpu));
    }
    let mut pools: Vec<Vec<CpuId>> = Vec::new();
    if situation.hardware().next().is_none() && draft.queues_reset().is_empty() {
        draft.note("no interface with its own interrupts");
    }
    let mut queues = Vec::new();
    for nic in situation.hardware() {
        let pool = situation.interrupt_cpus(nic);
        let mut of_nic = situation.queue_irqs(nic);
        let has_irqs = !of_nic.is_empty();
        of_nic.retain(|_, irqs| irqs.iter().all(|irq| draft.placed(irq.irq).is_none()));
        if !has_irqs {
            draft.note(format!("the interrupts of the queues of {} are unknown", nic.name));
        } else if pool.is_empty() {
            draft.note(format!("no CPU near {} is left for its interrupts", nic.name));
        } else {
            notes(nic, of_nic.len(), pool.len(), situation, draft);
            let queue = |(number, irqs)| Queue { nic, number, irqs, pool: pools.len() };
            queues.extend(of_nic.into_iter().map(queue));
            pools.push(pool);
        }
    }
    // Well placed queues first, so that no other gets their CPU; where CPUs take several queues, the
    // second on a CPU comes after all first ones.
    let cores_do = cores(situation, &pools) >= queues.len();
    let shares = shares(&pools, &queues);
    for turn in 0..shares.iter().copied().max().unwrap_or(0) {
        queues.retain(|queue| {
            let well = well_placed(queue, &pools, &places, cores_do, turn);
            let may = shares.get(queue.pool).is_some_and(|&share| turn < share);
            let Some(cpu) = well.filter(|_| may) else { return true };
            places.take(cpu);
            queue.irqs.iter().for_each(|irq| draft.place_irq(irq.irq, cpu));
            false
        });
    }
    for queue in &queues {
        let Some(pool) = pools.get(queue.pool) else { continue };
        // Among equal CPUs, prefer the current one.
        let now = queue.irqs.first().and_then(|irq| goes_to(irq)).and_then(CpuSet::first);
        if let Some(cpu) = places.take_best(pool, now) {
            move_to(situation, draft, queue, cpu, places.given(cpu) > 1);
        }
    }
}

fn notes(nic: &Nic, queues: usize, cpus: usize, situation: &Situation<'_>, draft: &mut Draft) {
    if nic.numa_node.is_none() && situation.host.topology.nodes.len() > 1 {
        draft.note(format!("the node of {} is unknown: any CPU counts as near", nic.name));
    }
    if queues > cpus {
        draft.note(format!(
            "{} has {queues} queues for {cpus} CPUs: some CPUs take several",
            nic.name
        ));
    }
}

/// The number of cores in all pools.
fn cores(situation: &Situation<'_>, pools: &[Vec<CpuId>]) -> usize {
    let mut places = CpuAllocator::new(&situation.host.topology);
    let mut cores = 0;
    for &cpu in pools.iter().flatten() {
        cores += usize::from(places.core_is_free(cpu));
        places.take(cpu);
    }
    cores
}

/// The CPU of an interrupt whose affinity is a single CPU.
fn only_cpu(irq: &Irq) -> Option<CpuId> {
    irq.affinity.as_ref().filter(|cpus| cpus.len() == 1)?.first()
}

/// The number of queues per CPU of each pool, over all NICs with the same pool.
fn shares(pools: &[Vec<CpuId>], queues: &[Queue<'_>]) -> Vec<u32> {
    let mut counts: BTreeMap<&[CpuId], usize> = BTreeMap::new();
    for pool in queues.iter().filter_map(|queue| pools.get(queue.pool)) {
        *counts.entry(pool).or_default() += 1;
    }
    let share = |pool: &Vec<CpuId>| {
        let queues = counts.get(pool.as_slice()).copied().unwrap_or(0);
        u32::try_from(queues.div_ceil(pool.len().max(1))).unwrap_or(u32::MAX)
    };
    pools.iter().map(share).collect()
}

/// The CPU that all interrupts of a queue are on already, if it is a good one and has not more than this number of
/// others.
fn well_placed(
    queue: &Queue<'_>,
    pools: &[Vec<CpuId>],
    places: &CpuAllocator<'_>,
    cores_do: bool,
    turn: u32,
) -> Option<CpuId> {
    let cpu = only_cpu(queue.irqs.first()?)?;
    let all_there = queue.irqs.iter().all(|irq| only_cpu(irq) == Some(cpu));
    let in_pool = pools.get(queue.pool)?.contains(&cpu);
    let its_turn = places.given(cpu) == turn && (!cores_do || places.core_is_free(cpu));
    (all_there && in_pool && its_turn).then_some(cpu)
}

fn move_to(
    situation: &Situation<'_>,
    draft: &mut Draft,
    queue: &Queue<'_>,
    cpu: CpuId,
    shared: bool,
) {
    let (name, number) = (&queue.nic.name, queue.number);
    let topology = &situation.host.topology;
    for irq in &queue.irqs {
        let Some(before) = &irq.affinity else {
            draft.note(format!("the affinity of interrupt {} of {name} is unknown", irq.irq));
            continue;
        };
        draft.place_irq(irq.irq, cpu);
        if *before == [cpu].into_iter().collect() {
            continue;
        }
        let target = Target::from(SettingFile::irq_affinity(irq.irq));
        let now = match goes_to(irq).unwrap_or(before) {
            now if now.len() == 1 && now.contains(cpu) => {
                format!("goes there now, but is allowed on {}", cpus_and_nodes(topology, before))
            }
            now => format!("now goes to {}", cpus_and_nodes(topology, now)),
        };
        let near = why_near(topology, cpu, queue.nic.numa_node, name);
        let alone = if shared { "the fewest queues go there" } else { "no other queue goes there" };
        draft.add(DraftChange {
            id: format!("irq-{}", irq.irq),
            finding: situation.asked_by(&target),
            target,
            before: before.to_string().into(),
            after: cpu.to_string().into(),
            why: format!(
                "CPU {cpu} {near}, and {alone}; the interrupt of queue {number} of {name} {now}"
            ),
        });
    }
}
