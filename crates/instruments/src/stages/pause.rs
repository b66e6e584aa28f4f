//! How long packets were observed, and the wait for packets in flight when an overhead limit pauses the stages.

use crate::kernel::{Drain, Meter};
use libbpf_rs::Object;
use nearpath_model::Packets;
use std::time::{Duration, Instant};

/// One in so many packets in flight is many, of those that were not dropped: of a reader that is far too slow, most are.
const MANY_IN: u64 = 20;
/// Wait between two looks at the packets in flight.
const LONGEST_LOOK: Duration = Duration::from_millis(50);
/// How long packets were observed.
#[derive(Debug, Default)]
pub(super) struct Observed {
    pub before: Duration,
    /// Start of the current observation; `None` while paused.
    pub since: Option<Instant>,
    /// Number of pauses.
    pub pauses: u64,
    /// Packets whose end had not been seen by the last pause, of those that had started.
    abandoned: u64,
    started: u64,
    dropped: u64,
    patience: Patience,
}

/// Packets whose end is awaited.
pub(super) struct InFlight<'a> {
    /// Packets that have started, in all.
    pub started: u64,
    /// How long to wait for a few, and for many.
    pub patience: Duration,
    pub longest: Duration,
    /// The counts of packets now.
    pub now: &'a dyn Fn() -> Packets,
}

/// A wait for many packets in flight.
struct LongWait {
    awaited: u64,
    /// Time since the pause began.
    after: Duration,
    drain: Option<Drain>,
}

impl Observed {
    /// Time so far.
    pub fn time(&self) -> Duration {
        self.before + self.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Waits for the packets of a slice that has ended, while `should_continue` returns true, and adds the cost of the
    /// programs meanwhile.
    pub fn wait_for(
        &mut self,
        packets: &InFlight<'_>,
        meter: &mut Meter,
        object: &Object,
        should_continue: &dyn Fn(Duration) -> bool,
    ) {
        let InFlight { started, patience, longest, now } = *packets;
        let in_slice = started.saturating_sub(self.started);
        let began = Instant::now();
        let mut wait = Duration::from_millis(1);
        let mut long: Option<LongWait> = None;
        let left = loop {
            let now = now();
            let in_flight = now.abandoned.saturating_sub(self.abandoned);
            let dropped = now.dropped.saturating_sub(self.dropped);
            let are_many = in_flight.saturating_mul(MANY_IN) > in_slice.saturating_sub(dropped);
            let could_wait = longest > patience && began.elapsed() >= patience && are_many;
            if could_wait && long.is_none() && self.patience.allows() {
                let drain = meter.begin_drain(object);
                long = Some(LongWait { awaited: in_flight, after: began.elapsed(), drain });
            }
            let end = if long.is_some() && are_many { longest } else { patience };
            let left = end.saturating_sub(began.elapsed());
            if in_flight == 0 || left.is_zero() || !should_continue(wait.min(left)) {
                (self.abandoned, self.dropped) = (now.abandoned, now.dropped);
                break in_flight;
            }
            wait = (wait * 2).min(LONGEST_LOOK);
        };
        self.started = started;
        match long {
            None => meter.pause(began.elapsed()),
            Some(LongWait { awaited, after, drain }) => {
                self.patience.waited(awaited, left);
                meter.pause(after);
                meter.end_drain(object, drain, began.elapsed().saturating_sub(after));
            }
        }
    }
}

/// Pauses without a long wait after long waits in vain, at most.
const MOST_SKIPPED: u32 = 64;

/// Whether a long wait for packets in flight is worth its cost. Packets whose end cannot be observed would be waited for
/// in vain each time: after such a wait there is none for one pause, then for two, four, and so on.
#[derive(Debug, Default)]
struct Patience {
    skipped: u32,
    skips: u32,
}

impl Patience {
    /// Whether the next wait may be long.
    fn allows(&mut self) -> bool {
        if self.skipped < self.skips {
            self.skipped += 1;
            return false;
        }
        true
    }

    /// A long wait, for how many packets, and how many of them have not ended.
    fn waited(&mut self, awaited: u64, left: u64) {
        self.skipped = 0;
        self.skips = match left.saturating_mul(2) > awaited {
            true => (self.skips * 2).clamp(1, MOST_SKIPPED),
            false => 0,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_waited_for_in_vain_is_waited_for_ever_more_rarely() {
        let mut patience = Patience::default();
        let mut waited_at = Vec::new();
        for pause in 0..16 {
            if patience.allows() {
                waited_at.push(pause);
                patience.waited(100, 60);
            }
        }
        assert_eq!(waited_at, [0, 2, 5, 10]);
        while !patience.allows() {}
        patience.waited(100, 10);
        assert!(patience.allows());
    }
}
