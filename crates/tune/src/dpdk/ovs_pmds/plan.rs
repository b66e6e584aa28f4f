//! Moves PMD threads of an existing Open vSwitch to the nodes of its ports.
//!
//! What is well placed stays: threads on a node with a port, and affinities that name such a thread. Threads on nodes
//! without a port move to those without a thread, as many as there are.

use super::super::cores::{Cores, Taker};
use super::view::{Affinity, Port, mask_cpus, mask_of, pmd_nodes, ports, write_affinity};
use crate::dpdk::{DpdkError, commands};
use crate::exporters;
use nearpath_host::workers::Switch;
use nearpath_model::{
    CpuId, DpdkPlan, NodeId, OVS_UNSET, OvsKey, OvsSetting, PlannedChange, Target, Topology,
};
use std::collections::{BTreeMap, BTreeSet};

/// Plans changes; returns them with notes. `threads` is the number of PMD threads on a node that has none.
///
/// # Errors
/// ovs-vswitchd does not report its threads, or there is no port for them.
pub fn plan(
    switch: &Switch,
    topology: &Topology,
    threads: Option<u32>,
) -> Result<(Vec<PlannedChange>, Vec<String>), DpdkError> {
    let Some(pmds) = &switch.pmds else { return Err(DpdkError::NoThreads) };
    let ports = ports(switch);
    if ports.is_empty() {
        return Err(DpdkError::NoPorts);
    }
    let mut nodes = pmd_nodes(pmds);
    let mut notes = Vec::new();
    let mut changes = Vec::new();
    let now: usize = ports.iter().map(|port| port.remote(&nodes).count()).sum();
    let set = threads_for(&ports, &nodes, topology, threads, &mut notes);
    let known = topology.cpus.iter().filter_map(|cpu| Some((cpu.cpu, cpu.node?)));
    for (cpu, node) in known {
        nodes.entry(cpu).or_insert(node);
    }
    changes.extend(mask(switch, &set, &ports, &nodes, topology));
    changes.extend(affinities(switch, &ports, &set, &nodes));
    if now > 0 {
        notes.push(format!("queues polled from another node: {now} now"));
    }
    Ok((changes, notes))
}

/// The settings of a plan for NICs as changes of a running Open vSwitch: those that it has otherwise, and the affinity of
/// ports that it has. The commands of the plan then undo to the values that are there.
pub fn of_running(plan: &mut DpdkPlan, switch: &Switch) -> Vec<PlannedChange> {
    let mut changes = Vec::new();
    for (setting, after, why) in commands::ovs_settings(&plan.workers, &plan.hugepages) {
        let before = switch.database.other_config.get(setting.key.name());
        let command = setting.command(&after);
        for its in plan.commands.iter_mut().filter(|its| its.command == command) {
            its.undo = Some(setting.command(before.map_or(OVS_UNSET, String::as_str)));
        }
        if before != Some(&after) {
            changes.push(change(setting, before, &after, why));
        }
    }
    for (nic, its) in (0u32..).zip(&plan.nics) {
        let is_it = |devargs: &String| devargs.split(',').next() == Some(its.address.as_str());
        let mut interfaces = switch.database.interfaces.iter();
        let found = interfaces
            .find(|(_, interface)| interface.options.get("dpdk-devargs").is_some_and(is_it));
        let Some((name, interface)) = found.filter(|(name, _)| OvsSetting::is_interface(name))
        else {
            continue;
        };
        let before = interface.other_config.get(OvsKey::PmdRxqAffinity.name());
        let after = commands::affinity(nic, &plan.workers);
        if before != Some(&after) {
            let why = "each queue on a PMD thread of the NIC's node".to_owned();
            changes.push(change(OvsSetting::affinity(name), before, &after, why));
        }
    }
    changes
}

