//! Threads that move packets, on other nodes than their NIC: threaded NAPI, and vhost.
//!
//! Input: the threads of NAPI and vhost with the CPUs that they may run on, the nodes of NICs, and the packets of NICs
//! and taps. Output: one finding for the threads of a NIC, and one for vhost.
//!
//! Rules: net/core/dev.c (`napi_kthread_create`: `napi/NIC-ID`, on any CPU when it is made),
//! drivers/vhost/vhost.c (`vhost-PID`, with the affinity of who made it; since 6.4 a thread of the process, see
//! kernel/vhost_task.c).

use crate::{Check, CheckOutcome, Context, cpus_near_node, housekeeping, severity, text};
use nearpath_model::{CpuSet, Finding, NetThread, Nic, NicKind, Proposal, ProposedChange, Subject};

pub(super) const CHECK: Check =
    Check::new("net_threads_off_node", "NAPI and vhost threads on other nodes than the NIC", run);

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    if context.nodes_with_cpus() < 2 {
        return outcome;
    }
    for nic in context.hardware_nics() {
        let prefix = format!("napi/{}-", nic.name);
        let threads = threads(context, &prefix);
        if threads.is_empty() {
            continue;
        }
        match nic.numa_node {
            Some(_) => {
                let near = cpus_near_node(&context.host.topology, nic.numa_node);
                let traffic = traffic(context, [nic].into_iter());
                let finding = finding(context, "NAPI", &threads, (&near, traffic), &mut outcome);
                let about = [Subject::Nic(nic.name.clone())];
                outcome.findings.extend(finding.map(|finding| finding.about(about)));
            }
            None => outcome.not_checked(format!("the node of {} is unknown", nic.name)),
        }
    }
    let near = context
        .hardware_nics()
        .filter_map(|nic| nic.numa_node)
        .map(|node| cpus_near_node(&context.host.topology, Some(node)))
        .reduce(|all, cpus| all.union(&cpus));
    let vhost = threads(context, "vhost-");
    if let Some(near) = near.filter(|_| !vhost.is_empty()) {
        let traffic = traffic(context, context.nics().filter(|nic| is_tap(nic)));
        let finding = finding(context, "vhost", &vhost, (&near, traffic), &mut outcome);
        outcome.findings.extend(finding);
    } else if vhost.is_empty() && context.nics().any(is_tap) {
        let why = context.why_unknown("host", "vhost_workers");
        if !why.is_empty() {
            outcome.not_checked(format!("where vhost workers run is unknown{why}"));
        }
    }
    outcome
}

fn is_tap(nic: &Nic) -> bool {
    matches!(nic.kind, NicKind::Tap | NicKind::Macvtap)
}

/// Packets of NICs in each second, both ways; `None` if that is unknown.
fn traffic<'a>(context: &Context<'_>, nics: impl Iterator<Item = &'a Nic>) -> Option<f64> {
    let counts = nics
        .flat_map(|nic| ["rx_packets", "tx_packets"].map(|name| context.statistic(nic, name)))
        .flatten();
    counts.reduce(u64::saturating_add).and_then(|count| context.rate(count))
}

fn threads<'a>(context: &Context<'a>, prefix: &str) -> Vec<&'a NetThread> {
    let is_one = |thread: &&NetThread| thread.comm.starts_with(prefix);
    context.host.net_threads.iter().filter(is_one).collect()
}

/// Threads that may run on none of the near CPUs, or also on others.
fn finding(
    context: &Context<'_>,
    what: &str,
    threads: &[&NetThread],
    (near, traffic): (&CpuSet, Option<f64>),
    outcome: &mut CheckOutcome,
) -> Option<Finding> {
    let online = &context.host.topology.online;
    if threads.iter().any(|thread| thread.cpus.is_none()) {
        outcome.not_checked(format!("where {what} threads may run is unknown"));
    }
    let known = threads.iter().filter_map(|thread| Some((*thread, thread.cpus.as_ref()?)));
    let off: Vec<(&NetThread, CpuSet)> = known
        .map(|(thread, cpus)| (thread, cpus.intersection(online)))
        .filter(|(_, cpus)| !cpus.is_subset(near))
        .collect();
    if off.is_empty() {
        return None;
    }
    let away: Vec<&NetThread> = off
        .iter()
        .filter(|(_, cpus)| cpus.intersection(near).is_empty())
        .map(|(thread, _)| *thread)
        .collect();
    let severity =
        severity::of_condition(context, !away.is_empty(), traffic, severity::TRAFFIC_PER_S);
    let count = text::count(off.len() as u64, "thread");
    let title = format!("{what}: {count} may run off the NIC's node");
    let mut finding =
        Finding::new(severity, title).evidence(format!("Packets arrive on {}.", text::cpus(near)));
    if let Some(first) = away.first() {
        let (count, name) = (away.len(), text::clean(&first.comm));
        finding = finding.evidence(format!("{count} of them cannot run there, e.g. {name}."));
    }
    let kept = near.intersection(&housekeeping(context.host));
    let to = if kept.is_empty() { near.clone() } else { kept };
    for (thread, cpus) in off.iter().take(16) {
        let target = match thread.process {
            Some(process) => Proposal::Affinity { pid: process, tid: Some(thread.pid) },
            None => Proposal::Affinity { pid: thread.pid, tid: None },
        };
        finding = finding.change(ProposedChange::new(
            target,
            Some(cpus.to_string()),
            to.to_string(),
            "Runs it on the node that its packets arrive on.",
        ));
    }
    Some(finding)
}
