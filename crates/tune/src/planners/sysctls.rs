//! Sysctls, and the settings of transparent hugepages, each only with evidence for it: what a check
//! proposes after it has seen packets dropped, softirqs cut short, tasks stalled, readers moved about.
//!
//! In go the findings. Out come the changes of sysctls that findings of some weight propose; what a
//! finding only mentions for information becomes a note. All other sysctls of tuning guides are left
//! alone: without a sign that the default does harm, another value is as likely to.

use super::Planner;
use super::draft::{Draft, Wish};
use super::situation::{Situation, version};
use crate::files::row_of;
use crate::plan::Goal;
use nearpath_diagnose::{Finding, ProposedChange, Severity};
use nearpath_model::Host;

pub(super) const PLANNER: Planner =
    Planner { name: "sysctls", plans: "sysctls that a finding of some weight asks for", run };

fn run(situation: &Situation<'_>, draft: &mut Draft) {
    for finding in situation.findings {
        for change in finding.changes.iter().filter(|change| !change.alternative) {
            let name = change.target.strip_prefix("sysctl ");
            let name = name.or_else(|| transparent_hugepage(&change.target));
            let Some(name) = name else { continue };
            let Some(path) = path_of(situation.host, name) else { continue };
            // The flows of RFS are the business of the planner of RPS.
            let of_rps = name == super::rps::ENTRIES;
            if !draft.has(&path) && !of_rps {
                propose(situation, draft, finding, change, name, path);
            }
        }
    }
}

/// The file of a sysctl that may be written, or of what is read like one.
pub(super) fn path_of(host: &Host, name: &str) -> Option<String> {
    let path = match name {
        "transparent_hugepage.enabled" | "transparent_hugepage.defrag" => {
            format!("/sys/kernel/mm/{}", name.replace('.', "/"))
        }
        MIGRATION_COST if since_5_13(host) => format!("/sys/kernel/debug/sched/{MOVED_TO}"),
        _ => format!("/proc/sys/{}", name.replace('.', "/")),
    };
    row_of(&path).is_some().then_some(path)
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

/// The name of a setting of transparent hugepages by its path.
fn transparent_hugepage(path: &str) -> Option<&'static str> {
    match path {
        "/sys/kernel/mm/transparent_hugepage/enabled" => Some("transparent_hugepage.enabled"),
        "/sys/kernel/mm/transparent_hugepage/defrag" => Some("transparent_hugepage.defrag"),
        _ => None,
    }
}

fn propose(
    situation: &Situation<'_>,
    draft: &mut Draft,
    finding: &Finding,
    change: &ProposedChange,
    name: &str,
    path: String,
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
        target: path,
        before,
        after: change.after.clone(),
        why: format!("{}; {why}", finding.title),
        finding: Some(finding.check.clone()),
    });
}
