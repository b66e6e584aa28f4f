//! A drop-in that makes a systemd service start on the node that its packets arrive on, with CPUs and memory.
//!
//! Input: the requested services, whose running threads `thread_affinity` moves. Output: a file for each service with
//! misplaced threads; well placed ones need none. systemd merges the lists of all files of a unit, so each list is
//! reset first. None over several isolated CPUs, between which the kernel balances no load.
//!
//! Rules: everoute's analysis of latency tails (`CPUAffinity=`, `NUMAPolicy=bind`, `NUMAMask=`), systemd.exec(5).

use super::Planner;
use super::draft::{Draft, DraftChange};
use super::situation::{Situation, cpus_and_nodes};
use super::target_node::{TargetNode, has_memory};
use super::thread_affinity::{misplaced, wanted};
use super::workload::Worker;
use nearpath_model::{ConfigFile, CpuSet, Target};
use std::collections::BTreeMap;

pub(super) const PLANNER: Planner = Planner {
    name: "drop_in",
    plans: "drop-ins that make systemd services start on the node that their packets arrive on",
    run,
};

fn run(situation: &Situation<'_>, draft: &mut Draft) {
    // An unknown target node is reported by the planner of threads.
    let Ok(target_node) = TargetNode::of(situation, draft) else { return };
    let mut services: BTreeMap<&str, Vec<&Worker>> = BTreeMap::new();
    for workload in situation.workloads {
        if let Some(service) = &workload.service {
            services.entry(service).or_default().extend(misplaced(workload, &target_node));
        }
    }
    services.retain(|_, misplaced| !misplaced.is_empty());
    for (service, misplaced) in services {
        plan(situation, draft, &target_node, service, &misplaced);
    }
}

fn plan(
    situation: &Situation<'_>,
    draft: &mut Draft,
    target_node: &TargetNode,
    service: &str,
    misplaced: &[&Worker],
) {
    let Some(file) = ConfigFile::drop_in(service) else {
        return draft.note(format!("{service} is not a service and has no CPUAffinity="));
    };
    let cpus: CpuSet = target_node.cpus(wanted(misplaced)).iter().copied().collect();
    if target_node.unbalanced && cpus.len() > 1 {
        return draft.note(format!(
            "no drop-in for {service}: CPUAffinity= would let its threads use all of {cpus}, but the kernel does \
             not balance load between isolated CPUs (isolcpus=domain); after a restart, pin them with another \
             plan"
        ));
    }
    let target = file.to_string();
    let before = match situation.request.system.text(&target) {
        Ok(text) => text.to_owned(),
        Err(reason) => return draft.note(format!("no drop-in for {service}: {reason}")),
    };
    let mut after = format!(
        "# Written by nearpath; 'nearpath tune rollback' removes it. Effective when {service} \
         restarts.\n[Service]\nCPUAffinity=\nCPUAffinity={cpus}\n"
    );
    let node = target_node.node.filter(|&node| has_memory(situation, node));
    if let Some(node) = node {
        after.push_str(&format!("NUMAPolicy=bind\nNUMAMask=\nNUMAMask={node}\n"));
    }
    if before == after {
        return draft.note(format!("the drop-in of {service} exists; restart the service"));
    }
    let topology = &situation.host.topology;
    let memory = match node {
        Some(node) => format!(", with all its memory on node {node}"),
        None => String::new(),
    };
    draft.add(DraftChange {
        id: service.to_owned(),
        target: Target::ConfigFile(file),
        before: before.into(),
        after: after.into(),
        why: format!(
            "moving its running threads does not survive a restart; with this, it runs on {}{memory} \
             from its next restart: systemctl restart {service}",
            cpus_and_nodes(topology, &cpus)
        ),
        finding: None,
    });
}
