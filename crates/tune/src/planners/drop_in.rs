//! The drop-in by which a systemd service starts on the node that its packets arrive on: CPUs, and
//! memory from the first page.
//!
//! In go the services that were asked for, whose threads `thread_affinity` moves now. Out comes a file
//! for each whose threads may run elsewhere; one that is well placed has been placed by somebody. systemd adds
//! up the lists of all files of a unit, so each is emptied first.
//!
//! Rules: document 000 (`CPUAffinity=`, `NUMAPolicy=bind`, `NUMAMask=`), systemd.exec(5).

use super::Planner;
use super::draft::{Draft, Wish};
use super::home::{Home, has_memory};
use super::situation::{Situation, cpus_and_nodes};
use super::thread_affinity::{stray, wanted};
use super::workload::Worker;
use nearpath_model::{ConfigFile, CpuSet, Target};
use std::collections::BTreeMap;

pub(super) const PLANNER: Planner = Planner {
    name: "drop_in",
    plans: "drop-ins by which systemd services start on the node that their packets arrive on",
    run,
};

fn run(situation: &Situation<'_>, draft: &mut Draft) {
    // What else there is to say of a home that is not known, the planner of threads says.
    let Ok(home) = Home::of(situation, draft) else { return };
    let mut services: BTreeMap<&str, Vec<&Worker>> = BTreeMap::new();
    for workload in situation.workloads {
        if let Some(service) = &workload.service {
            services.entry(service).or_default().extend(stray(workload, &home));
        }
    }
    services.retain(|_, stray| !stray.is_empty());
    for (service, stray) in services {
        plan(situation, draft, &home, service, &stray);
    }
}

fn plan(
    situation: &Situation<'_>,
    draft: &mut Draft,
    home: &Home,
    service: &str,
    stray: &[&Worker],
) {
    let Some(file) = ConfigFile::drop_in(service) else {
        return draft.note(format!("{service} is no service, and has no CPUAffinity= to set"));
    };
    let target = file.to_string();
    let before = match situation.request.system.text(&target) {
        Ok(text) => text.to_owned(),
        Err(reason) => return draft.note(format!("no drop-in for {service}: {reason}")),
    };
    let cpus: CpuSet = home.cpus(wanted(stray)).iter().copied().collect();
    let mut after = format!(
        "# Written by nearpath; 'nearpath tune rollback' takes it away. In force when {service} \
         restarts.\n[Service]\nCPUAffinity=\nCPUAffinity={cpus}\n"
    );
    let node = home.node.filter(|&node| has_memory(situation, node));
    if let Some(node) = node {
        after.push_str(&format!("NUMAPolicy=bind\nNUMAMask=\nNUMAMask={node}\n"));
    }
    if before == after {
        return draft.note(format!("the drop-in of {service} is there; restart it"));
    }
    if home.unbalanced {
        draft.note(format!(
            "CPUAffinity= gives the threads of {service} all of its CPUs, and the kernel balances no \
             load between isolated ones (isolcpus=domain): when it has restarted, pin its threads by \
             another plan, unless it does so itself"
        ));
    }
    let topology = &situation.host.topology;
    let memory = match node {
        Some(node) => format!(", with all its memory on node {node}"),
        None => String::new(),
    };
    draft.add(Wish {
        id: service.to_owned(),
        target: Target::ConfigFile(file),
        before: before.into(),
        after: after.into(),
        why: format!(
            "its threads are moved as they run now, but start elsewhere again; with this, from its \
             next restart on, it runs on {}{memory}: systemctl restart {service}",
            cpus_and_nodes(topology, &cpus)
        ),
        finding: None,
    });
}
