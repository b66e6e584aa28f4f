//! A bound of what drivers hold for their link (`byte_queue_limits/limit_max`, bytes).
//!
//! Input: the proposals of the check `byte_queue_limit`. Output: these changes, if a warning makes them and the goal is
//! not throughput: the price is that a device may run dry between two interrupts.
//!
//! Rule: lib/dynamic_queue_limits.c.

use super::Planner;
use super::draft::{Draft, DraftChange};
use super::situation::Situation;
use nearpath_model::{Goal, QueueFile, SettingFile, Severity, Target};

pub(super) const PLANNER: Planner = Planner {
    name: "byte_queue_limit",
    plans: "a bound of what drivers hold, if packets wait there for milliseconds",
    run,
};

fn run(situation: &Situation<'_>, draft: &mut Draft) {
    if situation.request.goal == Goal::Throughput {
        return;
    }
    let file = QueueFile::ByteLimitMax;
    for nic in situation.hardware() {
        for queue in &nic.tx_queues {
            let target = Target::from(SettingFile::queue(&nic.name, queue.queue, file));
            let Some((finding, change)) = situation.proposed(&target) else { continue };
            if let Some(before) = change.before.clone()
                && finding.severity >= Severity::Warning
            {
                draft.add(DraftChange {
                    id: format!("{}/{}/{file}", nic.name, file.queue(queue.queue)),
                    target,
                    before,
                    after: change.after.clone(),
                    why: change.why.trim_end_matches('.').to_owned(),
                    finding: Some(finding.check.clone()),
                });
            }
        }
    }
}
