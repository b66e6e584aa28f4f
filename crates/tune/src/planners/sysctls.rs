//! Sysctls, each only with evidence for it: what a check proposes after it has seen packets dropped or
//! softirqs cut short.
//!
//! In go the findings. Out come the changes of sysctls that findings of some weight propose; what a
//! finding only mentions for information becomes a note. All other sysctls of tuning guides are left
//! alone: without a sign that the default does harm, another value is as likely to.

use super::Planner;
use super::draft::{Draft, Wish};
use super::situation::Situation;
use crate::files::row_of;
use nearpath_diagnose::{Finding, ProposedChange, Severity};

pub(super) const PLANNER: Planner =
    Planner { name: "sysctls", plans: "sysctls that a finding of some weight asks for", run };

fn run(situation: &Situation<'_>, draft: &mut Draft) {
    for finding in situation.findings {
        for change in finding.changes.iter().filter(|change| !change.alternative) {
            let Some(name) = change.target.strip_prefix("sysctl ") else { continue };
            let path = format!("/proc/sys/{}", name.replace('.', "/"));
            // The flows of RFS are the business of the planner of RPS.
            let of_rps = name == super::rps::ENTRIES;
            if row_of(&path).is_some() && !draft.has(&path) && !of_rps {
                propose(draft, finding, change, name, path);
            }
        }
    }
}

fn propose(
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
