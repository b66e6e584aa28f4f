//! Workers, their ports, their packet buffers and their hugepages on different nodes.
//!
//! Input: the workers of DPDK and Open vSwitch. Output: one finding for the workers of a process that poll ports of
//! another node, one for each process whose pools or hugepages are where none of its workers are, one for a main lcore
//! on another node. Nothing moves them while they run: the application starts with other cores.
//!
//! Rules: DPVS's guide to worker tuning (workers on the NIC's node), DPDK's guide to performance (cores, NIC and memory
//! of one socket), Open vSwitch's Documentation/topics/dpdk/pmd.rst (a queue is assigned to a PMD thread of its node if
//! there is one).

use crate::text::capitalized;
use crate::workers::{
    DESCRIBED, grouped, lcores, names, node_of, polls, ports_of, process_name, received_per_s,
};
use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::{
    Finding, NodeId, PollingPort, PollingProcess, PollingRole, PollingWorker, Subject,
};
use std::collections::{BTreeMap, BTreeSet};

pub(super) const CHECK: Check = Check::new(
    "worker_node",
    "workers of DPDK and Open vSwitch, their ports, buffers and hugepages on different nodes",
    run,
);

/// Hugepages below this are no packet buffers.
const FLOOR_BYTES: u64 = 64 << 20;
/// Share of them from which on they matter.
const SHARE: f64 = 0.1;

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    if context.workers.is_none() {
        outcome.not_checked("the workers of DPDK and Open vSwitch were not read");
    }
    for process in context.polling_processes() {
        for port in process.ports.iter().filter(|port| port.node.is_none()) {
            // Of a simulated port nobody knows a node, and on one node it does not matter.
            if port.name.contains(':') && context.nodes_with_cpus() > 1 {
                let port = text::clean(&port.name);
                outcome
                    .not_checked(format!("the node of {port} is unknown: the firmware has none"));
            }
        }
        let workers: Vec<&PollingWorker> =
            process.workers.iter().filter(|worker| polls(worker)).collect();
        let far = workers.iter().filter_map(|worker| far_ports(process, worker));
        for ((node, on), of) in grouped(far) {
            outcome.findings.push(far_finding(process, node, on, &of));
        }
        let nodes: BTreeSet<NodeId> = workers.iter().filter_map(|worker| node_of(worker)).collect();
        if !nodes.is_empty() {
            outcome.findings.extend(far_memory(process, &nodes));
            outcome.findings.extend(far_main(process, &nodes));
        }
    }
    outcome
}

/// A worker and the ports that it polls on another node.
type Far<'a> = (&'a PollingWorker, Vec<&'a PollingPort>);

/// The ports of a worker that are on other nodes, with its node and that of the first.
fn far_ports<'a>(
    process: &'a PollingProcess,
    worker: &'a PollingWorker,
) -> Option<((NodeId, NodeId), Far<'a>)> {
    let node = node_of(worker)?;
    let is_far = |port: &&PollingPort| port.node.is_some_and(|of| of != node);
    let far: Vec<&PollingPort> = match ports_of(process, worker) {
        Some(ports) => ports.into_iter().filter(is_far).collect(),
        // Which ports it polls is not reported: only if all are far it is certain.
        None => {
            let known: Vec<&PollingPort> =
                process.ports.iter().filter(|port| port.node.is_some()).collect();
            let all_far = !known.is_empty() && known.iter().all(is_far);
            if all_far { known } else { Vec::new() }
        }
    };
    let on = far.first()?.node?;
    Some(((node, on), (worker, far)))
}

