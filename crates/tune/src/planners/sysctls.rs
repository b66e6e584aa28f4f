//! Sysctls and transparent hugepage settings, each only with evidence: a check proposes it after it has seen dropped
//! packets, time squeezes, stalled tasks, or migrating readers.
//!
//! Input: the findings. Output: the sysctl changes proposed by warnings and critical findings; those of informational
//! findings become notes. Where two findings propose a sysctl, one change has the larger value and both as its reason.
//! Other sysctls of tuning guides are not changed: without evidence that the default is harmful, another value is as
//! likely to be.

use super::Planner;
use super::draft::{Draft, DraftChange};
use super::situation::{Situation, version};
use nearpath_model::{
    FileOf, Finding, Goal, Host, HugePages, NumaScan, PlannedChange, ProposedChange, SettingFile,
    Severity, Sysctl, Target,
};

pub(super) const PLANNER: Planner =
    Planner { name: "sysctls", plans: "sysctls proposed by a warning or critical finding", run };

fn run(situation: &Situation<'_>, draft: &mut Draft) {
    for (name, after) in &situation.request.sysctls {
        request(situation, draft, name, after);
    }
    for finding in situation.findings {
        for change in finding.changes.iter().filter(|change| !change.alternative) {
            let Some(target) = change.target.setting().map(|its| here(situation.host, its)) else {
                continue;
            };
            let Some(name) = name_of(&target) else { continue };
            // RFS flows are handled by the planner of RPS.
            if change.target.sysctl() == Some(super::rps::ENTRIES) {
                continue;
            }
            match draft.planned(&target) {
                Some(planned) => join(planned, finding, change),
                None => propose(situation, draft, finding, change, name, target),
            }
        }
    }
}

/// A sysctl on request.
fn request(situation: &Situation<'_>, draft: &mut Draft, name: &str, after: &str) {
    let host = situation.host;
    let Some(sysctl) = Sysctl::parse(name) else {
        return draft.note(format!("{name} is not a sysctl that nearpath changes"));
    };
    let Some(before) = host.sysctls.get(name) else {
        return draft.note(format!("{name} is unknown on this host"));
    };
    if before == after {
        return draft.note(format!("{name} is {after} already"));
    }
    draft.add(DraftChange {
        id: name.to_owned(),
        target: here(host, &sysctl.into()),
        before: before.as_str().into(),
        after: after.into(),
        why: format!("requested: it is {before}"),
        finding: None,
    });
}

/// The same setting in this kernel: the migration cost and the scan settings of AutoNUMA are in debugfs since 5.13.
fn here(host: &Host, target: &Target) -> Target {
    match target {
        Target::File(file) if matches!(file.of, FileOf::MigrationCost | OLD_MIGRATION_COST) => {
            let of = if since_5_13(host) { FileOf::MigrationCost } else { OLD_MIGRATION_COST };
            SettingFile::from(of).into()
        }
        Target::File(file) => {
            let scan = NumaScan::ALL.iter().copied().find(|scan| {
                matches!(&file.of, FileOf::NumaScan(its) if its == scan)
                    || matches!(&file.of, FileOf::Sysctl(its) if *its == scan.sysctl())
            });
            match scan {
                Some(scan) if since_5_13(host) => SettingFile::from(FileOf::NumaScan(scan)).into(),
                Some(scan) => scan.sysctl().into(),
                None => target.clone(),
            }
        }
        _ => target.clone(),
    }
}

/// Settings that cost CPU time if nothing waits.
const POLLING: [Sysctl; 2] = [Sysctl::BusyRead, Sysctl::BusyPoll];
/// Where the migration cost is before Linux 5.13.
const OLD_MIGRATION_COST: FileOf = FileOf::Sysctl(Sysctl::SchedMigrationCostNs);

fn since_5_13(host: &Host) -> bool {
    let release = host.kernel.release.as_deref().unwrap_or_default();
    version(release).is_some_and(|version| version >= (5, 13))
}

/// The name of a sysctl, or of a setting that is handled like one.
pub(super) fn name_of(target: &Target) -> Option<&'static str> {
    let Target::File(file) = target else { return None };
    match file.of {
        FileOf::Sysctl(sysctl) => Some(sysctl.name()),
        FileOf::MigrationCost => Some(Sysctl::SchedMigrationCostNs.name()),
        FileOf::NumaScan(scan) => Some(scan.sysctl().name()),
        FileOf::HugePages(HugePages::Enabled) => Some("transparent_hugepage.enabled"),
        FileOf::HugePages(HugePages::Defrag) => Some("transparent_hugepage.defrag"),
        _ => None,
    }
}

