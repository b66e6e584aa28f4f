//! How long GRO may hold packets for others to join them (`gro_flush_timeout`, nanoseconds).
//!
//! In go what interfaces have. For the goal of latency out comes a change to 0 where nothing busy-polls: a packet
//! that is held then waits for a timer. Where programs poll (`net.core.busy_poll`, `busy_read`) it is theirs:
//! they take packets themselves meanwhile.
//!
//! Rule: Documentation/networking/napi.rst ("Software IRQ coalescing").

use super::Planner;
use super::draft::{Draft, Wish};
use super::situation::Situation;
use nearpath_model::{Goal, SettingFile};

pub(super) const PLANNER: Planner = Planner {
    name: "gro_flush_timeout",
    plans: "no packets held by GRO, for latency, where no program busy-polls",
    run,
};

const FILE: &str = "gro_flush_timeout";

fn run(situation: &Situation<'_>, draft: &mut Draft) {
    to_zero(situation, draft, FILE, |nic, now| {
        format!(
            "GRO on {nic} holds packets for up to {} µs, and no program busy-polls",
            now.div_ceil(1000)
        )
    });
}

/// For the goal of latency, where no program polls, sets a file of each interface to 0.
pub(super) fn to_zero(
    situation: &Situation<'_>,
    draft: &mut Draft,
    file: &str,
    why: impl Fn(&str, u64) -> String,
) {
    if situation.request.goal != Goal::Latency || situation.polls() {
        return;
    }
    for nic in situation.nics() {
        let target = SettingFile::interface(&nic.name, file);
        let Some(now) = situation.request.system.number(&target).filter(|now| *now > 0) else {
            continue;
        };
        draft.add(Wish {
            id: format!("{}/{file}", nic.name),
            target: target.into(),
            before: now.to_string().into(),
            after: "0".into(),
            why: why(&nic.name, now),
            finding: None,
        });
    }
}
