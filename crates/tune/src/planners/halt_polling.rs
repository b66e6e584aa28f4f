//! How long vCPUs poll before they sleep (`halt_poll_ns` of the module kvm).
//!
//! Input: the proposal of the check `vm_halt_polling`. Output: this change, if a warning makes it and the goal is not
//! throughput: the price is CPU time of idle guests.
//!
//! Rule: Documentation/virt/kvm/halt-polling.rst.

use super::Planner;
use super::draft::Draft;
use super::situation::Situation;
use nearpath_model::{FileOf, Goal, SettingFile, Target};

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
    draft.add_proposed(situation, target, "halt_poll_ns".to_owned());
}
