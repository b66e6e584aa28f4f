//! Sysctls and transparent hugepage settings, each only with evidence: a check proposes it after it has seen dropped
//! packets, time squeezes, stalled tasks, or migrating readers.
//!
//! Input: the findings. Output: the sysctl changes proposed by warnings and critical findings; those of informational
//! findings become notes. Other sysctls of tuning guides are not changed: without evidence that the default is harmful,
//! another value is as likely to be.

use super::Planner;
use super::draft::{Draft, DraftChange};
use super::situation::{Situation, version};
use nearpath_model::{
    FileOf, Finding, Goal, Host, HugePages, ProposedChange, SettingFile, Severity, Sysctl, Target,
};

pub(super) const PLANNER: Planner =
    Planner { name: "sysctls", plans: "sysctls proposed by a warning or critical finding", run };

fn run(situation: &Situation<'_>, draft: &mut Draft) {
    for finding in situation.findings {
        for change in finding.changes.iter().filter(|change| !change.alternative) {
            let Some(target) = change.target.setting().map(|its| here(situation.host, its)) else {
                continue;
            };
            let Some(name) = name_of(&target) else { continue };
            // RFS flows are handled by the planner of RPS.
            let of_rps = change.target.sysctl() == Some(super::rps::ENTRIES);
            if !draft.has(&target) && !of_rps {
                propose(situation, draft, finding, change, name, target);
            }
        }
    }
}

/// The same setting in this kernel: the migration cost is in debugfs since 5.13.
fn here(host: &Host, target: &Target) -> Target {
    match target {
        Target::File(file) if matches!(file.of, FileOf::MigrationCost | OLD_MIGRATION_COST) => {
            let of = if since_5_13(host) { FileOf::MigrationCost } else { OLD_MIGRATION_COST };
            SettingFile::from(of).into()
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
        FileOf::HugePages(HugePages::Enabled) => Some("transparent_hugepage.enabled"),
        FileOf::HugePages(HugePages::Defrag) => Some("transparent_hugepage.defrag"),
        FileOf::Irq(_) | FileOf::Queue { .. } | FileOf::Interface { .. } => None,
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
}