fn cpus_on(set: &BTreeSet<CpuId>, nodes: &BTreeMap<CpuId, NodeId>, node: NodeId) -> Vec<CpuId> {
    set.iter().copied().filter(|cpu| nodes.get(cpu) == Some(&node)).collect()
}

/// The CPUs that should have a thread.
fn threads_for(
    ports: &[Port],
    nodes: &BTreeMap<CpuId, NodeId>,
    topology: &Topology,
    threads: Option<u32>,
    notes: &mut Vec<String>,
) -> BTreeSet<CpuId> {
    let mut set: BTreeSet<CpuId> = nodes.keys().copied().collect();
    let wanted: BTreeSet<NodeId> = ports.iter().filter_map(|port| port.node).collect();
    let lacking: Vec<NodeId> =
        wanted.iter().copied().filter(|node| cpus_on(&set, nodes, *node).is_empty()).collect();
    let misplaced: BTreeSet<CpuId> =
        nodes.iter().filter(|(_, node)| !wanted.contains(node)).map(|(cpu, _)| *cpu).collect();
    let mut cores = Cores::new(topology);
    cores.reserve(&set);
    for (index, node) in lacking.iter().enumerate() {
        let queues: usize = ports
            .iter()
            .filter(|port| port.node == Some(*node))
            .map(|port| port.queues.len())
            .sum();
        // The misplaced threads are shared out evenly.
        let share = (misplaced.len() + lacking.len() - 1 - index) / lacking.len();
        let count = threads.map_or(share, |threads| threads as usize).min(queues).max(1);
        let taken: Vec<CpuId> = std::iter::from_fn(|| cores.take(Some(*node), Taker::Worker))
            .filter_map(|core| core.cpus.first().copied())
            .take(count)
            .collect();
        if taken.is_empty() {
            notes.push(format!("node {node} of a port has no free core besides the host's first"));
        }
        set.extend(taken);
    }
    // A port whose node is unknown may be polled by any of them.
    let is_replaced = set.len() > nodes.len() && ports.iter().all(|port| port.node.is_some());
    if is_replaced {
        set.retain(|cpu| !misplaced.contains(cpu));
    }
    set
}

/// The mask, if it must be another one.
fn mask(
    switch: &Switch,
    set: &BTreeSet<CpuId>,
    ports: &[Port],
    nodes: &BTreeMap<CpuId, NodeId>,
    topology: &Topology,
) -> Option<PlannedChange> {
    let key = OvsKey::PmdCpuMask;
    let before = switch.database.other_config.get(key.name());
    let running: BTreeSet<CpuId> = pmd_nodes(switch.pmds.as_deref()?).into_keys().collect();
    let written = before.and_then(|mask| mask_cpus(mask));
    let absent: Vec<String> = written
        .iter()
        .flatten()
        .filter(|cpu| !topology.online.contains(**cpu) && !running.contains(cpu))
        .map(ToString::to_string)
        .collect();
    if (*set == running && absent.is_empty()) || set.is_empty() {
        return None;
    }
    let list = |cpus: &BTreeSet<CpuId>| {
        let on = |cpu: &CpuId| match nodes.get(cpu) {
            Some(node) => format!("{cpu} (node {node})"),
            None => cpu.to_string(),
        };
        cpus.iter().map(on).collect::<Vec<_>>().join(", ")
    };
    let mut why = if *set == running {
        String::new()
    } else {
        let of: Vec<String> = ports
            .iter()
            .filter(|port| port.remote(nodes).next().is_some())
            .filter_map(|port| Some(format!("{} of node {}", port.name, port.node?)))
            .collect();
        let polled = match of.as_slice() {
            [] => String::new(),
            ports => format!("{} polled from CPUs {}; ", ports.join(", "), list(&running)),
        };
        format!("{polled}PMD threads go to CPUs {}", list(set))
    };
    if !absent.is_empty() {
        let sep = if why.is_empty() { "" } else { "; " };
        why += &format!("{sep}CPUs {} of the mask are not online", absent.join(", "));
    }
    Some(change(OvsSetting::of_switch(key), before, &mask_of(set), why))
}

