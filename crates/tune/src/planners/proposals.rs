//! What findings propose and no other planner has placed: it is planned as proposed, or a note says why not. No proposal of
//! a warning or worse is lost.
//!
//! Input: the findings, and the threads of the processes that they name. Output: settings and affinities, with the value
//! that was printed with the finding.

use super::Planner;
use super::draft::{Draft, DraftChange};
use super::situation::Situation;
use super::workload::Workload;
use nearpath_model::{
    CpuSet, Finding, Host, PlannedChange, Proposal, ProposedChange, Severity, Target, Value,
};

pub(super) const PLANNER: Planner = Planner {
    name: "proposals",
    plans: "all else that a warning or critical finding proposes",
    run,
};

/// Kinds of settings that no other planner decides about, or only for some of them.
const UNPLANNED: [&str; 3] = ["irq_affinity", "feature", "tx_queue_len"];

fn run(situation: &Situation<'_>, draft: &mut Draft) {
    for finding in situation.findings.iter().filter(|it| it.severity >= Severity::Warning) {
        for change in finding.changes.iter().filter(|change| !change.alternative) {
            if draft.changes().any(|planned| is_for(planned, change)) {
                continue;
            }
            if let Err(reason) = plan(situation, draft, finding, change) {
                draft
                    .note(format!("{}: {} is not changed: {reason}", finding.check, change.target));
            }
        }
    }
}

/// Whether a planned change is what a finding proposes, with whatever value.
fn is_for(planned: &PlannedChange, change: &ProposedChange) -> bool {
    match (&change.target, &planned.target) {
        (Proposal::Setting(target), planned) => target.same_place(planned) || target == planned,
        (Proposal::Affinity { pid, tid }, Target::Thread(thread)) => {
            thread.pid == *pid && tid.is_none_or(|tid| tid == thread.tid)
        }
        (Proposal::Pages { pid }, Target::Memory(pages)) => pages.pid == *pid,
        (Proposal::Steering { port, protocol }, planned) => planned
            .group()
            .is_some_and(|group| group.local.port() == *port && group.protocol == *protocol),
        (Proposal::IrqbalanceBans, planned) => planned.kind() == "irqbalance",
        _ => false,
    }
}

fn plan(
    situation: &Situation<'_>,
    draft: &mut Draft,
    finding: &Finding,
    change: &ProposedChange,
) -> Result<(), String> {
    if let Some(netns) = &change.netns {
        return Err(format!("it is in the network namespace {netns} (--netns)"));
    }
    match &change.target {
        // Where a setting has a planner, that has decided.
        Proposal::Setting(target) if !UNPLANNED.contains(&target.kind()) => {
            Err("it does not suit the goal, or the other changes".to_owned())
        }
        Proposal::Setting(target) => setting(situation, draft, finding, change, target),
        Proposal::Affinity { pid, tid } => {
            let named = situation.request.named.iter().find(|process| process.pid == *pid);
            let process = named.ok_or("its threads are unknown, or it has ended")?;
            affinity(draft, finding, change, process, *tid)
        }
        Proposal::Pages { pid } => Err(format!("memory is moved with --move-memory --pid {pid}")),
        Proposal::Steering { port, .. } => {
            Err(format!("no group of its sockets can be steered as they are; see --port {port}"))
        }
        Proposal::IrqbalanceBans => Err("no interrupt of the plan is to be banned".to_owned()),
    }
}

fn setting(
    situation: &Situation<'_>,
    draft: &mut Draft,
    finding: &Finding,
    change: &ProposedChange,
    target: &Target,
) -> Result<(), String> {
    let before = change
        .before
        .clone()
        .or_else(|| affinity_of_irq(situation.host, target))
        .or_else(|| number_of(situation, target));
    let before = typed(target, &before.ok_or("its value is unknown")?)?;
    let after = typed(target, &change.after)?;
    let number = |value: &Value| value.text().and_then(|text| text.parse::<u64>().ok());
    if change.before.is_none() && number(&before) >= number(&after) && number(&after).is_some() {
        return Err(format!("it is {} already", before.to_plan()));
    }
    if before != after {
        draft.add(DraftChange {
            id: target.to_string(),
            target: target.clone(),
            before,
            after,
            why: why(change),
            finding: Some(finding.check.clone()),
        });
    }
    Ok(())
}

fn affinity_of_irq(host: &Host, target: &Target) -> Option<Value> {
    let Target::File(file) = target else { return None };
    let number = file.irq()?;
    let irq = host.irqs.iter().find(|irq| irq.irq == number)?;
    Some(irq.affinity.as_ref()?.to_string().into())
}

