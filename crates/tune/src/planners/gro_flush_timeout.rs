//! How long GRO may hold packets for others to join them (`gro_flush_timeout`, nanoseconds).
//!
//! Input: the values of the interfaces. Output: for the goal latency, a change to 0 if nothing busy-polls: a held packet
//! then waits for a timer. If programs poll (`net.core.busy_poll`, `busy_read`) the setting is intended for them: they
//! fetch packets themselves meanwhile.
//!
//! Rule: Documentation/networking/napi.rst ("Software IRQ coalescing").

use super::Planner;
use super::draft::{Draft, DraftChange};
use super::situation::Situation;
use nearpath_model::{Goal, InterfaceFile, SettingFile, Target};

pub(super) const PLANNER: Planner = Planner {
    name: "gro_flush_timeout",
    plans: "no packets held by GRO, for latency, if no program busy-polls",
    run,
};

const FILE: InterfaceFile = InterfaceFile::GroFlushTimeout;

fn run(situation: &Situation<'_>, draft: &mut Draft) {
    to_zero(situation, draft, FILE, |nic, now| {
        format!(
            "GRO on {nic} holds packets for up to {}µs, and no program busy-polls",
            now.div_ceil(1000)
        )
    });
}

/// For the goal latency, if no program polls, sets a file of each interface to 0.
pub(super) fn to_zero(
    situation: &Situation<'_>,
    draft: &mut Draft,
    file: InterfaceFile,
    why: impl Fn(&str, u64) -> String,
) {
    if situation.request.goal != Goal::Latency || situation.polls() {
        return;
    }
    for nic in situation.nics() {
        let setting = SettingFile::interface(&nic.name, file);
        let Some(now) = situation.request.system.number(&setting).filter(|now| *now > 0) else {
            continue;
        };
        let target = Target::from(setting);
        draft.add(DraftChange {
            id: format!("{}/{file}", nic.name),
            finding: situation.asked_by(&target),
            target,
            before: now.to_string().into(),
            after: "0".into(),
            why: why(&nic.name, now),
        });
    }
}
