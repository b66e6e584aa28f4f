//! Sysctls, and the settings of transparent hugepages, each only with evidence for it: what a check
//! proposes after it has seen packets dropped, softirqs cut short, tasks stalled, readers moved about.
//!
//! In go the findings. Out come the changes of sysctls that findings of some weight propose; what a
//! finding only mentions for information becomes a note. All other sysctls of tuning guides are left
//! alone: without a sign that the default does harm, another value is as likely to.

use super::Planner;
use super::draft::{Draft, Wish};
use super::situation::{Situation, version};
use nearpath_model::{
    FileOf, Finding, Goal, Host, Proposal, ProposedChange, SettingFile, Severity, Target,
};

pub(super) const PLANNER: Planner =
    Planner { name: "sysctls", plans: "sysctls that a finding of some weight asks for", run };

fn run(situation: &Situation<'_>, draft: &mut Draft) {
    for finding in situation.findings {
        for change in finding.changes.iter().filter(|change| !change.alternative) {
            let Some(name) = name_of(&change.target) else { continue };
            let Some(target) = target_of(situation.host, &name) else { continue };
            // The flows of RFS are the business of the planner of RPS.
            let of_rps = name == super::rps::ENTRIES;
            if !draft.has(&target) && !of_rps {
                propose(situation, draft, finding, change, &name, target);
            }
        }
    }
}

/// The file of a sysctl that may be written, or of what is read like one.
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

/// What costs CPU time where nothing waits.
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
    if finding.severity == Severity::Info {
        let (check, after) = (&finding.check, &change.after);
        return draft.note(format!("{name} = {after} may help, but nothing suffers yet ({check})"));
    }
    if situation.request.goal != Goal::Latency && POLLING.contains(&name) {
        return draft.note(format!(
            "{name} stays: a reader that polls keeps a CPU busy, which is for --goal latency"
        ));
    }
    let Some(before) = change.before.clone() else {
        return draft.note(format!("{name} is unknown here"));
    };
    draft.add(Wish {
        id: name.to_owned(),
        target,
        before,
        after: change.after.clone(),
        why: format!("{}; {why}", finding.title),
        finding: Some(finding.check.clone()),
    });
}
