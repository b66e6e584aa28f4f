//! XPS that sends from a CPU by another queue than the one whose interrupt the CPU serves.
//!
//! Input: `xps_cpus` and `xps_rxqs` of each transmit queue, the CPU of the receive interrupt of the
//! same number, and whether sent packets were measured to leave their core. Output: one finding for
//! each NIC, with the masks that give every CPU the queue that is nearest to it.
//!
//! Rules: Documentation/networking/scaling.rst (XPS: a CPU maps onto the queue whose completions
//! it or its cache serves), Cloudflare's "Perfect locality" (transmit and completion on one CPU).

use crate::context::irq_cpus;
use crate::counters::ratio;
use crate::locality::Elsewhere;
use crate::spans::NOTABLE_SHARE;
use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::{
    CpuId, CpuSet, Direction, Finding, Nearness, Nic, ProposedChange, QueueFile, QueueId,
    SettingFile, Severity, TxQueue,
};
use std::collections::BTreeMap;

pub(super) const CHECK: Check = Check::new(
    "xps_mismatch",
    "XPS that does not match the CPU of the receive queue of the same number",
    run,
);

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    if context.host.topology.online.len() == 1 {
        return outcome;
    }
    for nic in context.hardware_nics().filter(|nic| nic.tx_queues.len() > 1) {
        let targets = targets(context, nic);
        if context.rx_irqs(nic).is_empty() {
            outcome.not_checked(context.no_irqs(nic));
        }
        if nic.tx_queues.iter().any(|queue| queue.xps_cpus.is_none()) {
            let why = context.why_unknown(&format!("nic {}", nic.name), "xps_cpus");
            outcome.not_checked(format!("xps_cpus of {} is unknown{why}", nic.name));
            continue;
        }
        outcome.findings.extend(finding(context, nic, &targets));
    }
    outcome
}

/// For each queue number the one CPU that its receive interrupt goes to.
fn targets(context: &Context<'_>, nic: &Nic) -> BTreeMap<QueueId, CpuId> {
    let target = |(queue, irq)| {
        let cpus = irq_cpus(irq).filter(|cpus| cpus.len() == 1)?;
        Some((queue, cpus.first()?))
    };
    context.rx_irqs(nic).into_iter().filter_map(target).collect()
}

/// The masks for all NICs with several transmit queues of which XPS is known.
pub(super) fn proposed(context: &Context<'_>) -> Vec<ProposedChange> {
    let known = |nic: &&Nic| nic.tx_queues.iter().all(|queue| queue.xps_cpus.is_some());
    let nics = context.hardware_nics().filter(|nic| nic.tx_queues.len() > 1).filter(known);
    nics.flat_map(|nic| changes(context, nic, &by_cpu(nic, &targets(context, nic)))).collect()
}

/// The transmit queues that match by CPU, each with the CPU of its number's receive interrupt.
/// `xps_rxqs` goes before `xps_cpus`, and matches by receive queue instead.
fn by_cpu<'a>(nic: &'a Nic, targets: &BTreeMap<QueueId, CpuId>) -> Vec<(&'a TxQueue, CpuId)> {
    let queues = nic.tx_queues.iter();
    queues
        .filter(|queue| queue.xps_rxqs.as_ref().is_none_or(Vec::is_empty))
        .filter_map(|queue| Some((queue, *targets.get(&queue.queue)?)))
        .collect()
}

fn finding(
    context: &Context<'_>,
    nic: &Nic,
    targets: &BTreeMap<QueueId, CpuId>,
) -> Option<Finding> {
    let queues = by_cpu(nic, targets);
    let set = |queue: &TxQueue| queue.xps_cpus.as_ref().filter(|cpus| !cpus.is_empty()).cloned();
    let wrong: Vec<(&TxQueue, CpuId)> = queues
        .iter()
        .copied()
        .filter(|(queue, target)| set(queue).is_some_and(|cpus| !cpus.contains(*target)))
        .collect();
    let off = nic.tx_queues.iter().all(|queue| set(queue).is_none());
    let own: CpuSet = queues.iter().map(|(_, cpu)| *cpu).collect();
    // Where packets were measured to stay, a mismatch harms nothing.
    let left = context.freed_elsewhere(Direction::Tx).map(|(_, elsewhere)| elsewhere);
    let harmless = left.is_some_and(|left| left.share < NOTABLE_SHARE);
    let (severity, title) = if !wrong.is_empty() {
        let n = text::count(wrong.len() as u64, "transmit queue");
        let sent = context.statistic(nic, "tx_packets").and_then(|n| context.rate(n));
        let severity = if harmless { Severity::Info } else { severity::of_traffic(sent) };
        (severity, format!("XPS of {n} of {} misses the queue's own CPU", nic.name))
    } else if off && own.len() > 1 && !harmless {
        let which = match own.len() == queues.len() {
            true => "each queue has its own CPU".to_owned(),
            false => format!("its queues have {} CPUs", own.len()),
        };
        (Severity::Info, format!("XPS of {} is off, although {which}", nic.name))
    } else {
        return None;
    };
    let mut finding = Finding::new(severity, title).share(
        ratio(wrong.len() as u64, nic.tx_queues.len() as u64).filter(|_| !off),
        "its queues",
    );
    for (queue, target) in wrong.iter().take(8) {
        let cpus = set(queue).unwrap_or_default();
        finding = finding.evidence(format!(
            "tx-{} is for {}, while the interrupt of rx-{} goes to CPU {target}.",
            queue.queue,
            text::cpus(&cpus),
            queue.queue
        ));
    }
    if off {
        finding = finding.evidence(
            "Without XPS flows are hashed over the transmit queues, so completions come on other \
             CPUs than the senders'.",
        );
    }
    if let Some(Elsewhere { all, share, .. }) = left {
        let share = text::percent(share);
        finding = finding.evidence(format!(
            "Of {all} packets sent by all interfaces {share} were freed on another core than \
             they were allocated on."
        ));
    }
    finding.changes = changes(context, nic, &queues);
    Some(finding)
}

/// Gives each online CPU to the queue whose target CPU is nearest, the emptiest of equals.
fn changes(context: &Context<'_>, nic: &Nic, queues: &[(&TxQueue, CpuId)]) -> Vec<ProposedChange> {
    let topology = &context.host.topology;
    let mut masks: Vec<CpuSet> = vec![CpuSet::new(); queues.len()];
    let mut sizes = vec![0usize; queues.len()];
    for cpu in topology.online.iter() {
        let nearest = queues
            .iter()
            .enumerate()
            .min_by_key(|&(i, &(_, target))| {
                let far = topology.nearness(cpu, target).unwrap_or(Nearness::OtherNode);
                (far, sizes.get(i).copied(), i)
            })
            .map(|(i, _)| i);
        if let Some(i) = nearest
            && let (Some(mask), Some(size)) = (masks.get_mut(i), sizes.get_mut(i))
        {
            mask.insert(cpu);
            *size += 1;
        }
    }
    let change = |(&(queue, target), mask): (&(&TxQueue, CpuId), CpuSet)| {
        let before = queue.xps_cpus.as_ref()?;
        (*before != mask).then(|| {
            ProposedChange::new(
                SettingFile::queue(&nic.name, queue.queue, QueueFile::XpsCpus),
                Some(before.to_mask()),
                mask.to_mask(),
                format!(
                    "These CPUs are nearest to CPU {target}, which serves queue {}.",
                    queue.queue
                ),
            )
        })
    };
    queues.iter().zip(masks).filter_map(change).collect()
}