fn propose(
    situation: &Situation<'_>,
    draft: &mut Draft,
    finding: &Finding,
    change: &ProposedChange,
    name: &str,
    target: Target,
) {
    let why = change.why.trim_end_matches('.');
    let is_polling = change.target.sysctl().is_some_and(|sysctl| POLLING.contains(&sysctl));
    if situation.request.goal != Goal::Latency && is_polling {
        return draft.note(format!(
            "{name} is not changed: polling readers keep a CPU busy, which suits --goal latency"
        ));
    }
    // With the goal latency, polling is worth it however few packets wait.
    if finding.severity == Severity::Info && !is_polling {
        let (check, after) = (&finding.check, &change.after);
        return draft
            .note(format!("{name} = {after} may help, but there is no current harm ({check})"));
    }
    let Some(before) = change.before.clone() else {
        return draft.note(format!("{name} is unknown"));
    };
    draft.add(DraftChange {
        id: name.to_owned(),
        target,
        before,
        after: change.after.clone(),
        why: format!("{}; {why}", finding.title),
        finding: Some(finding.check.clone()),
    });
}

/// Another finding proposes a sysctl that is planned already.
fn join(planned: &mut PlannedChange, finding: &Finding, change: &ProposedChange) {
    let is_same = planned.finding.as_ref() == Some(&finding.check);
    if finding.severity == Severity::Info || is_same {
        return;
    }
    let texts = (planned.before.text(), planned.after.text(), change.after.text());
    let (Some(before), Some(first), Some(second)) = texts else { return };
    let Some(after) = larger(before, first, second) else { return };
    planned.after = after.into();
    planned.why = format!("{}; also {}: {}", planned.why, finding.check, finding.title);
}

/// The larger of two values, number by number; `None` unless both raise the one before.
fn larger(before: &str, first: &str, second: &str) -> Option<String> {
    let numbers = |text: &str| -> Option<Vec<u64>> {
        text.split_ascii_whitespace().map(|number| number.parse().ok()).collect()
    };
    let (before, first, second) = (numbers(before)?, numbers(first)?, numbers(second)?);
    let raises = |after: &[u64]| {
        after.len() == before.len() && after.iter().zip(&before).all(|(after, now)| after >= now)
    };
    let largest = first.iter().zip(&second).map(|(a, b)| a.max(b).to_string());
    (raises(&first) && raises(&second)).then(|| largest.collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_migration_cost_has_one_name_and_two_places() {
        let both = [OLD_MIGRATION_COST, FileOf::MigrationCost].map(SettingFile::from);
        let both = both.map(Target::from);
        for (release, target) in ["5.10.0-8-amd64", "6.12.1"].into_iter().zip(&both) {
            let mut host = Host::default();
            host.kernel.release = Some(release.to_owned());
            assert_eq!(
                both.each_ref().map(|its| here(&host, its)),
                [target, target].map(Clone::clone)
            );
            assert_eq!(name_of(target), Some("kernel.sched_migration_cost_ns"));
        }
    }

    #[test]
    fn the_scan_settings_have_one_name_and_two_places() {
        for &scan in NumaScan::ALL {
            let sysctl = Target::from(scan.sysctl());
            let moved = Target::from(SettingFile::from(FileOf::NumaScan(scan)));
            for (release, target) in [("5.10.0-8-amd64", &sysctl), ("6.12.1", &moved)] {
                let mut host = Host::default();
                host.kernel.release = Some(release.to_owned());
                assert_eq!(
                    [here(&host, &sysctl), here(&host, &moved)],
                    [target, target].map(Clone::clone)
                );
                assert_eq!(name_of(target), Some(scan.sysctl().name()));
            }
        }
    }

    #[test]
    fn the_larger_of_two_values_is_planned() {
        let of = |first, second| larger("4096 131072 6291456", first, second);
        let (small, large) = ("4096 131072 12582912", "4096 131072 16777216");
        assert_eq!(of(small, large).as_deref(), Some(large));
        assert_eq!(of(large, small).as_deref(), Some(large));
        assert_eq!(of("8192 131072 6291456", small).as_deref(), Some("8192 131072 12582912"));
        // One of them lowers it, has another form, or is no number.
        for other in ["4096 131072 4194304", "16777216", "4096 131072 much", ""] {
            assert_eq!(of(large, other), None, "{other}");
            assert_eq!(of(other, large), None, "{other}");
        }
        assert_eq!(larger("cubic", "bbr", "bbr"), None);
    }
}
