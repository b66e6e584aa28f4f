//! Steers classes of received packets (VLAN priority, DSCP, source address) to a CPU each.
//!
//! Input: pairs of a class and a CPU, and the NIC's queues and n-tuple rules. Output, for each VLAN priority on a NIC
//! that takes rules: the feature `rx-ntuple-filter` on, a rule that steers its packets to a queue, and the interrupt of
//! that queue to the CPU. The queue is reserved: the planner of RSS removes it from the indirection table. On other
//! NICs, and for other classes, an XDP program ([`super::priority_xdp`]). Then the way back
//! ([`super::priority_egress`]).
//!
//! The priority is the upper three bits of the tag, so the rule compares `vlan PCP<<13/0xe000`. Document 001 uses `vlan
//! 2005 vlan-mask 0xe000`, which does not work: 2005 is decimal and its priority is 0, and ethtool ignores the bits
//! that are set in its mask.
//!
//! Rules: Linaro's latencies to virtual machines, ethtool(8) `-N`, Documentation/networking/scaling.rst.

use super::draft::{Draft, DraftChange};
use super::situation::Situation;
use super::{Planner, priority_egress, priority_xdp};
use nearpath_model::{
    CpuId, CpuSet, Ethtool, Nic, NicSetting, NtupleRule, QueueId, SettingFile, Target, TrafficClass,
};
use std::collections::BTreeSet;

pub(super) const PLANNER: Planner = Planner {
    name: "priority",
    plans: "priorities of received packets to a CPU each, by a queue of their own or an XDP program",
    run,
};

/// The kernel's name of the feature `ntuple` of `ethtool -K`.
pub(super) const FEATURE: &str = "rx-ntuple-filter";
/// The bits of a tag that are the priority.
const PCP_MASK: u16 = 0xe000;

fn run(situation: &Situation<'_>, draft: &mut Draft) {
    let asked = &situation.request.priorities;
    if asked.is_empty() {
        return;
    }
    for nic in situation.hardware() {
        match vlan_priorities(asked)
            .and_then(|all| possible(situation, nic, all.len()).map(|()| all))
        {
            Ok(all) => {
                switch_on(draft, nic);
                for (priority, cpu) in all {
                    lead(situation, draft, nic, priority, cpu);
                }
            }
            Err(reason) => priority_xdp::plan(situation, draft, nic, asked, &reason),
        }
        priority_egress::plan(situation, draft, nic);
    }
}

/// The VLAN priorities, if all classes are such.
fn vlan_priorities(asked: &[(TrafficClass, CpuId)]) -> Result<Vec<(u8, CpuId)>, String> {
    let all = asked.iter().map(|&(class, cpu)| match class {
        TrafficClass::Pcp(pcp) => Ok((pcp, cpu)),
        other => Err(format!("nearpath plans rules for VLAN priorities only, not for {other}")),
    });
    all.collect()
}

/// Whether the NIC can steer packets to queues, according to the facts.
fn possible(situation: &Situation<'_>, nic: &Nic, priorities: usize) -> Result<(), String> {
    if nic.ntuple.is_none() {
        let reason = situation.why_unknown(nic, "ntuple");
        let reason = reason.unwrap_or_else(|| "its driver reports none".to_owned());
        return Err(format!("no n-tuple rules ({reason})"));
    }
    let is_on = nic.offloads.as_ref().and_then(|all| all.get(FEATURE)).copied();
    if is_on == Some(false) && nic.fixed_offloads.as_ref().is_some_and(|all| all.contains(FEATURE))
    {
        return Err(format!("its driver cannot turn {FEATURE} on"));
    }
    if nic.rx_queues.len() <= priorities {
        let queues = nic.rx_queues.len();
        return Err(format!(
            "it has {queues} receive queues, and one must remain for other packets"
        ));
    }
    Ok(())
}

