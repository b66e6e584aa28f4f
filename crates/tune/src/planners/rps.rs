//! RPS and RFS: off where hardware queues do better or where it moves packets away, on where CPUs that could help have no
//! queue.
//!
//! Input: the `rps_cpus` of each queue, the planned interrupts, and the findings. Output: changes of `rps_cpus`, and with
//! RPS or accelerated RFS ([`super::arfs`]) on, changes that turn RFS on.
//!
//! - A NIC with several queues has a CPU for each: RPS would only add a hop. It helps if a queue's CPU is overloaded, or
//!   for throughput if CPUs near the NIC have no queue.
//! - The CPUs that RPS of a queue uses share the last-level cache of its interrupt, where there are several.
//! - Packets of a device without its own queues (VLAN, bond, bridge) were already spread by the NIC below. Tunnels differ:
//!   the NIC may not see the inner flows, so their RPS stays on the node.
//! - Never on an internal OVS port: it has one receive queue, and `get_rps_cpu` (net/core/dev.c) does not steer packets
//!   that arrived on another queue of the NIC.
//!
//! Rule: Documentation/networking/scaling.rst.

use super::draft::{Draft, DraftChange};
use super::situation::{self, Situation, is_hardware};
use super::{Planner, arfs, exclusive_cpus};
use nearpath_diagnose::cpus_near_node;
use nearpath_model::{CpuSet, Goal, Nic, NicKind, QueueFile, RxQueue, SettingFile, Sysctl, Target};

pub(super) const PLANNER: Planner = Planner {
    name: "rps",
    plans: "RPS and RFS on where they help, off where they move packets away",
    run,
};

/// The size of the global flow table.
pub(super) const ENTRIES: Sysctl = Sysctl::RpsSockFlowEntries;
/// The value that scaling.rst suggests for a moderately busy server.
const FLOWS: u32 = 32_768;
/// Maximum depth of stacked devices.
const DEPTH: usize = 8;

fn run(situation: &Situation<'_>, draft: &mut Draft) {
    let mut steering: Vec<(&Nic, &RxQueue)> = Vec::new();
    for nic in situation.nics() {
        if nic.rx_queues.iter().any(|queue| queue.rps_cpus.is_none()) {
            draft.note(format!("rps_cpus of {} is unknown", nic.name));
        } else if is_hardware(nic) {
            let helpers = helpers(situation, draft, nic);
            if helpers.is_empty() {
                without(situation, draft, nic);
            } else {
                put_on(situation, draft, nic, &helpers);
            }
            if arfs::plan(situation, draft, nic) || !helpers.is_empty() {
                steering.extend(nic.rx_queues.iter().map(|queue| (nic, queue)));
            }
        } else if on(nic).next().is_some() {
            software(situation, draft, nic);
        }
    }
    flows(situation, draft, &steering);
}

/// The queues with RPS on.
fn on(nic: &Nic) -> impl Iterator<Item = (&RxQueue, &CpuSet)> {
    nic.rx_queues.iter().filter_map(|queue| {
        let cpus = queue.rps_cpus.as_ref().filter(|cpus| !cpus.is_empty())?;
        Some((queue, cpus))
    })
}

/// The CPUs for RPS of a NIC; empty if it should be off.
fn helpers(situation: &Situation<'_>, draft: &Draft, nic: &Nic) -> CpuSet {
    let near: CpuSet = situation.interrupt_cpus(nic).into_iter().collect();
    let few_queues = !nic.rx_queues.is_empty() && nic.rx_queues.len() < near.len();
    let asked = situation.proposed_to_turn_on_rps(nic)
        || situation.request.goal == Goal::Throughput
        || ports_above(situation, nic).next().is_some();
    if !few_queues || !asked {
        return CpuSet::new();
    }
    near.difference(&draft.cpus_of_irqs(situation, std::iter::once(nic)))
}

/// The internal OVS ports above a NIC with RPS on.
fn ports_above<'a>(situation: &Situation<'a>, nic: &Nic) -> impl Iterator<Item = &'a Nic> {
    let in_ovs = in_ovs(situation, nic);
    situation.nics().filter(move |port| {
        in_ovs && port.kind == NicKind::OvsInternal && on(port).next().is_some()
    })
}

/// Whether a NIC is a port of an OVS datapath: its master is an OVS device.
fn in_ovs(situation: &Situation<'_>, nic: &Nic) -> bool {
    let is_master = |other: &Nic| {
        nic.master.as_deref() == Some(other.name.as_str()) && other.kind == NicKind::OvsInternal
    };
    situation.host.nics.iter().any(is_master)
}

