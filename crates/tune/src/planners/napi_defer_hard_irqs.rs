//! How many times a driver's interrupt stays disabled after an empty poll (`napi_defer_hard_irqs`).
//!
//! Input: the values of the interfaces. Output: for the goal latency, a change to 0 if nothing polls: until the timer of
//! `gro_flush_timeout` expires, an arriving packet waits for it instead of raising an interrupt. If programs poll
//! (`net.core.busy_poll`, `busy_read`) that is the intended use.
//!
//! Rule: Documentation/networking/napi.rst ("Software IRQ coalescing").

use super::Planner;
use super::draft::Draft;
use super::gro_flush_timeout::to_zero;
use super::situation::Situation;
use nearpath_model::InterfaceFile;

pub(super) const PLANNER: Planner = Planner {
    name: "napi_defer_hard_irqs",
    plans: "no deferred interrupts, for latency, if no program busy-polls",
    run,
};

const FILE: InterfaceFile = InterfaceFile::NapiDeferHardIrqs;

fn run(situation: &Situation<'_>, draft: &mut Draft) {
    to_zero(situation, draft, FILE, |nic, now| {
        format!(
            "after an empty poll the interrupts of {nic} stay disabled for up to {now} periods of \
             gro_flush_timeout, and no program busy-polls"
        )
    });
}

#[cfg(test)]
mod tests {
    use super::super::tests::{of_kind, with_files};
    use super::*;
    use nearpath_model::Goal;

    #[test]
    fn interrupts_are_deferred_only_for_polling_programs() {
        let planned = |goal, now, busy_poll| {
            let plan = with_files(goal, &[(FILE, now)], busy_poll);
            of_kind(&plan, FILE.name()).into_values().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(planned(Goal::Latency, "2", "0"), ["0"]);
        assert!(planned(Goal::Latency, "0", "0").is_empty());
        assert!(planned(Goal::Latency, "2", "50").is_empty());
        assert!(planned(Goal::Throughput, "2", "0").is_empty());
    }
}