/// Workers on a node whose ports are on another.
fn far_finding(process: &PollingProcess, node: NodeId, on: NodeId, far: &[Far<'_>]) -> Finding {
    let workers: Vec<&PollingWorker> = far.iter().map(|(worker, _)| *worker).collect();
    let of_ports =
        far.iter().flat_map(|(worker, ports)| ports.iter().map(move |port| (*port, *worker)));
    let ports = grouped(of_ports.map(|(port, worker)| (&port.name, (port, worker))));
    let rates = ports.iter().filter_map(|(_, of)| received_per_s(of.first()?.0));
    let names_of: Vec<String> = ports.iter().take(8).map(|(name, _)| text::clean(name)).collect();
    let (are, their, poll) = match workers.len() {
        1 => ("is", "its", "it polls"),
        _ => ("are", "their", "they poll"),
    };
    let title =
        format!("{} {are} on node {node}, {their} ports on node {on}", names(process, &workers));
    let mut finding = Finding::new(severity::of_traffic(rates.reduce(|a, b| a + b)), title);
    for (at, worker) in workers.iter().enumerate() {
        let Some(cpus) = &worker.cpus else { continue };
        finding = finding.about(cpus.first().map(Subject::Cpu));
        if at < DESCRIBED {
            let lcore = capitalized(&lcores(&[worker]));
            finding = finding.evidence(format!("{lcore} runs on {}.", text::cpus_brief(cpus)));
        }
    }
    for ((name, of), label) in ports.iter().zip(&names_of) {
        let node = of.first().and_then(|(port, _)| port.node);
        let node = node.map(|node| node.to_string()).unwrap_or_default();
        let queues = of.iter().filter_map(|(_, worker)| worker.queues.get(*name)).map(Vec::len);
        let polled = match queues.sum::<usize>() {
            0 => String::new(),
            queues => format!(", with {} that {poll}", text::count(queues as u64, "queue")),
        };
        finding = finding.evidence(format!("{label} is on node {node}{polled}."));
    }
    let fix = if workers.iter().all(|worker| worker.role == PollingRole::Pmd) {
        format!(
            "Set other_config:pmd-cpu-mask so that node {on} has PMD threads: nearpath tune plan --dpdk ovs."
        )
    } else {
        format!(
            "Start it with cores of node {on}: nearpath tune plan --dpdk testpmd --nic {}.",
            names_of.join(",")
        )
    };
    finding.evidence(fix)
}

fn far_memory(process: &PollingProcess, nodes: &BTreeSet<NodeId>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let list: Vec<&NodeId> = nodes.iter().collect();
    let far =
        |pool: &&nearpath_model::PollingPool| pool.node.is_some_and(|of| !nodes.contains(&of));
    let pools: Vec<&nearpath_model::PollingPool> = process.pools.iter().filter(far).collect();
    if !pools.is_empty() {
        let title = format!(
            "{} of {} on nodes without its workers",
            text::count(pools.len() as u64, "pool"),
            process_name(process)
        );
        let mut finding = Finding::new(severity::UNFELT, title)
            .evidence(format!("Its workers are on node {}.", text::list(&list)));
        for pool in pools.iter().take(8) {
            let node = pool.node.map(|node| node.to_string()).unwrap_or_default();
            finding = finding.evidence(format!("{} is on node {node}.", text::clean(&pool.name)));
        }
        findings.push(
            finding.evidence("Each packet crosses the nodes: allocate it there with --socket-mem."),
        );
    }
    let empty = BTreeMap::new();
    let huge = process.hugepages.as_ref().unwrap_or(&empty);
    let sum = |of: &dyn Fn(&NodeId) -> bool| {
        huge.iter()
            .filter(|(node, _)| of(node))
            .map(|(_, bytes)| *bytes)
            .fold(0, u64::saturating_add)
    };
    let (all, away) = (sum(&|_| true), sum(&|node| !nodes.contains(node)));
    if away >= FLOOR_BYTES && away as f64 >= all as f64 * SHARE {
        let title = format!(
            "{} of hugepages of {} far from its workers",
            text::bytes(away),
            process_name(process)
        );
        let mut finding = Finding::new(severity::UNFELT, title)
            .share(Some(away as f64 / all.max(1) as f64), "its hugepages")
            .evidence(format!("Its workers are on node {}.", text::list(&list)));
        for (node, bytes) in huge {
            finding = finding.evidence(format!("On node {node}: {}.", text::bytes(*bytes)));
        }
        findings.push(finding.evidence(
            "Reserve hugepages on the workers' node before it starts, and limit the others with --socket-limit.",
        ));
    }
    findings
}

fn far_main(process: &PollingProcess, nodes: &BTreeSet<NodeId>) -> Option<Finding> {
    let main = process.workers.iter().find(|worker| worker.role == PollingRole::Main)?;
    let node = node_of(main).filter(|node| !nodes.contains(node))?;
    let list: Vec<&NodeId> = nodes.iter().collect();
    let title = format!(
        "{}: main lcore on node {node}, workers on node {}",
        process_name(process),
        text::list(&list)
    );
    let finding = Finding::new(severity::UNFELT, title);
    Some(finding.evidence(format!(
        "Lcore {} allocates what workers use on its own node by default: name one of node {} with --main-lcore.",
        main.lcore,
        text::list(&list)
    )))
}
