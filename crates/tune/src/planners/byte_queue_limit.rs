//! A bound of what drivers hold for their link (`byte_queue_limits/limit_max`, bytes).
//!
//! Input: the proposals of the check `byte_queue_limit`. Output: these changes, if a warning makes them and the goal is
//! not throughput: the price is that a device may run dry between two interrupts.
//!
//! Rule: lib/dynamic_queue_limits.c.

use super::Planner;
use super::draft::Draft;
use super::situation::Situation;
use nearpath_model::{Goal, QueueFile, SettingFile, Target};

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
            let id = format!("{}/{}/{file}", nic.name, file.queue(queue.queue));
            draft.add_proposed(situation, target, id);
        }
    }
}
