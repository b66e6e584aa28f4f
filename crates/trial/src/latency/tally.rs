//! Statistics of a flow's answers. Input: each answer with its times. Output: counts and distributions, taken
//! at any time.

use super::deviations::{Deviations, FarTimes};
use super::distribution::Distribution;
use super::message::Turn;
use super::sequence::{Arrival, Sequence};
use super::slots::{Sent, Slots};
use super::split::{Parts, Splits, Times};
use super::txtime::difference;
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// Maximum number of answers that wait for the transmit timestamp of their probe.
const WAITING: usize = 1024;

/// Counts and distributions of answers to counted probes.
#[derive(Debug, Clone)]
pub(super) struct Tally {
    pub(super) latency: Distribution,
    pub(super) splits: Splits,
    /// Of scheduled probes: when the reflector received them, after their time.
    pub(super) arrivals: FarTimes,
    /// When their answers were read, after their time: a probe may leave early, so not as a latency.
    pub(super) answers: Deviations,
    pub(super) received: u64,
    pub(super) late: u64,
    pub(super) reordered: u64,
    pub(super) duplicated: u64,
    /// Received data that is not an answer to a probe of this flow.
    pub(super) ignored: u64,
    /// Answers without a transmit or receive timestamp, or with inconsistent times.
    pub(super) without_sent: u64,
    pub(super) without_received: u64,
    pub(super) contradictory: u64,
}

impl Tally {
    pub(super) fn new() -> Self {
        Self {
            latency: Distribution::new(),
            splits: Splits::new(),
            arrivals: FarTimes::new(),
            answers: Deviations::new(),
            received: 0,
            late: 0,
            reordered: 0,
            duplicated: 0,
            ignored: 0,
            without_sent: 0,
            without_received: 0,
            contradictory: 0,
        }
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.latency.add(&other.latency);
        self.splits.add(&other.splits);
        self.arrivals.add(&other.arrivals);
        self.answers.add(&other.answers, 0);
        self.received += other.received;
        self.late += other.late;
        self.reordered += other.reordered;
        self.duplicated += other.duplicated;
        self.ignored += other.ignored;
        self.without_sent += other.without_sent;
        self.without_received += other.without_received;
        self.contradictory += other.contradictory;
    }
}

/// An answer with the times of this side.
#[derive(Debug, Clone, Copy)]
pub(super) struct Answer {
    pub(super) sequence: u64,
    pub(super) turn: Turn,
    /// The kernel's timestamp, on the wall clock.
    pub(super) stamp_ns: Option<u64>,
    /// When it had been read, on the monotonic clock and on the wall clock.
    pub(super) read_ns: u64,
    pub(super) read_wall_ns: u64,
}

/// What kernel timestamps are used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Splitting {
    /// Nothing.
    Nothing,
    /// To split latencies.
    Latency,
    /// To compare arrivals with the schedule.
    Schedule,
}

impl From<bool> for Splitting {
    fn from(split: bool) -> Self {
        if split { Self::Latency } else { Self::Nothing }
    }
}

/// The receiving side of a flow.
#[derive(Debug)]
pub(super) struct Accounts<'a> {
    slots: &'a Slots,
    tally: &'a Mutex<Tally>,
    sequence: Sequence,
    /// Answers to counted probes.
    answered: u64,
    split: Splitting,
    late_after_ns: u64,
    waiting: VecDeque<(Answer, Sent)>,
}

impl<'a> Accounts<'a> {
    pub(super) fn new(
        slots: &'a Slots,
        tally: &'a Mutex<Tally>,
        window: usize,
        split: Splitting,
        late_after_ns: u64,
    ) -> Self {
        let (sequence, waiting) = (Sequence::new(window), VecDeque::new());
        Self { slots, tally, sequence, answered: 0, split, late_after_ns, waiting }
    }

    /// Data arrived that is not an answer.
    pub(super) fn ignore(&self) {
        self.with(|tally| tally.ignored += 1);
    }

