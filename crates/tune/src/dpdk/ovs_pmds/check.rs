//! What an existing Open vSwitch does not run as written, and what it polls from another node.

use super::view::{Port, mask_cpus, mask_of, pmd_nodes, ports};
use nearpath_host::workers::Switch;
use nearpath_host::workers::ovs::OvsPmd;
use nearpath_model::{
    CpuId, CpuSet, NodeId, OVS_CHECK_SCHEMA, OvsCheck, OvsKey, OvsPmdThread, OvsProblem,
    OvsSetting, OvsVerdict, Topology,
};
use std::collections::{BTreeMap, BTreeSet};

/// Checks it.
pub fn check(switch: &Switch, topology: &Topology) -> OvsCheck {
    let ports = ports(switch);
    let pmds = switch.pmds.as_deref().unwrap_or_default();
    let nodes = pmd_nodes(pmds);
    let mut problems = Problems::default();
    mask(switch, topology, &mut problems);
    dpdk(switch, &ports, &mut problems);
    let mut cross_node_queues = 0;
    for port in &ports {
        cross_node_queues += remote(port, &nodes, &mut problems);
        affinity(port, pmds, switch.pmds.is_some(), &mut problems);
    }
    let mut problems = problems.0;
    problems.sort_by_key(|problem| std::cmp::Reverse(problem.effect));
    OvsCheck {
        schema: OVS_CHECK_SCHEMA,
        verdict: problems.first().map_or(OvsVerdict::Accepted, |problem| problem.effect),
        problems,
        cross_node_queues,
        pmds: pmds.iter().map(thread).collect(),
        notes: notes(switch, &ports),
    }
}

#[derive(Debug, Default)]
struct Problems(Vec<OvsProblem>);

impl Problems {
    fn add(
        &mut self,
        code: &str,
        effect: OvsVerdict,
        subject: &str,
        message: String,
        remedy: String,
    ) {
        let (code, subject) = (code.to_owned(), subject.to_owned());
        self.0.push(OvsProblem { code, effect, subject, message, remedy });
    }
}

fn thread(pmd: &OvsPmd) -> OvsPmdThread {
    let (node, isolated, queues) = (pmd.node, pmd.isolated, pmd.queues.clone());
    OvsPmdThread { cpu: CpuId(pmd.core), node, isolated, queues }
}

fn notes(switch: &Switch, ports: &[Port]) -> Vec<String> {
    let unknown = switch.unknown.iter();
    let mut notes: Vec<String> =
        unknown.map(|its| format!("{}: {}: {}", its.subject, its.fact, its.reason)).collect();
    if switch.pmds.is_none() {
        notes.push(
            "ovs-vswitchd does not report its PMD threads: only the configuration is checked"
                .to_owned(),
        );
    }
    for port in ports.iter().filter(|port| port.node.is_none()) {
        notes.push(format!("{}: its node is unknown, so any PMD thread may poll it", port.name));
    }
    notes
}

/// The mask: CPUs that do not exist have no thread.
fn mask(switch: &Switch, topology: &Topology, problems: &mut Problems) {
    let key = OvsKey::PmdCpuMask;
    let Some(mask) = switch.database.other_config.get(key.name()) else { return };
    let setting = OvsSetting::of_switch(key);
    let default = "without it there is one PMD thread on each node with a port";
    let Some(cpus) = mask_cpus(mask) else {
        let remedy = format!("write a mask of hexadecimal digits; {default}");
        let message = format!("{mask:?} is not a mask");
        return problems.add("mask_invalid", OvsVerdict::Changed, key.name(), message, remedy);
    };
    let (there, absent): (BTreeSet<CpuId>, BTreeSet<CpuId>) =
        cpus.iter().partition(|cpu| topology.online.contains(**cpu));
    if absent.is_empty() {
        return;
    }
    let list: CpuSet = absent.into_iter().filter(|cpu| cpu.0 < nearpath_model::MAX_CPUS).collect();
    let message = format!("CPUs {list} are not online: they have no PMD thread");
    if there.is_empty() {
        let remedy = format!("'{}'; {default}", setting.command(nearpath_model::OVS_UNSET));
        return problems.add("mask_cpu_absent", OvsVerdict::Refused, key.name(), message, remedy);
    }
    let remedy = format!("'{}'", setting.command(&mask_of(&there)));
    problems.add("mask_cpu_absent", OvsVerdict::Changed, key.name(), message, remedy);
}

