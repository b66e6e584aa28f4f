//! `pmd-rxq-affinity` of Open vSwitch that drives a port's other queues away.
//!
//! Input: the affinity of each port, the queues of each PMD thread. Output: one finding for each port of which only some
//! queues are assigned. A PMD thread with an assigned queue is isolated: it takes no other queue, so that the rest go to the
//! remaining threads, whatever their node, or are not polled at all if there is none.
//!
//! Rule: Open vSwitch's Documentation/topics/dpdk/pmd.rst (`pmd-rxq-affinity`, `pmd-rxq-isolate`).

use crate::workers::process_name;
use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::{Finding, PollingPort, PollingProcess, PollingRole};
use std::collections::BTreeSet;

pub(super) const CHECK: Check = Check::new(
    "ovs_rxq_affinity",
    "pmd-rxq-affinity of Open vSwitch that leaves queues to other PMD threads",
    run,
);

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    for process in context.polling_processes() {
        let is_isolated = process.workers.iter().any(|worker| worker.is_isolated == Some(true));
        if is_isolated && process.ports.is_empty() {
            outcome.not_checked(format!("the settings of {} were not read", process_name(process)));
        }
        if process.other_config.get("pmd-rxq-isolate").is_some_and(|value| value == "false") {
            continue;
        }
        let ports = process.ports.iter();
        outcome.findings.extend(ports.filter_map(|port| finding(process, port)));
    }
    outcome
}

fn finding(process: &PollingProcess, port: &PollingPort) -> Option<Finding> {
    let affinity = port.rxq_affinity.as_deref()?;
    let assigned = assigned(affinity);
    let mut others = Vec::new();
    for worker in process.workers.iter().filter(|worker| worker.role == PollingRole::Pmd) {
        let queues = worker.queues.get(&port.name).into_iter().flatten();
        others.extend(
            queues.filter(|queue| !assigned.contains(queue)).map(|queue| (*queue, worker.lcore)),
        );
    }
    let polled: BTreeSet<u32> = process
        .workers
        .iter()
        .filter_map(|worker| worker.queues.get(&port.name))
        .flatten()
        .copied()
        .collect();
    let all = port.queue_packets.len().max(port.rx_queues.unwrap_or(0) as usize).min(1024) as u32;
    let unpolled: Vec<u32> = (0..all).filter(|queue| !polled.contains(queue)).collect();
    if others.is_empty() && unpolled.is_empty() {
        return None;
    }
    let name = text::clean(&port.name);
    let title = if unpolled.is_empty() {
        format!(
            "pmd-rxq-affinity of {name} leaves {} to other PMDs",
            text::count(others.len() as u64, "queue")
        )
    } else {
        format!("No PMD thread polls queue {} of {name}", text::list(&unpolled))
    };
    let mut finding =
        Finding::new(severity::of_traffic(crate::workers::received_per_s(port)), title).evidence(
            format!(
                "pmd-rxq-affinity is {}: the PMD threads in it take no other queue.",
                text::clean(affinity)
            ),
        );
    others.sort_unstable();
    for (queue, core) in others.iter().take(8) {
        finding = finding.evidence(format!("Queue {queue} is polled on core {core}."));
    }
    Some(finding.evidence(format!(
        "Assign all queues of {name}, none, or set other_config:pmd-rxq-isolate=false (Open vSwitch 2.16)."
    )))
}

/// The queues in `0:3,1:7`.
fn assigned(affinity: &str) -> BTreeSet<u32> {
    let pairs = affinity.split(',').filter_map(|pair| pair.split_once(':'));
    pairs.filter_map(|(queue, _)| queue.trim().parse().ok()).collect()
}
