//! Limits of DPVS that it keeps silently.
//!
//! Input: DPVS's workers with their roles (by `dpip`), its ports, the host's nodes. Output: one finding for each process.
//! `nearpath tune check-dpvs` checks its configuration, with all that it refuses.
//!
//! Rules: DPVS 1.9 (include/conf/netif.h, src/netif.c, src/sa_pool.c): 64 lcores, 16 queues a port, two nodes; ports of
//! FullNAT addresses are divided by a power of two.

use crate::workers::process_name;
use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::{Finding, PollingProcess, PollingRole};

pub(super) const CHECK: Check =
    Check::new("dpvs_limits", "limits of DPVS: lcores, queues, nodes, powers of two", run);

const LCORES: u32 = 64;
const QUEUES: u32 = 16;
const NODES: usize = 2;

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    for process in context.polling_processes().iter().filter(|process| process.name == "dpvs") {
        let knows_roles = process.workers.iter().any(|w| w.role == PollingRole::Forwarding);
        if !knows_roles {
            let process = process_name(process);
            outcome
                .not_checked(format!("the roles of the workers of {process} are unknown (dpip)"));
        }
        outcome.findings.extend(finding(context, process));
    }
    outcome
}

fn finding(context: &Context<'_>, process: &PollingProcess) -> Option<Finding> {
    let mut evidence = Vec::new();
    let forwarding = process.workers.iter().filter(|w| w.role == PollingRole::Forwarding).count();
    if forwarding > 0 && !forwarding.is_power_of_two() {
        evidence.push(format!(
            "{forwarding} forwarding workers are no power of two: ports of FullNAT addresses are divided by {}.",
            forwarding.next_power_of_two()
        ));
    }
    let high: Vec<u32> =
        process.workers.iter().map(|w| w.lcore).filter(|lcore| *lcore >= LCORES).collect();
    if !high.is_empty() {
        let all = text::list(high.get(..8).unwrap_or(&high));
        evidence.push(format!("Lcore {all} is beyond DPVS's 64: it never runs."));
    }
    for port in process.ports.iter().filter(|port| port.rx_queues.is_some_and(|n| n > QUEUES)) {
        let name = text::clean(&port.name);
        evidence.push(format!("{name} has more than DPVS's 16 queues."));
    }
    if context.nodes_with_cpus() > NODES {
        let nodes = context.nodes_with_cpus();
        evidence.push(format!(
            "The host has {nodes} nodes, DPVS supports 2 unless it is built for more."
        ));
    }
    if evidence.is_empty() {
        return None;
    }
    let title = format!("{} runs beyond limits of DPVS", process_name(process));
    let mut finding = Finding::new(severity::UNFELT, title);
    for sentence in evidence {
        finding = finding.evidence(sentence);
    }
    Some(finding.evidence("nearpath tune plan --dpdk dpvs chooses workers within them."))
}
