//! How long vCPUs poll before they sleep (`halt_poll_ns` of the module kvm).
//!
//! Input: the proposal of the check `vm_halt_polling`. Output: this change, if a warning makes it and the goal is not
//! throughput: the price is CPU time of idle guests.
//!
//! Rule: Documentation/virt/kvm/halt-polling.rst.

use super::Planner;
use super::draft::{Draft, DraftChange};
use super::situation::Situation;
use nearpath_model::{FileOf, Goal, SettingFile, Severity, Target};

pub(super) const PLANNER: Planner = Planner {
    name: "halt_polling",
    plans: "polling of vCPUs before they sleep, if it is off where guests receive packets",
    run,
};

fn run(situation: &Situation<'_>, draft: &mut Draft) {
    if situation.request.goal == Goal::Throughput {
        return;
    }
    let target = Target::from(SettingFile::from(FileOf::HaltPolling));
    let Some((finding, change)) = situation.proposed(&target) else { return };
    if let Some(before) = change.before.clone()
        && finding.severity >= Severity::Warning
    {
        draft.add(DraftChange {
            id: "halt_poll_ns".to_owned(),
            target,
            before,
            after: change.after.clone(),
            why: change.why.trim_end_matches('.').to_owned(),
            finding: Some(finding.check.clone()),
        });
    }
}