/// DPDK itself, interfaces with an error, ports that nothing polls, nodes without memory.
fn dpdk(switch: &Switch, ports: &[Port], problems: &mut Problems) {
    let config = |key: OvsKey| switch.database.other_config.get(key.name()).map(String::as_str);
    if matches!(config(OvsKey::DpdkInit), Some("true" | "try")) && !switch.database.dpdk_initialized
    {
        let message = "DPDK has not started".to_owned();
        let remedy =
            "see the log of ovs-vswitchd; restart it once hugepages and NICs are there".to_owned();
        problems.add(
            "dpdk_not_initialized",
            OvsVerdict::Refused,
            OvsKey::DpdkInit.name(),
            message,
            remedy,
        );
    }
    for (name, interface) in &switch.database.interfaces {
        let Some(error) = interface.error.as_ref().filter(|error| !error.is_empty()) else {
            continue;
        };
        let remedy = "correct its options, or remove the port".to_owned();
        problems.add("interface_error", OvsVerdict::Refused, name, error.clone(), remedy);
    }
    for port in ports {
        let has_error =
            switch.database.interfaces.get(&port.name).is_some_and(|its| its.error.is_some());
        if switch.pmds.is_some() && port.queues.is_empty() && !has_error {
            let message = "no PMD thread polls it".to_owned();
            let remedy =
                "put an online CPU of its node into pmd-cpu-mask, and its port into a bridge with \
                          datapath_type=netdev"
                    .to_owned();
            problems.add("not_polled", OvsVerdict::Refused, &port.name, message, remedy);
        }
    }
    let Some(memory) = config(OvsKey::DpdkSocketMem) else { return };
    let by_node: Vec<&str> = memory.split(',').map(str::trim).collect();
    let of_dpdk = |port: &&Port| {
        let its = switch.database.interfaces.get(&port.name);
        its.is_some_and(|its| its.kind == "dpdk")
    };
    let nodes: BTreeSet<NodeId> =
        ports.iter().filter(of_dpdk).filter_map(|port| port.node).collect();
    for node in nodes {
        if matches!(by_node.get(node.0 as usize), None | Some(&"0")) {
            let message = format!(
                "{memory:?} has no memory on node {node}, where a port is: its buffers come from another node"
            );
            let remedy =
                format!("give node {node} MiB in dpdk-socket-mem, and restart ovs-vswitchd");
            problems.add(
                "no_memory_on_node",
                OvsVerdict::Changed,
                OvsKey::DpdkSocketMem.name(),
                message,
                remedy,
            );
        }
    }
}

/// Queues that are polled from another node; returns how many.
fn remote(port: &Port, nodes: &BTreeMap<CpuId, NodeId>, problems: &mut Problems) -> u32 {
    let remote: Vec<(u32, CpuId, NodeId)> = port.remote(nodes).collect();
    let Some(node) = port.node else { return 0 };
    let pinned = port.pinned().unwrap_or_default();
    for (queue, cpu, other) in &remote {
        let by =
            if pinned.get(queue) == Some(&cpu.0) { ", as its pmd-rxq-affinity says" } else { "" };
        let message = format!(
            "queue {queue} is on CPU {cpu} of node {other}{by}; the port is on node {node}"
        );
        let has_pmd = nodes.values().any(|its| *its == node);
        let remedy = if !by.is_empty() {
            format!(
                "name a PMD thread of node {node} in it, or remove it ('nearpath tune plan --dpdk ovs')"
            )
        } else if has_pmd {
            format!(
                "leave a PMD thread of node {node} without an affinity ('nearpath tune plan --dpdk ovs')"
            )
        } else {
            format!("put a CPU of node {node} into pmd-cpu-mask ('nearpath tune plan --dpdk ovs')")
        };
        problems.add("remote_queue", OvsVerdict::Changed, &port.name, message, remedy);
    }
    u32::try_from(remote.len()).unwrap_or(u32::MAX)
}

/// An affinity that is not followed, or that sends the port's other queues elsewhere.
fn affinity(port: &Port, pmds: &[OvsPmd], is_known: bool, problems: &mut Problems) {
    let Some(text) = &port.affinity else { return };
    let Some(pinned) = port.pinned() else {
        let message = format!("pmd-rxq-affinity {text:?} is not valid, so it is ignored");
        let remedy = "write QUEUE:CPU, with commas between them".to_owned();
        return problems.add("affinity_invalid", OvsVerdict::Changed, &port.name, message, remedy);
    };
    if !is_known || port.queues.is_empty() {
        return;
    }
    let has_pmd = |cpu: u32| pmds.iter().any(|pmd| pmd.core == cpu);
    for (queue, cpu) in &pinned {
        if !port.queues.contains_key(queue) {
            let message = format!(
                "pmd-rxq-affinity names queue {queue}, and the port has {}",
                port.queues.len()
            );
            let remedy = "set options:n_rxq, or leave the queue out".to_owned();
            problems.add("affinity_no_queue", OvsVerdict::Changed, &port.name, message, remedy);
        } else if !has_pmd(*cpu) {
            let now = port.queues.get(queue).map(ToString::to_string).unwrap_or_default();
            let message = format!(
                "pmd-rxq-affinity has queue {queue} on CPU {cpu}, which has no PMD thread: it is on CPU {now}"
            );
            let remedy = format!("put CPU {cpu} into pmd-cpu-mask, or name a CPU that is in it");
            problems.add("affinity_no_pmd", OvsVerdict::Changed, &port.name, message, remedy);
        }
    }
    let isolated: CpuSet =
        pinned.values().filter(|cpu| has_pmd(**cpu)).map(|cpu| CpuId(*cpu)).collect();
    let others: Vec<String> = port
        .queues
        .iter()
        .filter(|(queue, _)| !pinned.contains_key(queue))
        .map(|(queue, cpu)| format!("{queue} to CPU {cpu}"))
        .collect();
    if !isolated.is_empty() && !others.is_empty() {
        let message = format!(
            "pmd-rxq-affinity isolates the PMD threads of CPUs {isolated}, so that the port's other queues go elsewhere: {}",
            others.join(", ")
        );
        let remedy = "name all queues of the port, or none".to_owned();
        problems.add("affinity_isolates", OvsVerdict::Changed, &port.name, message, remedy);
    }
}