    /// An answer arrived.
    pub(super) fn answer(&mut self, answer: Answer) {
        let sequence = answer.sequence;
        let arrival = self.sequence.arrived(sequence, self.slots.sent());
        let sent = self.slots.get(sequence);
        let counts = self.slots.counts(sequence);
        match (arrival, sent) {
            (Arrival::Unknown, _) | (Arrival::First { .. }, None) => self.ignore(),
            _ if !counts => {}
            (Arrival::Duplicate, _) => self.with(|tally| tally.duplicated += 1),
            (Arrival::First { reordered }, Some(sent)) => self.first(answer, sent, reordered),
        }
        self.settle(false);
    }

    fn first(&mut self, answer: Answer, sent: Sent, reordered: bool) {
        self.answered += 1;
        let latency_ns = answer.read_ns.saturating_sub(sent.intended_ns);
        let (late, split) = (latency_ns > self.late_after_ns, self.split);
        self.with(|tally| {
            tally.received += 1;
            match split {
                Splitting::Schedule => {
                    tally.answers.record(difference(answer.read_ns, sent.intended_ns));
                }
                Splitting::Latency | Splitting::Nothing => tally.latency.record(latency_ns),
            }
            tally.late += u64::from(late);
            tally.reordered += u64::from(reordered);
        });
        match self.split {
            Splitting::Latency => self.waiting.push_back((answer, sent)),
            Splitting::Schedule => self.arrived(&answer, sent),
            Splitting::Nothing => {}
        }
    }

    /// When the reflector received a probe, by its clock, after the time by this one.
    fn arrived(&self, answer: &Answer, sent: Sent) {
        if answer.turn.stamped && answer.read_wall_ns > 0 {
            let wall = answer.read_wall_ns.saturating_sub(answer.read_ns);
            let after_ns =
                difference(answer.turn.arrived_ns, wall.saturating_add(sent.intended_ns));
            self.with(|tally| tally.arrivals.record(after_ns));
        }
    }

    /// Splits the answers whose probes' timestamps are available; at the end also counts those without one.
    fn settle(&mut self, ending: bool) {
        while let Some(&(answer, sent)) = self.waiting.front() {
            let stamp = self.slots.stamp(answer.sequence);
            let given_up =
                ending || self.waiting.len() > WAITING || self.slots.get(answer.sequence).is_none();
            if stamp.is_none() && !given_up {
                return;
            }
            self.waiting.pop_front();
            self.split_answer(&answer, sent, stamp);
        }
    }

    fn split_answer(&self, answer: &Answer, sent: Sent, sent_stamp_ns: Option<u64>) {
        // Converts the wall clock to the monotonic one, by reading both at the same time.
        let monotonic =
            |wall_ns: u64| answer.read_ns.checked_sub(answer.read_wall_ns.checked_sub(wall_ns)?);
        let (Some(sent_stamp_ns), Some(stamp_ns)) = (sent_stamp_ns, answer.stamp_ns) else {
            let lacks_sent = sent_stamp_ns.is_none();
            return self.with(|tally| match lacks_sent {
                true => tally.without_sent += 1,
                false => tally.without_received += 1,
            });
        };
        let times =
            monotonic(sent_stamp_ns).zip(monotonic(stamp_ns)).map(|(sent_ns, arrived_ns)| {
                let Sent { intended_ns, sending_ns } = sent;
                Times { intended_ns, sending_ns, sent_ns, arrived_ns, read_ns: answer.read_ns }
            });
        let parts = times.and_then(|times| Parts::of(&times, &answer.turn));
        self.with(|tally| match &parts {
            Some(parts) => tally.splits.record(parts),
            None => tally.contradictory += 1,
        });
    }

    /// Whether every counted probe has been sent and answered.
    pub(super) fn complete(&self) -> bool {
        self.slots.ended() && self.answered >= self.slots.counted()
    }

    /// No further answers or timestamps will arrive.
    pub(super) fn finish(mut self) {
        self.settle(true);
    }

