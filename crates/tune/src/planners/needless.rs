//! Whether there is anything to change. Input: a finished plan. Output: the same, or one without changes.
//!
//! A host whose diagnosis is clean, and whose packets stay where they arrive, is not made better by moving interrupts
//! among equals: each write has a risk, and a plan that predicts 0.0% -> 0.0% has nothing to set against it.

use super::Request;
use nearpath_model::{Crossings, Finding, Goal, PlannedChange, Severity};

/// A share below this is shown as 0.0%.
const NOTHING: f64 = 0.0005;

/// The note of a plan that has nothing to change.
pub(super) const NOTE: &str = "nothing to change";

/// Why none of the changes is needed; `None` if one is, or was requested.
pub(super) fn reason(
    request: &Request,
    findings: &[Finding],
    changes: &[PlannedChange],
    now: &Crossings,
    predicted: &Crossings,
) -> Option<String> {
    let is_clean = findings.iter().all(|finding| finding.severity == Severity::Info);
    let is_asked = |change: &PlannedChange| change.finding.is_some();
    let stays = [
        (now.other_cpu, predicted.other_cpu),
        (now.other_llc, predicted.other_llc),
        (now.other_node, predicted.other_node),
    ];
    let is_nothing = |share: Option<f64>| share.is_none_or(|share| share < NOTHING);
    let known = now.other_cpu.is_some() && predicted.other_cpu.is_some();
    let is_needless = known
        && is_clean
        && !changes.is_empty()
        && !is_requested(request)
        && !changes.iter().any(is_asked)
        && stays.into_iter().all(|(now, then)| is_nothing(now) && is_nothing(then));
    is_needless.then(|| {
        format!(
            "{NOTE}: the diagnosis is clean, and packets stay where they arrive with and without the \
             {} that would only move them among equals",
            match changes.len() {
                1 => "change".to_owned(),
                count => format!("{count} changes"),
            }
        )
    })
}

/// Whether the request says more than that latency matters.
fn is_requested(request: &Request) -> bool {
    request.goal != Goal::Latency
        || request.cpus.is_some()
        || request.housekeeping.is_some()
        || request.channels.is_some()
        || !request.vlan_priorities.is_empty()
        || request.cpuset
        || request.stop_irqbalance
        || request.move_memory
        || !request.hugepages.is_empty()
        || !request.sysctls.is_empty()
        || !request.boot_parameters.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_model::{FindingCost, Target};

    fn change(finding: Option<&str>) -> PlannedChange {
        PlannedChange {
            id: "irq-40".to_owned(),
            target: Target::parse("/proc/irq/40/smp_affinity_list", None).unwrap(),
            before: "0-3".into(),
            after: "1".into(),
            why: "a test".to_owned(),
            finding: finding.map(str::to_owned),
            persist: Vec::new(),
            reboot: false,
            optional: false,
            predicted: None,
        }
    }

    fn shares(cpu: f64) -> Crossings {
        Crossings { other_cpu: Some(cpu), other_llc: Some(0.0), other_node: None }
    }

    fn finding(severity: Severity) -> Finding {
        Finding {
            check: "any".to_owned(),
            severity,
            title: String::new(),
            evidence: Vec::new(),
            cost: FindingCost::default(),
            subjects: Vec::new(),
            symptoms: Vec::new(),
            changes: Vec::new(),
            manual: Vec::new(),
        }
    }

    #[test]
    fn a_clean_host_is_left_alone_and_any_reason_to_change_it_is_one() {
        let request = Request::default();
        let why = |request: &Request, findings: &[Finding], change: PlannedChange, now, then| {
            reason(request, findings, &[change], &shares(now), &shares(then))
        };
        let said = why(&request, &[], change(None), 0.0, 0.0).unwrap();
        assert!(said.starts_with("nothing to change: the diagnosis is clean"), "{said}");
        assert!(why(&request, &[], change(None), 0.000_4, 0.0).is_some());
        assert!(why(&request, &[finding(Severity::Info)], change(None), 0.0, 0.0).is_some());
        for needed in [
            why(&request, &[], change(None), 0.01, 0.0),
            why(&request, &[], change(None), 0.0, 0.01),
            why(&request, &[], change(Some("irq_node")), 0.0, 0.0),
            why(&request, &[finding(Severity::Warning)], change(None), 0.0, 0.0),
            why(
                &Request { goal: Goal::Isolation, ..Request::default() },
                &[],
                change(None),
                0.0,
                0.0,
            ),
            why(&Request { cpuset: true, ..Request::default() }, &[], change(None), 0.0, 0.0),
            reason(&request, &[], &[], &shares(0.0), &shares(0.0)),
            reason(&request, &[], &[change(None)], &Crossings::default(), &Crossings::default()),
        ] {
            assert_eq!(needed, None);
        }
    }
}
