//! RPS and RFS: taken off where hardware queues do it better or where it carries packets away, put on
//! where CPUs that could help have no queue.
//!
//! In go each queue's `rps_cpus`, the interrupts as planned, and what the diagnosis found. Out come
//! changes of `rps_cpus`, and with RPS on those that turn RFS on.
//!
//! - A NIC with several queues has a CPU for each: RPS would only add a hop. It helps where a queue's
//!   CPU is overloaded, or for throughput where CPUs near the NIC have no queue.
//! - Of a device without queues of its own (VLAN, bond, bridge) packets were spread by the NIC below.
//!   A tunnel is another matter: the NIC may not see the flows inside, so its RPS stays on the node.
//! - Never on an internal port of OVS: it has one receive queue, and `get_rps_cpu` (net/core/dev.c)
//!   does not steer what came by another queue of the NIC.
//!
//! Rule: Documentation/networking/scaling.rst.

use super::Planner;
use super::draft::{Draft, Wish};
use super::situation::{self, Situation, is_hardware};
use nearpath_diagnose::cpus_near_node;
use nearpath_model::{CpuSet, Goal, Nic, NicKind, RxQueue, SettingFile, Target};

pub(super) const PLANNER: Planner = Planner {
    name: "rps",
    plans: "RPS and RFS where they help, and off where they carry packets away",
    run,
};

/// The sysctl of all flows.
pub(super) const ENTRIES: &str = "net.core.rps_sock_flow_entries";
/// As many as scaling.rst suggests for a busy server.
const FLOWS: u32 = 32_768;
/// Devices that stand on one another, at most.
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

/// The CPUs that RPS of a NIC should give packets to; none where it should be off.
fn helpers(situation: &Situation<'_>, draft: &Draft, nic: &Nic) -> CpuSet {
    let near: CpuSet = situation.interrupt_cpus(nic).into_iter().collect();
    let few_queues = !nic.rx_queues.is_empty() && nic.rx_queues.len() < near.len();
    let asked = situation.found("rps_off", nic)
        || situation.request.goal == Goal::Throughput
        || ports_above(situation, nic).next().is_some();
    if !few_queues || !asked {
        return CpuSet::new();
    }
    near.difference(&draft.cpus_of_irqs(situation, std::iter::once(nic)))
}

/// The internal ports of OVS above a NIC that have RPS on.
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
            "; steered here and not on {}, where only packets of queue 0 would be",
            ports.join(", ")
        );
    }
    for queue in &nic.rx_queues {
        // What is kept for a priority is for its CPU alone.
        if !draft.reserved(nic.ifindex, queue.queue) {
            set(situation, draft, nic, queue, helpers, &why);
        }
    }
}

/// RPS of a NIC that needs none.
fn without(situation: &Situation<'_>, draft: &mut Draft, nic: &Nic) {
    let name = &nic.name;
    let several = nic.rx_queues.len() > 1;
    let near = cpus_near_node(&situation.host.topology, nic.numa_node);
    for (queue, cpus) in on(nic) {
        if several {
            let why = format!(
                "{name} spreads packets over {} queues itself; RPS carries each to another CPU, \
                 now to {}",
                nic.rx_queues.len(),
                situation::cpus(cpus)
            );
            set(situation, draft, nic, queue, &CpuSet::new(), &why);
        } else {
            stay_near(situation, draft, nic, queue, cpus, &near);
        }
    }
}

/// Leaves RPS on, but only to CPUs near the NIC.
fn stay_near(
    situation: &Situation<'_>,
    draft: &mut Draft,
    nic: &Nic,
    queue: &RxQueue,
    cpus: &CpuSet,
    near: &CpuSet,
) {
    let far = cpus.difference(near);
    let why = format!("on another node than {}: {}", nic.name, situation::cpus(&far));
    set(situation, draft, nic, queue, &cpus.intersection(near), &why);
}