fn put_on(situation: &Situation<'_>, draft: &mut Draft, nic: &Nic, helpers: &CpuSet) {
    let (name, queues) = (&nic.name, nic.rx_queues.len());
    let ports: Vec<&str> = ports_above(situation, nic).map(|port| port.name.as_str()).collect();
    let mut why = format!(
        "{name} has {queues} receive queues, and {} near it have none",
        situation::cpus(helpers)
    );
    if !ports.is_empty() {
        why += &format!(
            "; set here and not on {}, where only packets of queue 0 would be steered",
            ports.join(", ")
        );
    }
    for queue in &nic.rx_queues {
        // A queue reserved for a priority belongs to its CPU only.
        if !draft.reserved(nic.ifindex, queue.queue) {
            let own = of_its_cache(situation, draft, queue, helpers);
            set(situation, draft, nic, queue, &own, &why);
        }
    }
}

/// Those of the CPUs that share a last-level cache with the CPU of a queue's interrupt, as a packet is in that cache; all
/// of them if none does, or if it is unknown.
fn of_its_cache(
    situation: &Situation<'_>,
    draft: &Draft,
    queue: &RxQueue,
    cpus: &CpuSet,
) -> CpuSet {
    let topology = &situation.host.topology;
    let irq = queue.irq.and_then(|number| situation.irq(number));
    let arrives = irq.and_then(|irq| draft.irq_cpus(irq)).filter(|cpus| cpus.len() == 1);
    let llc = arrives.and_then(CpuSet::first).and_then(|cpu| topology.llc_of(cpu));
    let own: CpuSet =
        cpus.iter().filter(|&cpu| llc.is_some() && topology.llc_of(cpu) == llc).collect();
    if own.is_empty() { cpus.clone() } else { own }
}

/// Turns RPS off on a NIC that does not need it.
fn without(situation: &Situation<'_>, draft: &mut Draft, nic: &Nic) {
    let name = &nic.name;
    let several = nic.rx_queues.len() > 1;
    let near = near(situation, nic);
    for (queue, cpus) in on(nic) {
        if several {
            let why = format!(
                "{name} spreads packets over {} queues itself; RPS moves them to other CPUs, \
                 now {}",
                nic.rx_queues.len(),
                situation::cpus(cpus)
            );
            set(situation, draft, nic, queue, &CpuSet::new(), &why);
        } else {
            stay_near(situation, draft, nic, queue, cpus, &near);
        }
    }
}

/// The CPUs near a NIC that no container has alone.
fn near(situation: &Situation<'_>, nic: &Nic) -> CpuSet {
    let near = cpus_near_node(&situation.host.topology, nic.numa_node);
    near.difference(&exclusive_cpus::of(situation.host))
}

/// Restricts RPS to CPUs near the NIC.
fn stay_near(
    situation: &Situation<'_>,
    draft: &mut Draft,
    nic: &Nic,
    queue: &RxQueue,
    cpus: &CpuSet,
    near: &CpuSet,
) {
    let far = cpus.difference(near);
    let why = if far.is_subset(&exclusive_cpus::of(situation.host)) {
        format!("containers have these alone: {}", situation::cpus(&far))
    } else {
        format!("on another node than {}: {}", nic.name, situation::cpus(&far))
    };
    set(situation, draft, nic, queue, &cpus.intersection(near), &why);
}

/// RPS of a device without its own queues.
fn software(situation: &Situation<'_>, draft: &mut Draft, nic: &Nic) {
    let below = below(situation, nic, DEPTH);
    let names: Vec<&str> = below.iter().map(|nic| nic.name.as_str()).collect();
    let names = names.join(", ");
    let several = below.iter().any(|lower| lower.rx_queues.len() > nic.rx_queues.len().max(1));
    for (queue, cpus) in on(nic) {
        if nic.kind == NicKind::OvsInternal && several {
            let why = format!(
                "{} is an internal OVS port with one receive queue, where the kernel steers only \
                 packets of queue 0 of {names}; RPS belongs on the NIC",
                nic.name
            );
            set(situation, draft, nic, queue, &CpuSet::new(), &why);
        } else if nic.kind == NicKind::Tunnel {
            let Some(lower) = below.first() else { continue };
            let near = near(situation, lower);
            stay_near(situation, draft, nic, queue, cpus, &near);
        } else if several {
            let why = format!("the queues of {names} already spread the packets of {}", nic.name);
            set(situation, draft, nic, queue, &CpuSet::new(), &why);
        } else {
            as_diagnosed(situation, draft, nic, queue);
        }
    }
}

