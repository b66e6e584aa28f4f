//! How long GRO may keep packets back for others to join them (`gro_flush_timeout`, nanoseconds).
//!
//! In go what interfaces have. For the goal of latency out comes a change to 0 where nothing polls: a packet
//! that is kept back then waits for a timer. Where programs poll (`net.core.busy_poll`, `busy_read`) it is theirs:
//! they take packets themselves meanwhile.
//!
//! Rule: Documentation/networking/napi.rst ("Software IRQ coalescing").

use super::Planner;
use super::draft::{Draft, Wish};
use super::situation::Situation;
use nearpath_model::{Goal, SettingFile};

pub(super) const PLANNER: Planner = Planner {
    name: "gro_flush_timeout",
    plans: "packets that GRO keeps back, for latency, where no program polls",
    run,
};

const FILE: &str = "gro_flush_timeout";

fn run(situation: &Situation<'_>, draft: &mut Draft) {
    if situation.request.goal != Goal::Latency || situation.polls() {
        return;
    }
    for nic in situation.nics() {
        let file = SettingFile::interface(&nic.name, FILE);
        let Some(now) = situation.request.system.number(&file).filter(|now| *now > 0) else {
            continue;
        };
        draft.add(Wish {
            id: format!("{}/{FILE}", nic.name),
            target: file.into(),
            before: now.to_string().into(),
            after: "0".into(),
            why: format!(
                "GRO keeps packets of {} back for up to {} µs, and no program polls for them",
                nic.name,
                now.div_ceil(1000)
            ),
            finding: None,
        });
    }
}
