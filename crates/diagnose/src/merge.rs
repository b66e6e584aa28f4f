//! Findings of one cause become one.
//!
//! Input: the findings of all checks, ranked. A finding whose check names another in [`Check::explained_by`], and that is
//! about the same CPU, interface or span, becomes a symptom of that finding: it is kept whole in
//! [`Finding::symptoms`], and its changes that the cause lacks are added. A cause is as severe as its worst symptom, unless
//! the cause is nearpath itself: the symptom ends with the measurement, too.

use crate::Check;
use nearpath_model::{Finding, Whose};

/// Puts symptoms under their causes; the order of what is left stays.
pub(crate) fn merge(findings: Vec<Finding>, checks: &[Check]) -> Vec<Finding> {
    let causes = |finding: &Finding| {
        let check = checks.iter().find(|check| check.name == finding.check);
        check.map_or(&[] as &[&str], |check| check.explained_by)
    };
    let mut kept: Vec<Option<Finding>> = findings.into_iter().map(Some).collect();
    for at in 0..kept.len() {
        let Some(symptom) = kept.get(at).and_then(Option::as_ref) else { continue };
        let is_cause = |other: &Finding| {
            causes(symptom).contains(&other.check.as_str()) && is_about_the_same(symptom, other)
        };
        let holds_cause = |other: &Finding| is_cause(other) || other.symptoms.iter().any(is_cause);
        let cause = kept.iter().position(|other| other.as_ref().is_some_and(holds_cause));
        let Some(cause) = cause.filter(|&cause| cause != at) else { continue };
        if let Some(symptom) = kept.get_mut(at).and_then(Option::take)
            && let Some(cause) = kept.get_mut(cause).and_then(Option::as_mut)
        {
            absorb(cause, symptom);
        }
    }
    kept.into_iter().flatten().collect()
}

fn is_about_the_same(a: &Finding, b: &Finding) -> bool {
    a.subjects.iter().any(|subject| b.subjects.contains(subject))
}

fn absorb(cause: &mut Finding, mut symptom: Finding) {
    if cause.whose != Whose::Nearpath {
        cause.severity = cause.severity.max(symptom.severity);
    }
    for change in &symptom.changes {
        // What the cause does with a setting goes before what its symptom would do with it.
        if cause.changes.iter().all(|own| own.target != change.target) {
            cause.changes.push(change.clone());
        }
    }
    cause.subjects.extend(symptom.subjects.iter().cloned());
    cause.symptoms.append(&mut symptom.symptoms);
    cause.symptoms.push(symptom);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CheckOutcome;
    use nearpath_model::{CpuId, ProposedChange, Severity, Subject, Sysctl};

    fn check(name: &'static str, causes: &'static [&'static str]) -> Check {
        Check::new(name, "", |_| CheckOutcome::default()).explained_by(causes)
    }

    fn finding(check: &str, severity: Severity, cpu: u32) -> Finding {
        let finding = Finding::new(severity, check).about([Subject::Cpu(CpuId(cpu))]);
        Finding { check: check.to_owned(), ..finding }
    }

    fn change(sysctl: Sysctl, after: &str) -> ProposedChange {
        ProposedChange::new(sysctl, None, after, "")
    }

    #[test]
    fn a_symptom_goes_under_its_cause_with_its_symptoms() {
        let checks = [check("cause", &[]), check("effect", &["cause"]), check("end", &["effect"])];
        let effect = finding("effect", Severity::Critical, 1);
        let effect =
            effect.change(change(Sysctl::BusyPoll, "1")).change(change(Sysctl::BusyRead, "2"));
        let cause = finding("cause", Severity::Warning, 1).change(change(Sysctl::BusyPoll, "9"));
        let findings = vec![
            effect,
            finding("end", Severity::Info, 1),
            cause,
            finding("effect", Severity::Info, 2),
        ];
        let merged = merge(findings, &checks);
        let names: Vec<&str> = merged.iter().map(|f| f.check.as_str()).collect();
        assert_eq!(names, ["cause", "effect"], "the other is about another CPU");
        let [cause, _] = merged.as_slice() else { panic!() };
        assert_eq!(cause.severity, Severity::Critical);
        assert_eq!(cause.symptoms.len(), 2);
        assert_eq!(cause.changes, [change(Sysctl::BusyPoll, "9"), change(Sysctl::BusyRead, "2")]);
    }

    #[test]
    fn what_nearpath_causes_is_no_problem_of_the_host() {
        let checks = [check("cause", &[]), check("effect", &["cause"])];
        let observer = finding("cause", Severity::Info, 1).of(Whose::Nearpath);
        let merged = merge(vec![finding("effect", Severity::Critical, 1), observer], &checks);
        let [cause] = merged.as_slice() else { panic!("{merged:?}") };
        assert_eq!((cause.severity, cause.symptoms.len()), (Severity::Info, 1));
    }

    #[test]
    fn two_that_explain_each_other_do_not_vanish() {
        let checks = [check("a", &["b"]), check("b", &["a"]), check("c", &["c"])];
        let both = vec![
            finding("a", Severity::Info, 1),
            finding("b", Severity::Info, 1),
            finding("c", Severity::Info, 1),
        ];
        let merged = merge(both, &checks);
        assert_eq!(merged.len(), 2, "{merged:?}");
        assert_eq!(merged.iter().map(|f| f.symptoms.len()).sum::<usize>(), 1);
    }
}
