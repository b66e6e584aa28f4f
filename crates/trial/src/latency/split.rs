//! Splits a probe's latency into parts, by kernel timestamps.
//!
//! ```text
//! intended ─ sender_late ─ send() ─ send_stack ─ driver ─ wire ─┐
//!                                                               ▼
//!                 arrived ─ far_receive ─ read ─ far_turn ─ sent ─┐      (the reflector's clock)
//!                                                                 ▼ wire
//!                                          stamp of receipt ─ receive ─ read
//! ```
//! Input: the times of this side on one clock and the reflector's on its own. Output: parts that add up to the
//! latency. Differences are taken only within one clock; `wire` is the remainder of the time between both
//! timestamps of this side, and so includes the reflector's path from its `send()` to its driver.

use super::distribution::{Distribution, Summary};
use super::message::Turn;
use serde::{Deserialize, Serialize};

/// The parts of a latency, in the order of the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Parts {
    pub(super) sender_late_ns: u64,
    pub(super) send_stack_ns: u64,
    pub(super) wire_ns: u64,
    pub(super) far_receive_ns: u64,
    pub(super) far_turn_ns: u64,
    pub(super) receive_ns: u64,
}

/// The times of a probe on this side, all on one clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    /// When it was to be sent, and when the send call started.
    pub(super) intended_ns: u64,
    pub(super) sending_ns: u64,
    /// The kernel's timestamps: handed to the device, received.
    pub(super) sent_ns: u64,
    pub(super) arrived_ns: u64,
    /// When the answer had been read.
    pub(super) read_ns: u64,
}

impl Parts {
    /// `None` if the times are inconsistent: a clock was set in between, or the reflector sent impossible
    /// values.
    pub(super) fn of(times: &Times, turn: &Turn) -> Option<Self> {
        let far_receive_ns = turn.read_ns.checked_sub(turn.arrived_ns)?;
        let far_turn_ns = turn.sent_ns.checked_sub(turn.read_ns)?;
        let away_ns = times.arrived_ns.checked_sub(times.sent_ns)?;
        Some(Self {
            sender_late_ns: times.sending_ns.checked_sub(times.intended_ns)?,
            send_stack_ns: times.sent_ns.checked_sub(times.sending_ns)?,
            wire_ns: away_ns.checked_sub(far_receive_ns)?.checked_sub(far_turn_ns)?,
            far_receive_ns,
            far_turn_ns,
            receive_ns: times.read_ns.checked_sub(times.arrived_ns)?,
        })
    }
}

/// Where the latency went, over all probes that could be split.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Split {
    /// From the intended send time to the send call.
    pub sender_late: Summary,
    /// From that call to the device's driver.
    pub send_stack: Summary,
    /// Both directions between the two hosts, including the reflector's path from its call to its driver.
    pub wire: Summary,
    /// In the reflector's kernel, from receipt to its user space; 0 if it had no timestamp, and then part of
    /// `wire`.
    pub far_receive: Summary,
    /// In the reflector process.
    pub far_turn: Summary,
    /// From receipt by this kernel to user space: the stack and the wake-up.
    pub receive: Summary,
    /// Answers that could not be split: a timestamp is missing, or a clock was set.
    pub not_split: u64,
}

/// Distributions of the parts.
#[derive(Debug, Clone)]
pub(super) struct Splits([Distribution; 6]);

impl Splits {
    pub(super) fn new() -> Self {
        Self(std::array::from_fn(|_| Distribution::new()))
    }

    pub(super) fn record(&mut self, parts: &Parts) {
        let Parts {
            sender_late_ns,
            send_stack_ns,
            wire_ns,
            far_receive_ns,
            far_turn_ns,
            receive_ns,
        } = *parts;
        let all = [sender_late_ns, send_stack_ns, wire_ns, far_receive_ns, far_turn_ns, receive_ns];
        self.0.iter_mut().zip(all).for_each(|(part, ns)| part.record(ns));
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(mine, theirs)| mine.add(theirs));
    }

    /// `None` if no answer could be split.
    pub(super) fn summary(&self, not_split: u64) -> Option<Split> {
        let [sender_late, send_stack, wire, far_receive, far_turn, receive] =
            self.0.each_ref().map(Distribution::summary);
        let split =
            Split { sender_late, send_stack, wire, far_receive, far_turn, receive, not_split };
        (split.wire.count > 0).then_some(split)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TIMES: Times =
        Times { intended_ns: 100, sending_ns: 130, sent_ns: 137, arrived_ns: 237, read_ns: 250 };

    #[test]
    fn the_time_at_the_reflector_is_subtracted_by_its_own_clock() {
        let turn = Turn { arrived_ns: 9_000, stamped: true, read_ns: 9_050, sent_ns: 9_060 };
        let parts = Parts::of(&TIMES, &turn).unwrap();
        let expected = Parts {
            sender_late_ns: 30,
            send_stack_ns: 7,
            wire_ns: 40,
            far_receive_ns: 50,
            far_turn_ns: 10,
            receive_ns: 13,
        };
        assert_eq!(parts, expected);
    }

    #[test]
    fn impossible_times_are_not_split() {
        let turn =
            |arrived_ns, read_ns, sent_ns| Turn { arrived_ns, stamped: true, read_ns, sent_ns };
        assert_eq!(Parts::of(&TIMES, &turn(10, 9, 20)), None, "read before it came");
        assert_eq!(Parts::of(&TIMES, &turn(10, 20, 19)), None, "answered before it was read");
        assert_eq!(Parts::of(&TIMES, &turn(0, 60, 101)), None, "longer there than away");
        assert_eq!(Parts::of(&TIMES, &turn(0, 1, u64::MAX)), None);
        let set_back = Times { arrived_ns: 136, ..TIMES };
        assert_eq!(Parts::of(&set_back, &turn(0, 0, 0)), None, "the clock was set");
    }

    proptest! {
        #[test]
        fn parts_add_up_to_the_latency(all: [u32; 5], far: [u32; 3]) {
            let mut all = all.map(u64::from);
            all.sort_unstable();
            let [intended_ns, sending_ns, sent_ns, arrived_ns, read_ns] = all;
            let times = Times { intended_ns, sending_ns, sent_ns, arrived_ns, read_ns };
            let [arrived, read, sent] = far.map(u64::from);
            let turn = Turn { arrived_ns: arrived, stamped: true, read_ns: read, sent_ns: sent };
            if let Some(parts) = Parts::of(&times, &turn) {
                let sum = parts.sender_late_ns + parts.send_stack_ns + parts.wire_ns
                    + parts.far_receive_ns + parts.far_turn_ns + parts.receive_ns;
                prop_assert_eq!(sum, read_ns - intended_ns);
            }
        }
    }
}