/// RPS of a device without queues of its own.
fn software(situation: &Situation<'_>, draft: &mut Draft, nic: &Nic) {
    let below = below(situation, nic, DEPTH);
    let names: Vec<&str> = below.iter().map(|nic| nic.name.as_str()).collect();
    let names = names.join(", ");
    let several = below.iter().any(|lower| lower.rx_queues.len() > nic.rx_queues.len().max(1));
    for (queue, cpus) in on(nic) {
        if nic.kind == NicKind::OvsInternal && several {
            let why = format!(
                "{} is an internal port of OVS with one receive queue, where the kernel steers only \
                 packets of queue 0 of {names}; RPS belongs on the NIC, though guides put it here",
                nic.name
            );
            set(situation, draft, nic, queue, &CpuSet::new(), &why);
        } else if nic.kind == NicKind::Tunnel {
            let Some(lower) = below.first() else { continue };
            let near = cpus_near_node(&situation.host.topology, lower.numa_node);
            stay_near(situation, draft, nic, queue, cpus, &near);
        } else if several {
            let why =
                format!("the queues of {names} have spread the packets of {} before", nic.name);
            set(situation, draft, nic, queue, &CpuSet::new(), &why);
        } else {
            as_diagnosed(situation, draft, nic, queue);
        }
    }
}

/// What the diagnosis proposed for a queue: of a device that only passes packets on inside the host
/// nothing but a measurement tells where they come from.
fn as_diagnosed(situation: &Situation<'_>, draft: &mut Draft, nic: &Nic, queue: &RxQueue) {
    let target = target(nic, queue, "rps_cpus");
    if let Some((_, change)) = situation.proposed(&target)
        && let Some(after) = target.set_of(&change.after)
    {
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

/// Turns RFS on for queues with RPS: each flow to the CPU that reads it.
fn flows(situation: &Situation<'_>, draft: &mut Draft, steering: &[(&Nic, &RxQueue)]) {
    let queues = u32::try_from(steering.len()).unwrap_or(u32::MAX);
    if queues == 0 {
        return;
    }
    let entries = situation.host.sysctls.get(ENTRIES).and_then(|value| value.parse::<u32>().ok());
    let Some(entries) = entries else {
        draft.note(format!("no RFS: {ENTRIES} is not to be had here"));
        return;
    };
    if entries < FLOWS {
        draft.add(Wish {
            id: ENTRIES.to_owned(),
            target: SettingFile::sysctl(ENTRIES).into(),
            before: entries.to_string().into(),
            after: FLOWS.to_string().into(),
            why: "RFS steers each flow to the CPU that reads it, where RPS only spreads by hash"
                .to_owned(),
            finding: situation.asked_by(&SettingFile::sysctl(ENTRIES).into()),
        });
    }
    let each = (entries.max(FLOWS) / queues).max(1);
    // Down to a power of two, so that all together have no more than there are.
    let each = 1 << (u32::BITS - 1 - each.leading_zeros());
    for (nic, queue) in steering {
        let Some(before) = queue.rps_flow_cnt.filter(|&before| before != each) else { continue };
        let target = target(nic, queue, "rps_flow_cnt");
        draft.add(Wish {
            id: id(nic, queue, "rps_flow_cnt"),
            finding: situation.asked_by(&target),
            target,
            before: before.to_string().into(),
            after: each.to_string().into(),
            why: format!(
                "the {} flows of RFS, shared out over {queues} queues",
                entries.max(FLOWS)
            ),
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
    let target = target(nic, queue, "rps_cpus");
    draft.add(Wish {
        id: id(nic, queue, "rps_cpus"),
        finding: situation.asked_by(&target),
        target,
        before: before.to_mask().into(),
        after: after.to_mask().into(),
        why: why.to_owned(),
    });
}

fn target(nic: &Nic, queue: &RxQueue, file: &str) -> Target {
    SettingFile::rx_queue(&nic.name, queue.queue, file).into()
}

fn id(nic: &Nic, queue: &RxQueue, file: &str) -> String {
    format!("{}/rx-{}/{file}", nic.name, queue.queue)
}