/// The number in a file of an interface, which facts do not have.
fn number_of(situation: &Situation<'_>, target: &Target) -> Option<Value> {
    let Target::File(file) = target else { return None };
    Some(situation.request.system.number(file)?.to_string().into())
}

fn typed(target: &Target, value: &Value) -> Result<Value, String> {
    let text = value.to_plan();
    Value::parse(target, &text).ok_or_else(|| format!("{text:?} is not a value of it"))
}

/// Threads that may run elsewhere only stay as they are.
fn affinity(
    draft: &mut Draft,
    finding: &Finding,
    change: &ProposedChange,
    process: &Workload,
    tid: Option<u32>,
) -> Result<(), String> {
    let list = change.after.text().unwrap_or_default();
    let after = CpuSet::from_list(list).map_err(|error| error.to_string())?;
    if process.threads.iter().any(|its| its.thread.tid == 1) {
        return Err("it is a thread of process 1".to_owned());
    }
    let chosen = process.threads.iter().filter(|its| tid.is_none_or(|tid| its.thread.tid == tid));
    let mut moved = 0;
    for worker in chosen.filter(|worker| !worker.cpus.is_subset(&after)) {
        moved += 1;
        draft.place_thread(worker.thread.tid, after.clone());
        draft.add(DraftChange {
            id: format!("thread-{}", worker.thread.tid),
            target: worker.thread.clone().into(),
            before: worker.cpus.to_string().into(),
            after: after.to_string().into(),
            why: format!("{}: {}", process.comm, why(change)),
            finding: Some(finding.check.clone()),
        });
    }
    if moved == 0 { Err("it runs on these CPUs only".to_owned()) } else { Ok(()) }
}

fn why(change: &ProposedChange) -> String {
    change.why.trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planners::tests::{TWO_NODES, eth0, host, workload};
    use crate::planners::{Request, plan as plan_all};
    use nearpath_model::{Plan, SettingFile, SocketProtocol, Sysctl};
    use nearpath_testing::trees::Machine;

    fn planned(changes: Vec<ProposedChange>, severity: Severity, named: Vec<Workload>) -> Plan {
        let host = host(Machine::regular(TWO_NODES).nic(eth0(&[&[4], &[5]])));
        let mut finding = Finding::new(severity, "a test");
        finding.check = "slow_packets".to_owned();
        finding.changes = changes;
        let request = Request { named, ..Request::default() };
        plan_all(&host, &[finding], &request, &[], Some("boot".to_owned()), None).unwrap()
    }

    fn to(target: impl Into<Proposal>, after: &str) -> ProposedChange {
        ProposedChange::new(target, None, after, "Packets wait for it.")
    }

    #[test]
    fn a_named_task_is_moved_to_the_cpus_that_were_printed() {
        let task = workload(&["1", "0-3"]);
        let proposal = to(Proposal::Affinity { pid: task.pid, tid: None }, "0,2-3");
        let plan = planned(vec![proposal.clone()], Severity::Critical, vec![task.clone()]);
        let moved = plan.changes.iter().filter(|it| it.finding.as_deref() == Some("slow_packets"));
        let values: Vec<_> = moved.map(|it| (it.before.to_plan(), it.after.to_plan())).collect();
        let after = || "0,2-3".to_owned();
        assert_eq!(values, [("1".to_owned(), after()), ("0-3".to_owned(), after())]);
        // An informational finding moves nobody.
        let plan = planned(vec![proposal], Severity::Info, vec![task]);
        assert!(plan.changes.iter().all(|it| it.kind() != "thread_affinity"), "{plan:?}");
    }

    #[test]
    fn no_proposal_of_a_warning_is_lost() {
        let mut elsewhere = to(Sysctl::Somaxconn, "8192");
        elsewhere.set_netns("blue");
        let proposals = vec![
            to(Proposal::Affinity { pid: 7, tid: None }, "0"),
            to(Proposal::Affinity { pid: 7, tid: Some(8) }, "0"),
            to(Proposal::Pages { pid: 7 }, "1"),
            to(Proposal::Steering { protocol: SocketProtocol::Tcp, port: 80 }, "nearest"),
            to(Proposal::IrqbalanceBans, "40"),
            to(SettingFile::irq_affinity(nearpath_model::IrqNumber(999)), "0"),
            to(SettingFile::irq_affinity(nearpath_model::IrqNumber(100)), "6"),
            elsewhere,
        ];
        let plan = planned(proposals.clone(), Severity::Warning, Vec::new());
        for proposal in proposals {
            let target = proposal.target.to_string();
            let is_planned = plan.changes.iter().any(|planned| is_for(planned, &proposal));
            let is_noted = plan.notes.iter().any(|note| note.contains(&target));
            assert!(is_planned || is_noted, "{target}: {:?}", plan.notes);
        }
    }
}
