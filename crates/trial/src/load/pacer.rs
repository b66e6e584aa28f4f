//! The schedule of an open loop. Input: a rate. Output: intended send times at a constant interval, however
//! long the sending takes.

use crate::clock::{SECOND_NS, now_ns, sleep_until};
use std::sync::atomic::{AtomicBool, Ordering};

/// Longest single sleep, so that a slow schedule can be stopped.
const NAP_NS: u64 = 50_000_000;
/// How late a message may be before it is skipped: a stalled machine is not followed by a burst that stalls it
/// again.
const MAX_LATE_NS: u64 = 20_000_000;

/// A schedule of send times on the monotonic clock.
#[derive(Debug)]
pub(super) struct Pacer {
    next_ns: u64,
    interval_ns: u64,
    /// Messages that were due, sent or skipped.
    planned: u64,
}

impl Pacer {
    /// `rate_hz` messages per second; the pacer numbered `index` of `of`, so that they do not all send at the
    /// same moment.
    pub(super) fn new(rate_hz: u32, index: u16, of: u16) -> Self {
        let interval_ns = SECOND_NS / u64::from(rate_hz.max(1));
        let phase_ns = interval_ns * u64::from(index) / u64::from(of.max(1));
        Self { next_ns: now_ns() + interval_ns + phase_ns, interval_ns, planned: 0 }
    }

    /// Sleeps until the next message is due. `false` if it was stopped.
    pub(super) fn wait(&mut self, stop: &AtomicBool) -> bool {
        loop {
            if stop.load(Ordering::Relaxed) {
                return false;
            }
            let now_ns = now_ns();
            if now_ns >= self.next_ns {
                self.advance(now_ns);
                return true;
            }
            sleep_until(self.next_ns.min(now_ns + NAP_NS));
        }
    }

    /// Messages that were due; those not sent were skipped as too late.
    pub(super) fn planned(&self) -> u64 {
        self.planned
    }

    fn advance(&mut self, now_ns: u64) {
        let late_ns = now_ns.saturating_sub(self.next_ns);
        let turns = if late_ns > MAX_LATE_NS { late_ns / self.interval_ns + 1 } else { 1 };
        self.planned += turns;
        self.next_ns += turns * self.interval_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_an_interval_apart() {
        let (mut pacer, begin_ns) = (Pacer::new(1_000, 0, 1), now_ns());
        for _ in 0..50 {
            assert!(pacer.wait(&AtomicBool::new(false)));
        }
        let elapsed_ns = now_ns() - begin_ns;
        assert!(elapsed_ns >= 49_000_000, "{elapsed_ns}ns is too short for 50 at 1,000/s");
        assert!(pacer.planned() >= 50);
    }

    #[test]
    fn a_small_delay_is_caught_up_and_a_long_one_skipped() {
        let mut pacer = Pacer { next_ns: 1_000_000, interval_ns: 1_000_000, planned: 0 };
        pacer.advance(6_000_000);
        assert_eq!((pacer.planned, pacer.next_ns), (1, 2_000_000));
        pacer.advance(102_500_000);
        assert_eq!((pacer.planned, pacer.next_ns), (102, 103_000_000));
    }

    #[test]
    fn a_pacer_stops_on_request() {
        assert!(!Pacer::new(1, 0, 1).wait(&AtomicBool::new(true)));
    }
}