/// Affinities that name a thread of another node, or none, or that leave queues of their node without a thread.
fn affinities(
    switch: &Switch,
    ports: &[Port],
    set: &BTreeSet<CpuId>,
    nodes: &BTreeMap<CpuId, NodeId>,
) -> Vec<PlannedChange> {
    let near = |port: &Port| port.node.map(|node| cpus_on(set, nodes, node)).unwrap_or_default();
    // Pins first: they isolate threads for all ports.
    let mut planned: Vec<Option<Affinity>> =
        ports.iter().map(|port| Some(repinned(port, &port.pinned()?, &near(port), set))).collect();
    let isolated: BTreeSet<u32> =
        planned.iter().flatten().flat_map(|pins| pins.values().copied()).collect();
    let mut changes = Vec::new();
    for (port, pins) in ports.iter().zip(&mut planned) {
        if !OvsSetting::is_interface(&port.name) {
            continue;
        }
        let is_invalid = port.affinity.is_some() && pins.is_none();
        let near = near(port);
        let is_free = near.iter().any(|cpu| !isolated.contains(&cpu.0));
        if !is_invalid && !near.is_empty() && !is_free {
            let pins = pins.get_or_insert_default();
            let free: Vec<u32> =
                port.queues.keys().copied().filter(|queue| !pins.contains_key(queue)).collect();
            for (queue, cpu) in free.iter().zip(near.iter().cycle()) {
                pins.insert(*queue, cpu.0);
            }
        }
        let Some(pins) = pins
            .as_ref()
            .filter(|pins| port.pinned().as_ref().unwrap_or(&Affinity::new()) != *pins)
        else {
            continue;
        };
        let setting = OvsSetting::affinity(&port.name);
        let before = switch.database.interfaces.get(&port.name);
        let before = before.and_then(|its| its.other_config.get(OvsKey::PmdRxqAffinity.name()));
        let after = if pins.is_empty() { OVS_UNSET.to_owned() } else { write_affinity(pins) };
        let node = port.node.map_or_else(String::new, |node| format!(" of node {node}"));
        let why = format!("each named queue on a PMD thread{node}, and none left to another node");
        changes.push(change(setting, before, &after, why));
    }
    changes
}

/// An affinity with each queue on a thread of the port's node.
fn repinned(port: &Port, pins: &Affinity, near: &[CpuId], set: &BTreeSet<CpuId>) -> Affinity {
    let is_good = |cpu: u32| match port.node {
        Some(_) => near.contains(&CpuId(cpu)),
        None => set.contains(&CpuId(cpu)),
    };
    let mut next = near.iter().cycle();
    let there = pins.iter().filter(|(queue, _)| port.queues.contains_key(queue));
    there
        .filter_map(|(queue, cpu)| {
            let cpu = if is_good(*cpu) { Some(*cpu) } else { next.next().map(|cpu| cpu.0) };
            Some((*queue, cpu?))
        })
        .collect()
}

