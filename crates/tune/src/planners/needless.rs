//! Whether there is anything to change. Input: a finished plan. Output: the same, or one without changes.
//!
//! A host whose diagnosis is clean, and whose packets stay where they arrive, is not made better by moving interrupts
//! among equals: each write has a risk, and a plan that predicts 0.0% -> 0.0% has nothing to set against it.

use super::Request;
use nearpath_model::{
    CpuId, CpuSet, Crossings, Finding, Goal, Host, IrqNumber, PlannedChange, Severity,
};
use std::collections::BTreeSet;

/// A share below this is shown as 0.0%.
const NOTHING: f64 = 0.0005;

/// The kinds of changes that only place received packets, which is what the prediction is of.
const PLACEMENT: [&str; 4] = ["irq_affinity", "rps_cpus", "rss", "irqbalance"];

/// The note of a plan that has nothing to change.
pub(super) const NOTE: &str = "nothing to change";

/// Why none of the changes is needed; `None` if one is, or was requested.
pub(super) fn reason(
    host: &Host,
    request: &Request,
    findings: &[Finding],
    changes: &[PlannedChange],
    now: &Crossings,
    predicted: &Crossings,
) -> Option<String> {
    let is_clean = findings.iter().all(|finding| finding.severity == Severity::Info);
    // Other kinds do more than place packets.
    let is_asked =
        |change: &PlannedChange| change.finding.is_some() || !PLACEMENT.contains(&change.kind());
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
        && stays.into_iter().all(|(now, then)| is_nothing(now) && is_nothing(then))
        && are_spread(host);
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

/// Whether each interrupt of a queue goes to one CPU, on a core of its own: otherwise the load of their queues is worth
/// spreading, although no packet would cross less.
fn are_spread(host: &Host) -> bool {
    let queues = host.nics.iter().flat_map(|nic| {
        let rx = nic.rx_queues.iter().map(|queue| queue.irq);
        rx.chain(nic.tx_queues.iter().map(|queue| queue.irq))
    });
    let of_queues: BTreeSet<IrqNumber> = queues.flatten().collect();
    let core = |cpu: CpuId| {
        let found = host.topology.cpus.iter().find(|its| its.cpu == cpu);
        found.and_then(|its| its.siblings.first()).unwrap_or(cpu)
    };
    let mut seen = BTreeSet::new();
    let mut irqs = host.irqs.iter().filter(|irq| of_queues.contains(&irq.irq));
    irqs.all(|irq| {
        let only = irq.affinity.as_ref().filter(|set| set.len() == 1).and_then(CpuSet::first);
        only.is_some_and(|cpu| seen.insert(core(cpu)))
    })
}

/// Whether the request says more than that latency matters.
fn is_requested(request: &Request) -> bool {
    request.goal != Goal::Latency
        || request.mode.is_some()
        || request.irq_cpus.is_some()
        || request.app_cpus.is_some()
        || request.exclude_cpus.is_some()
        || request.channels.is_some()
        || !request.priorities.is_empty()
        || request.cpuset
        || request.stop_irqbalance
        || request.napi.is_some()
        || request.performance
        || request.wakeup_us.is_some()
        || request.move_memory
        || !request.hugepages.is_empty()
        || !request.sysctls.is_empty()
        || !request.boot_parameters.is_empty()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{TWO_NODES, eth0, host};
    use super::*;
    use nearpath_model::{FindingCost, Target};
    use nearpath_testing::trees::Machine;

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

    /// Not a matter of placement.
    fn other_kind() -> PlannedChange {
        let target = Target::parse("/sys/class/net/eth0/gro_flush_timeout", None).unwrap();
        PlannedChange { target, ..change(None) }
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
            whose: nearpath_model::Whose::Host,
            symptoms: Vec::new(),
            changes: Vec::new(),
            manual: Vec::new(),
        }
    }

    #[test]
    fn a_clean_host_is_left_alone_and_any_reason_to_change_it_is_one() {
        let request = Request::default();
        let with = |queues: &[&[u32]]| host(Machine::regular(TWO_NODES).nic(eth0(queues)));
        let (spread, crowded) = (with(&[&[8], &[9]]), with(&[&[8], &[8]]));
        let (anywhere, siblings) = (with(&[&[8, 9], &[10]]), with(&[&[4], &[12]]));
        let why = |request: &Request, findings: &[Finding], change: PlannedChange, now, then| {
            reason(&spread, request, findings, &[change], &shares(now), &shares(then))
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
            reason(&spread, &request, &[], &[], &shares(0.0), &shares(0.0)),
            reason(&crowded, &request, &[], &[change(None)], &shares(0.0), &shares(0.0)),
            reason(&siblings, &request, &[], &[change(None)], &shares(0.0), &shares(0.0)),
            reason(&anywhere, &request, &[], &[change(None)], &shares(0.0), &shares(0.0)),
            why(&request, &[], other_kind(), 0.0, 0.0),
            reason(
                &spread,
                &request,
                &[],
                &[change(None)],
                &Crossings::default(),
                &Crossings::default(),
            ),
        ] {
            assert_eq!(needed, None);
        }
    }
}
