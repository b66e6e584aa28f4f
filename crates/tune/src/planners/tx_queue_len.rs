//! A longer transmit queue where one dropped packets (`tx_queue_len`, packets).
//!
//! Input: warnings of the check `qdisc_drops`, and the lengths of the interfaces. Output: twice the length, where the qdisc
//! that dropped is pfifo_fast, the only one that follows it at once. A longer queue is only a longer wait where nothing is
//! lost.
//!
//! Rule: `pfifo_fast_change_tx_queue_len` of net/sched/sch_generic.c (others read it when they are created).

use super::Planner;
use super::draft::{Draft, DraftChange};
use super::situation::Situation;
use nearpath_model::{Finding, InterfaceFile, Nic, SettingFile, Severity, Subject};

pub(super) const PLANNER: Planner = Planner {
    name: "tx_queue_len",
    plans: "a longer transmit queue, if pfifo_fast dropped packets",
    run,
};

const CHECK: &str = "qdisc_drops";
/// Beyond this, a queue holds packets for longer than their senders wait.
const LONGEST: u64 = 10_000;

fn run(situation: &Situation<'_>, draft: &mut Draft) {
    for nic in situation.nics() {
        let found = situation.findings.iter().find(|finding| is_about(finding, nic));
        if let Some(finding) = found.filter(|_| has_dropped(nic)) {
            lengthen(situation, draft, nic, finding);
        }
    }
}

fn is_about(finding: &Finding, nic: &Nic) -> bool {
    let its = |subject: &Subject| matches!(subject, Subject::Nic(name) if *name == nic.name);
    finding.check == CHECK
        && finding.severity >= Severity::Warning
        && finding.subjects.iter().any(its)
}

fn has_dropped(nic: &Nic) -> bool {
    let mut qdiscs = nic.qdiscs.iter().flatten();
    qdiscs.any(|qdisc| qdisc.kind == "pfifo_fast" && qdisc.drops.is_some_and(|drops| drops > 0))
}

fn lengthen(situation: &Situation<'_>, draft: &mut Draft, nic: &Nic, finding: &Finding) {
    let file = InterfaceFile::TxQueueLen;
    let target = SettingFile::interface(&nic.name, file);
    let Some(now) = situation.request.system.number(&target).filter(|now| *now > 0) else { return };
    let after = now.saturating_mul(2).min(LONGEST);
    if after <= now {
        return draft.note(format!(
            "pfifo_fast of {} dropped packets with a queue of {now}: its senders are faster than its link",
            nic.name
        ));
    }
    draft.add(DraftChange {
        id: format!("{}/{file}", nic.name),
        target: target.into(),
        before: now.to_string().into(),
        after: after.to_string().into(),
        why: format!(
            "pfifo_fast dropped packets of {} when {now} waited; the price is a longer wait in a full queue",
            nic.name
        ),
        finding: Some(finding.check.clone()),
    });
}

#[cfg(test)]
mod tests {
    use super::super::tests::{TWO_NODES, eth0, host, of_kind};
    use super::super::{Request, System, plan};
    use super::*;
    use nearpath_model::Qdisc;
    use nearpath_testing::trees::Machine;

    #[test]
    fn only_a_queue_that_dropped_is_longer() {
        let mut host = host(Machine::regular(TWO_NODES).nic(eth0(&[&[4], &[5]])));
        let qdisc = |kind: &str, drops| Qdisc {
            kind: kind.to_owned(),
            handle: "0:0".to_owned(),
            parent: "1:1".to_owned(),
            drops: Some(drops),
            backlog_packets: None,
            overlimits: None,
            scheduler: None,
        };
        let mut planned = |kind, drops, severity, length: &str| {
            host.nics[0].qdiscs = Some(vec![qdisc("mq", drops), qdisc(kind, drops)]);
            let subject = Subject::Nic("eth0".to_owned());
            let mut finding = Finding::new(severity, "dropped".to_owned()).about([subject]);
            finding.check = CHECK.to_owned();
            let files = [(SettingFile::interface("eth0", InterfaceFile::TxQueueLen), length)];
            let system = System::default().with_interface_files(&files);
            let request = Request { system, ..Request::default() };
            plan(&host, &[finding], &request, &[], None, None).unwrap()
        };
        let lengths = |plan: &nearpath_model::Plan| {
            let changes = of_kind(plan, "tx_queue_len");
            changes.into_values().map(str::to_owned).collect::<Vec<_>>()
        };
        let plan = planned("pfifo_fast", 5, Severity::Warning, "1000");
        assert_eq!(lengths(&plan), ["2000"]);
        assert_eq!(
            plan.changes
                .iter()
                .find(|its| its.kind() == "tx_queue_len")
                .unwrap()
                .finding
                .as_deref(),
            Some(CHECK)
        );
        assert_eq!(lengths(&planned("pfifo_fast", 5, Severity::Critical, "8000")), ["10000"]);
        for (kind, drops, severity, length) in [
            ("pfifo_fast", 5, Severity::Info, "1000"),
            ("pfifo_fast", 0, Severity::Warning, "1000"),
            // Their limits are their own.
            ("fq_codel", 5, Severity::Warning, "1000"),
            ("pfifo", 5, Severity::Warning, "1000"),
            ("pfifo_fast", 5, Severity::Warning, "0"),
            ("pfifo_fast", 5, Severity::Warning, "20000"),
        ] {
            let none = lengths(&planned(kind, drops, severity, length));
            assert!(none.is_empty(), "{kind} {drops} {severity:?} {length}: {none:?}");
        }
    }
}