    fn with(&self, work: impl FnOnce(&mut Tally)) {
        work(&mut self.tally.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The wall clock is ahead of the monotonic one by this much.
    const AHEAD: u64 = 1_000_000;

    fn answer(sequence: u64, read_ns: u64) -> Answer {
        let turn = Turn { arrived_ns: 5, stamped: true, read_ns: 9, sent_ns: 10 };
        let stamp_ns = Some(read_ns - 7 + AHEAD);
        Answer { sequence, turn, stamp_ns, read_ns, read_wall_ns: read_ns + AHEAD }
    }

    /// Ten probes, 1µs after each other, sent 5ns late; the first does not count.
    fn sent() -> Slots {
        let slots = Slots::new(16);
        slots.begin(1);
        for number in 0..10 {
            let intended_ns = 1_000 * (number + 1);
            slots.sending(number, Sent { intended_ns, sending_ns: intended_ns + 5 });
        }
        slots.end(10);
        slots
    }

    #[test]
    fn constructed_answers_are_counted() {
        let (slots, tally) = (sent(), Mutex::new(Tally::new()));
        let mut accounts = Accounts::new(&slots, &tally, 16, Splitting::Latency, 5_000);
        for number in [1, 2, 4, 5] {
            slots.stamped(number, 1_000 * (number + 1) + 15 + AHEAD);
        }
        // 0 does not count; 3 arrives after 4, 5 twice, 6 too late, 7 to 9 never, 10 was never sent.
        for (number, read_ns) in [
            (0, 1_100),
            (1, 2_100),
            (2, 3_200),
            (4, 5_300),
            (3, 5_400),
            (5, 6_100),
            (5, 6_200),
            (6, 60_000),
            (10, 60_001),
        ] {
            accounts.answer(answer(number, read_ns));
        }
        assert!(!accounts.complete());
        accounts.finish();
        let tally = tally.into_inner().unwrap();
        assert_eq!((slots.counted(), tally.received), (9, 6), "three are lost");
        assert_eq!((tally.late, tally.reordered, tally.duplicated, tally.ignored), (1, 1, 1, 1));
        let summary = tally.latency.summary();
        assert_eq!((summary.min_ns, summary.max_ns), (Some(100), Some(53_000)));
        // 3 and 6 have no transmit timestamp.
        assert_eq!((tally.without_sent, tally.without_received, tally.contradictory), (2, 0, 0));
        let split = tally.splits.summary(0).unwrap();
        assert_eq!((split.wire.count, split.receive.max_ns), (4, Some(7)));
        assert_eq!((split.sender_late.min_ns, split.send_stack.max_ns), (Some(5), Some(10)));
        assert_eq!((split.far_receive.max_ns, split.far_turn.max_ns), (Some(4), Some(1)));
        // Of 100ns: 5 late, 10 to the driver, 5 at the reflector, 7 from receipt to reading.
        assert_eq!(split.wire.min_ns, Some(73));
    }

    #[test]
    fn a_timestamp_may_arrive_after_the_answer() {
        let (slots, tally) = (sent(), Mutex::new(Tally::new()));
        let mut accounts = Accounts::new(&slots, &tally, 16, Splitting::Latency, 5_000);
        accounts.answer(answer(1, 2_100));
        slots.stamped(1, 2_015 + AHEAD);
        accounts.answer(answer(2, 3_100));
        slots.stamped(2, 3_015 + AHEAD);
        accounts.finish();
        let tally = tally.into_inner().unwrap();
        assert_eq!(tally.splits.summary(0).unwrap().wire.count, 2);
    }

    #[test]
    fn a_clock_that_was_set_is_detected() {
        let (slots, tally) = (sent(), Mutex::new(Tally::new()));
        let mut accounts = Accounts::new(&slots, &tally, 16, Splitting::Latency, 5_000);
        slots.stamped(1, 2_015 + AHEAD + 500);
        accounts.answer(answer(1, 2_100));
        let unstamped = Answer { stamp_ns: None, ..answer(2, 3_100) };
        slots.stamped(2, 3_015 + AHEAD);
        accounts.answer(unstamped);
        accounts.finish();
        let tally = tally.into_inner().unwrap();
        assert_eq!((tally.contradictory, tally.without_received), (1, 1));
        assert!(tally.splits.summary(0).is_none());
        assert_eq!(tally.received, 2, "latencies do not use the wall clock");
    }
}