/// Plans the proposal of the diagnosis for a queue: for a device that only passes packets on inside the host, a
/// measurement is required to find where they come from.
fn as_diagnosed(situation: &Situation<'_>, draft: &mut Draft, nic: &Nic, queue: &RxQueue) {
    let target = target(nic, queue, QueueFile::RpsCpus);
    if let Some((_, change)) = situation.proposed(&target)
        && let Some(proposed) = target.set_of(&change.after)
    {
        let after = proposed.difference(&exclusive_cpus::of(situation.host));
        if after.is_empty() && !proposed.is_empty() {
            // A container has all of them alone.
            return;
        }
        let why = change.why.trim_end_matches('.').to_owned();
        set(situation, draft, nic, queue, &after, &why);
    }
}

/// The hardware below a device.
fn below<'a>(situation: &Situation<'a>, nic: &Nic, depth: usize) -> Vec<&'a Nic> {
    let Some(depth) = depth.checked_sub(1) else { return Vec::new() };
    let mut found = Vec::new();
    for other in &situation.host.nics {
        let is_lower = match nic.kind {
            NicKind::OvsInternal => is_hardware(other) && in_ovs(situation, other),
            NicKind::Veth => false,
            _ => {
                nic.link.as_deref() == Some(other.name.as_str())
                    || other.master.as_deref() == Some(nic.name.as_str())
            }
        };
        if !is_lower || other.ifindex == nic.ifindex {
            continue;
        }
        if is_hardware(other) {
            found.push(other);
        } else {
            found.extend(self::below(situation, other, depth));
        }
    }
    found
}

/// Turns RFS on for queues with RPS: each flow goes to the CPU that reads it.
fn flows(situation: &Situation<'_>, draft: &mut Draft, steering: &[(&Nic, &RxQueue)]) {
    let queues = u32::try_from(steering.len()).unwrap_or(u32::MAX);
    if queues == 0 {
        return;
    }
    let entries =
        situation.host.sysctls.get(ENTRIES.name()).and_then(|value| value.parse::<u32>().ok());
    let Some(entries) = entries else {
        draft.note(format!("no RFS: {ENTRIES} is not available"));
        return;
    };
    if entries < FLOWS {
        draft.add(DraftChange {
            id: ENTRIES.to_string(),
            target: ENTRIES.into(),
            before: entries.to_string().into(),
            after: FLOWS.to_string().into(),
            why: "RFS steers each flow to the CPU that reads it; RPS alone spreads by hash"
                .to_owned(),
            finding: situation.asked_by(&ENTRIES.into()),
        });
    }
    let each = (entries.max(FLOWS) / queues).max(1);
    // Rounded down to a power of two, so that the sum does not exceed the table.
    let each = 1 << (u32::BITS - 1 - each.leading_zeros());
    for (nic, queue) in steering {
        let Some(before) = queue.rps_flow_cnt.filter(|&before| before != each) else { continue };
        let target = target(nic, queue, QueueFile::RpsFlowCnt);
        draft.add(DraftChange {
            id: id(nic, queue, QueueFile::RpsFlowCnt),
            finding: situation.asked_by(&target),
            target,
            before: before.to_string().into(),
            after: each.to_string().into(),
            why: format!("the {} RFS flows, divided among {queues} queues", entries.max(FLOWS)),
        });
    }
}

fn set(
    situation: &Situation<'_>,
    draft: &mut Draft,
    nic: &Nic,
    queue: &RxQueue,
    after: &CpuSet,
    why: &str,
) {
    let Some(before) = queue.rps_cpus.as_ref().filter(|before| *before != after) else { return };
    let target = target(nic, queue, QueueFile::RpsCpus);
    draft.add(DraftChange {
        id: id(nic, queue, QueueFile::RpsCpus),
        finding: situation.asked_by(&target),
        target,
        before: before.to_mask().into(),
        after: after.to_mask().into(),
        why: why.to_owned(),
    });
}

fn target(nic: &Nic, queue: &RxQueue, file: QueueFile) -> Target {
    SettingFile::queue(&nic.name, queue.queue, file).into()
}

fn id(nic: &Nic, queue: &RxQueue, file: QueueFile) -> String {
    format!("{}/{}/{file}", nic.name, file.queue(queue.queue))
}
