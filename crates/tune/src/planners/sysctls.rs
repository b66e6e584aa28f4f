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
    FileOf, Finding, Goal, Host, Proposal, ProposedChange, SettingFile, Severity, Target,
};

pub(super) const PLANNER: Planner =
    Planner { name: "sysctls", plans: "sysctls proposed by a warning or critical finding", run };

fn run(situation: &Situation<'_>, draft: &mut Draft) {
    for finding in situation.findings {
        for change in finding.changes.iter().filter(|change| !change.alternative) {
            let Some(name) = name_of(&change.target) else { continue };
            let Some(target) = target_of(situation.host, &name) else { continue };
            // RFS flows are handled by the planner of RPS.
            let of_rps = name == super::rps::ENTRIES;
            if !draft.has(&target) && !of_rps {
                propose(situation, draft, finding, change, &name, target);
            }
        }
    }
}

/// The writable file of a sysctl, or of a setting that is handled like one.
pub(super) fn target_of(host: &Host, name: &str) -> Option<Target> {
    let file = match name {
        "transparent_hugepage.enabled" | "transparent_hugepage.defrag" => {
            SettingFile::new(format!("/sys/kernel/mm/{}", name.replace('.', "/")), None)
        }
        MIGRATION_COST if since_5_13(host) => {
            SettingFile::new(format!("/sys/kernel/debug/sched/{MOVED_TO}"), None)
        }
        _ => SettingFile::sysctl(name),
    };
    file.of().is_some().then(|| file.into())
}

/// Settings that cost CPU time if nothing waits.
const POLLING: [&str; 2] = ["net.core.busy_read", "net.core.busy_poll"];
const MIGRATION_COST: &str = "kernel.sched_migration_cost_ns";
/// Its name in debugfs (commit 8a99b6833c88, "sched: Move SCHED_DEBUG sysctl to debugfs").
const MOVED_TO: &str = "migration_cost_ns";

fn since_5_13(host: &Host) -> bool {
    let release = host.kernel.release.as_deref().unwrap_or_default();
    version(release).is_some_and(|version| version >= (5, 13))
}

/// The name of a sysctl, or of a setting of transparent huge pages.
fn name_of(proposal: &Proposal) -> Option<String> {
    let Target::File(file) = proposal.setting()? else { return None };
    match file.of() {
        Some(FileOf::Sysctl(name)) => Some(name),
        Some(FileOf::HugePages(name)) => Some(format!("transparent_hugepage.{name}")),
        Some(FileOf::Other(_)) if file.path.ends_with(MOVED_TO) => Some(MIGRATION_COST.to_owned()),
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
    if situation.request.goal != Goal::Latency && POLLING.contains(&name) {
        return draft.note(format!(
            "{name} is not changed: polling readers keep a CPU busy, which suits --goal latency"
        ));
    }
    // With the goal latency, polling is worth it however few packets wait.
    if finding.severity == Severity::Info && !POLLING.contains(&name) {
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
        let moved = SettingFile::new("/sys/kernel/debug/sched/migration_cost_ns", None);
        for (release, file) in
            [("5.10.0-8-amd64", SettingFile::sysctl(MIGRATION_COST)), ("6.12.1", moved)]
        {
            let mut host = Host::default();
            host.kernel.release = Some(release.to_owned());
            let target = Target::from(file.clone());
            assert_eq!(target_of(&host, MIGRATION_COST), Some(target), "{release}");
            // As a finding proposes it.
            assert_eq!(name_of(&Proposal::from(file)).as_deref(), Some(MIGRATION_COST));
        }
    }
}