fn switch_on(draft: &mut Draft, nic: &Nic) {
    if nic.offloads.as_ref().and_then(|all| all.get(FEATURE)) == Some(&false) {
        draft.add(DraftChange {
            id: format!("{}/{FEATURE}", nic.name),
            target: NicSetting::new(&nic.name, Ethtool::Feature(FEATURE.to_owned())).into(),
            before: "off".into(),
            after: "on".into(),
            why: format!("required for n-tuple rules on {}", nic.name),
            finding: None,
        });
    }
}

fn lead(situation: &Situation<'_>, draft: &mut Draft, nic: &Nic, priority: u8, cpu: CpuId) {
    let rules = || nic.ntuple.iter().flatten();
    let there = rules().find(|rule| is_of(rule, priority));
    let Some(queue) =
        there.and_then(|rule| rule.queue).or_else(|| free(situation, draft, nic, cpu))
    else {
        return draft.note(format!("the interrupts of the queues of {} are unknown", nic.name));
    };
    draft.reserve(nic.ifindex, queue);
    interrupt(situation, draft, nic, queue, priority, cpu);
    if there.is_some() {
        return;
    }
    let taken: BTreeSet<u32> = rules().map(|rule| rule.location).collect();
    let target = |place: u32| Target::from(NicSetting::new(&nic.name, Ethtool::Rule(place)));
    let place = (0..).find(|place| !taken.contains(place) && !draft.has(&target(*place)));
    let tag = u16::from(priority) << 13;
    draft.add(DraftChange {
        id: format!("{}/priority-{priority}", nic.name),
        target: target(place.unwrap_or(0)),
        before: "none".into(),
        after: format!("ether vlan {tag}/{PCP_MASK:#x} queue {queue}").into(),
        why: format!(
            "packets of VLAN priority {priority} get queue {queue} of {} to themselves, with its interrupt \
             on CPU {cpu}",
            nic.name
        ),
        finding: None,
    });
}

/// Whether a rule steers exactly this priority to a queue.
fn is_of(rule: &NtupleRule, priority: u8) -> bool {
    let tag = u16::from(priority) << 13;
    let vlan = format!("{tag}/{PCP_MASK:#x}");
    rule.flow_type == "ether"
        && rule.queue.is_some()
        && rule.matches.len() == 1
        && rule.matches.get("vlan") == Some(&vlan)
}

/// A queue that is not reserved: one whose interrupt goes to the CPU already, else the last.
fn free(situation: &Situation<'_>, draft: &Draft, nic: &Nic, cpu: CpuId) -> Option<QueueId> {
    let all = nic.rx_queues.iter().filter_map(|queue| {
        let irq = situation.irq(queue.irq?)?;
        let is_free = !draft.reserved(nic.ifindex, queue.queue);
        is_free.then(|| (queue.queue, draft.irq_cpus(irq)))
    });
    let all: Vec<(QueueId, Option<&CpuSet>)> = all.collect();
    let only: CpuSet = [cpu].into_iter().collect();
    let there = all.iter().find(|(_, cpus)| *cpus == Some(&only));
    there.or(all.last()).map(|(queue, _)| *queue)
}

/// The interrupts of a queue to the CPU.
fn interrupt(
    situation: &Situation<'_>,
    draft: &mut Draft,
    nic: &Nic,
    queue: QueueId,
    priority: u8,
    cpu: CpuId,
) {
    let only: CpuSet = [cpu].into_iter().collect();
    for irq in situation.queue_irqs(nic).remove(&queue).unwrap_or_default() {
        draft.place_irq(irq.irq, cpu);
        let Some(before) = irq.affinity.as_ref().filter(|before| **before != only) else {
            continue;
        };
        draft.add(DraftChange {
            id: format!("irq-{}", irq.irq),
            target: SettingFile::irq_affinity(irq.irq).into(),
            before: before.to_string().into(),
            after: cpu.to_string().into(),
            why: format!(
                "CPU {cpu} was requested for VLAN priority {priority}, which uses queue {queue} of {}",
                nic.name
            ),
            finding: None,
        });
    }
}