fn change(setting: OvsSetting, before: Option<&String>, after: &str, why: String) -> PlannedChange {
    let id = setting.to_string().replace(" of ", "/").replace(' ', "/");
    let target = Target::Ovs(setting);
    let (reboot, optional) = (target.takes_reboot(), target.may_be_refused());
    let mut change = PlannedChange {
        id,
        target,
        before: before.map_or(OVS_UNSET, String::as_str).into(),
        after: after.into(),
        why,
        finding: None,
        persist: Vec::new(),
        reboot,
        optional,
        predicted: None,
    };
    change.persist = exporters::means(&change);
    change
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_host::workers::ovs::OvsPmd;
    use nearpath_host::workers::ovsdb::OvsInterface;
    use nearpath_model::{Cpu, CpuSet};

    /// CPUs 0-3 on node 0, 4-7 on node 1.
    fn topology() -> Topology {
        let cpu = |cpu: u32| Cpu {
            cpu: CpuId(cpu),
            online: true,
            core: Some(cpu),
            package: None,
            die: None,
            cluster: None,
            llc: None,
            node: Some(NodeId(cpu / 4)),
            siblings: CpuSet::new(),
            kind: None,
            capacity: None,
        };
        let online = CpuSet::from_list("0-7").unwrap();
        Topology { online, cpus: (0..8).map(cpu).collect(), ..Topology::default() }
    }

    /// Ports by name, with node and queues, and the CPUs that poll them.
    fn switch(ports: &[(&str, Option<u32>)], pmds: &[(u32, u32, &str)]) -> Switch {
        let mut switch = Switch { pmds: Some(Vec::new()), ..Switch::default() };
        for (name, node) in ports {
            let its = OvsInterface { kind: "dpdk".to_owned(), ..OvsInterface::default() };
            switch.database.interfaces.insert((*name).to_owned(), its);
            switch.nodes.extend(node.map(|node| ((*name).to_owned(), NodeId(node))));
        }
        for (core, node, port) in pmds {
            let queues = BTreeMap::from([((*port).to_owned(), vec![0, 1])]);
            let (core, node) = (*core, Some(NodeId(*node)));
            let pmd = OvsPmd { core, node, queues, ..OvsPmd::default() };
            switch.pmds.as_mut().unwrap().push(pmd);
        }
        switch
    }

    fn masks(switch: &Switch, threads: Option<u32>) -> Vec<String> {
        let (changes, _) = plan(switch, &topology(), threads).unwrap();
        changes.iter().map(|change| format!("{} {}", change.target, change.after)).collect()
    }

    #[test]
    fn threads_move_to_nodes_with_ports_and_others_stay() {
        let remote = switch(&[("p1", Some(1))], &[(1, 0, "p1")]);
        assert_eq!(masks(&remote, None), ["ovs pmd-cpu-mask 10"]);
        assert_eq!(masks(&remote, Some(2)), ["ovs pmd-cpu-mask 30"]);
        // No more threads than queues.
        assert_eq!(masks(&remote, Some(64)), ["ovs pmd-cpu-mask 30"]);
        // A port of an unknown node may need the thread of node 0.
        let unknown = switch(&[("p1", Some(1)), ("vhost0", None)], &[(1, 0, "p1")]);
        assert_eq!(masks(&unknown, None), ["ovs pmd-cpu-mask 12"]);
        for fine in [
            switch(&[("p1", Some(1))], &[(5, 1, "p1")]),
            switch(&[("p1", None)], &[(1, 0, "p1")]),
            switch(&[("p1", Some(0)), ("p2", Some(1))], &[(2, 0, "p1"), (6, 1, "p2")]),
        ] {
            assert_eq!(masks(&fine, None), [""; 0]);
        }
    }

    #[test]
    fn hostile_switches_do_no_harm() {
        let mut hostile = switch(&[("p1", Some(9)), ("p\n2", Some(0))], &[(u32::MAX, 7, "p1")]);
        let config = BTreeMap::from([("pmd-cpu-mask".to_owned(), "f".repeat(1 << 20))]);
        hostile.database.other_config = config;
        let affinity =
            BTreeMap::from([("pmd-rxq-affinity".to_owned(), "4294967295:4294967295".to_owned())]);
        for its in hostile.database.interfaces.values_mut() {
            its.other_config.clone_from(&affinity);
        }
        let (changes, _) = plan(&hostile, &topology(), Some(u32::MAX)).unwrap();
        assert!(changes.iter().all(|change| !change.target.to_string().contains('\n')));
        let check = crate::dpdk::check_ovs(&hostile, &topology());
        assert!(check.problems.len() < 20);
        assert!(plan(&Switch::default(), &topology(), None).is_err());
    }
}
