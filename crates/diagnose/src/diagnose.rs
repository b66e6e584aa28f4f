//! Runs every check and ranks what they find.

use crate::merge::merge;
use crate::{CHECKS, Context, Evidence};
use nearpath_model::{
    DIAGNOSIS_SCHEMA, Diagnosis, Finding, FindingCost, Host, NotChecked, Severity,
};
use std::cmp::Ordering;

/// Diagnoses a host.
///
/// `earlier` is the host as it was read at the start of the interval, by which counters become
/// rates; without it they are totals since boot. Without evidence only facts speak; say why there is
/// none with [`Diagnosis::not_measured`].
pub fn diagnose<'a>(
    host: &'a Host,
    earlier: Option<&'a Host>,
    evidence: impl Into<Evidence<'a>>,
) -> Diagnosis {
    let evidence = evidence.into();
    let context = Context::new(host, earlier, evidence);
    let mut findings = Vec::new();
    let mut not_checked = Vec::new();
    for check in CHECKS {
        let outcome = check.check(&context);
        findings.extend(outcome.findings);
        not_checked.extend(
            outcome
                .not_checked
                .into_iter()
                .map(|reason| NotChecked { check: check.name.to_owned(), reason }),
        );
    }
    not_checked.extend(context.refused_names());
    rank(&mut findings);
    let mut findings = merge(findings, CHECKS);
    rank(&mut findings);
    Diagnosis {
        schema: DIAGNOSIS_SCHEMA,
        findings,
        not_checked,
        checks: CHECKS.len(),
        host: crate::summary::summary(host),
        measurement: evidence.stages.cloned(),
        other_look: None,
        locality: evidence.locality.cloned(),
        accepts: evidence.accepts.cloned(),
        tcp: evidence.tcp.cloned(),
        memory: evidence.memory.cloned(),
        workers: evidence.workers.filter(|w| !w.processes.is_empty()).cloned(),
        vm: evidence.vm.filter(|vm| !vm.vms.is_empty()).cloned(),
    }
}

/// Puts findings into their order: the most severe first, then by seconds of waiting, then by
/// share; what is equal by name, title and evidence, so that the order is the same every time.
/// Costs that are no finite numbers become unknown first.
pub fn rank(findings: &mut [Finding]) {
    for finding in findings.iter_mut() {
        let FindingCost { seconds_per_second, share_percent, .. } = &mut finding.cost;
        *seconds_per_second = seconds_per_second.filter(|cost| cost.is_finite());
        *share_percent = share_percent.filter(|share| share.is_finite());
    }
    findings.sort_by(|a, b| {
        b.severity
            .cmp(&a.severity)
            .then_with(|| {
                most_expensive_first(a.cost.seconds_per_second, b.cost.seconds_per_second)
            })
            .then_with(|| most_expensive_first(a.cost.share_percent, b.cost.share_percent))
            .then_with(|| a.check.cmp(&b.check))
            .then_with(|| a.title.cmp(&b.title))
            .then_with(|| a.evidence.cmp(&b.evidence))
    });
    rank_tails(findings);
}

/// The causes of a tail among themselves: what kept packets waiting for long before what often kept some for a little, by
/// the seconds of waiting times the longest wait. They share the places that they have among all findings of a severity.
fn rank_tails(findings: &mut [Finding]) {
    let weight = |finding: &Finding| {
        let longest = finding.cost.max_ns.unwrap_or(0) as f64;
        finding.cost.seconds_per_second.unwrap_or(0.0) * longest
    };
    for severity in [Severity::Critical, Severity::Warning, Severity::Info] {
        let is_one = |finding: &Finding| finding.check == TAILS && finding.severity == severity;
        let places: Vec<usize> = (0..findings.len()).filter(|&at| is_one(&findings[at])).collect();
        let mut tails: Vec<Finding> = places.iter().map(|&at| findings[at].clone()).collect();
        tails.sort_by(|a, b| weight(b).total_cmp(&weight(a)));
        for (at, tail) in places.into_iter().zip(tails) {
            findings[at] = tail;
        }
    }
}

/// The check that names what the packets of a tail waited for.
const TAILS: &str = "slow_packets";

/// The greater cost first, an unknown one last.
fn most_expensive_first(a: Option<f64>, b: Option<f64>) -> Ordering {
    let cost = |c: Option<f64>| c.unwrap_or(f64::NEG_INFINITY);
    cost(b).total_cmp(&cost(a))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(severity: Severity, title: &str, seconds: Option<f64>) -> Finding {
        let mut finding = Finding::new(severity, title);
        finding.cost.seconds_per_second = seconds;
        finding
    }

    #[test]
    fn the_most_severe_then_the_most_expensive_comes_first() {
        let mut findings = vec![
            finding(Severity::Info, "e", Some(9.0)),
            finding(Severity::Critical, "c", None),
            finding(Severity::Critical, "d", Some(f64::NAN)),
            finding(Severity::Critical, "b", Some(0.5)),
            finding(Severity::Critical, "a", Some(2.0)),
        ];
        rank(&mut findings);
        let order: String = findings.iter().map(|f| f.title.as_str()).collect();
        assert_eq!(order, "abcde");
        assert_eq!(findings[3].cost.seconds_per_second, None, "NaN is unknown");
    }

    #[test]
    fn of_a_tail_what_kept_packets_for_long_comes_first() {
        let tail = |title: &str, seconds, max_ns| {
            let mut tail = finding(Severity::Critical, title, Some(seconds));
            (tail.check, tail.cost.max_ns) = (TAILS.to_owned(), max_ns);
            tail
        };
        let mut findings = vec![
            tail("d", 0.3, None),
            tail("c", 0.4, Some(2_000_000)),
            finding(Severity::Critical, "b", Some(0.35)),
            tail("a", 0.2, Some(10_000_000)),
        ];
        rank(&mut findings);
        let order: String = findings.iter().map(|f| f.title.as_str()).collect();
        // What is of another check stays where it is.
        assert_eq!(order, "abcd");
    }

    #[test]
    fn the_reason_for_no_measurement_stands_first() {
        let diagnosis = diagnose(&Host::default(), None, None).not_measured("no\nBPF");
        assert_eq!(diagnosis.not_checked[0].check, "measurement");
        assert_eq!(diagnosis.not_checked[0].reason, "nothing was measured: no BPF");
    }
}
