//! The newest probes of a flow with their send times, shared without locks by the sending and the receiving
//! thread.

use std::sync::atomic::{AtomicU64, Ordering};

/// A probe that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sent {
    /// When it was to be sent, and when the send call started, on the monotonic clock.
    pub(super) intended_ns: u64,
    pub(super) sending_ns: u64,
}

/// A slot per probe of the window.
#[derive(Debug)]
pub(super) struct Slots {
    slots: Box<[Slot]>,
    /// Numbers of the first probe that counts and of the one after the last.
    first: AtomicU64,
    end: AtomicU64,
    /// Probes sent, including those that do not count.
    sent: AtomicU64,
}

#[derive(Debug, Default)]
struct Slot {
    /// The probe's number plus one, while the other fields belong to that probe.
    holds: AtomicU64,
    intended_ns: AtomicU64,
    sending_ns: AtomicU64,
    /// The kernel's timestamp on the wall clock, once available.
    stamp_ns: AtomicU64,
}

impl Slots {
    /// Room for the newest `window` probes.
    pub(super) fn new(window: usize) -> Self {
        Self {
            slots: (0..window.max(1)).map(|_| Slot::default()).collect(),
            first: AtomicU64::new(u64::MAX),
            end: AtomicU64::new(u64::MAX),
            sent: AtomicU64::new(0),
        }
    }

    fn slot(&self, sequence: u64) -> &Slot {
        let place = sequence % self.slots.len() as u64;
        &self.slots[usize::try_from(place).unwrap_or(0)]
    }

    /// A probe is about to be sent. Must be called by a single thread, with consecutive numbers.
    pub(super) fn sending(&self, sequence: u64, sent: Sent) {
        let slot = self.slot(sequence);
        slot.holds.store(0, Ordering::Release);
        slot.stamp_ns.store(0, Ordering::Release);
        slot.intended_ns.store(sent.intended_ns, Ordering::Release);
        slot.sending_ns.store(sent.sending_ns, Ordering::Release);
        slot.holds.store(sequence + 1, Ordering::Release);
        self.sent.store(sequence + 1, Ordering::Release);
    }

    /// The kernel has timestamped a probe. A second timestamp, of a retransmitted segment, is ignored.
    pub(super) fn stamped(&self, sequence: u64, stamp_ns: u64) {
        let slot = self.slot(sequence);
        if slot.holds.load(Ordering::Acquire) == sequence + 1 {
            let _ =
                slot.stamp_ns.compare_exchange(0, stamp_ns, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// When a probe was sent; `None` if it has left the window.
    pub(super) fn get(&self, sequence: u64) -> Option<Sent> {
        let slot = self.slot(sequence);
        let holds = || slot.holds.load(Ordering::Acquire) == sequence + 1;
        let sent = holds().then(|| Sent {
            intended_ns: slot.intended_ns.load(Ordering::Acquire),
            sending_ns: slot.sending_ns.load(Ordering::Acquire),
        });
        sent.filter(|_| holds())
    }

    /// The kernel's timestamp of a probe, if available.
    pub(super) fn stamp(&self, sequence: u64) -> Option<u64> {
        let slot = self.slot(sequence);
        let holds = || slot.holds.load(Ordering::Acquire) == sequence + 1;
        let stamp_ns = holds().then(|| slot.stamp_ns.load(Ordering::Acquire));
        stamp_ns.filter(|&ns| ns > 0 && holds())
    }

    /// Probes count from this one on.
    pub(super) fn begin(&self, first: u64) {
        self.first.store(first, Ordering::Release);
    }

    /// Probes from this one on do not count.
    pub(super) fn end(&self, end: u64) {
        self.end.store(end, Ordering::Release);
    }

    /// Whether a probe counts.
    pub(super) fn counts(&self, sequence: u64) -> bool {
        let first = self.first.load(Ordering::Acquire);
        first <= sequence && sequence < self.end.load(Ordering::Acquire)
    }

    /// Number of probes sent.
    pub(super) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Acquire)
    }

    /// Number of counted probes sent so far.
    pub(super) fn counted(&self) -> u64 {
        let end = self.end.load(Ordering::Acquire).min(self.sent());
        end.saturating_sub(self.first.load(Ordering::Acquire))
    }

    /// Whether all that count have been sent.
    pub(super) fn ended(&self) -> bool {
        self.end.load(Ordering::Acquire) != u64::MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_is_known_until_it_leaves_the_window() {
        let slots = Slots::new(4);
        let sent = |number| Sent { intended_ns: number * 10, sending_ns: number * 10 + 1 };
        (0..6).for_each(|number| slots.sending(number, sent(number)));
        assert_eq!((slots.get(1), slots.get(2), slots.get(6)), (None, Some(sent(2)), None));
        slots.stamped(2, 77);
        slots.stamped(2, 99);
        slots.stamped(1, 55);
        assert_eq!((slots.stamp(2), slots.stamp(1), slots.stamp(5)), (Some(77), None, None));
    }

    #[test]
    fn probes_between_warm_up_and_end_count() {
        let slots = Slots::new(4);
        slots.sending(0, Sent { intended_ns: 0, sending_ns: 0 });
        assert!(!slots.counts(0) && !slots.ended());
        slots.begin(1);
        (1..4).for_each(|n| slots.sending(n, Sent { intended_ns: n, sending_ns: n }));
        assert_eq!(slots.counted(), 3);
        slots.end(3);
        assert_eq!((slots.counted(), slots.sent(), slots.ended()), (2, 4, true));
        assert!(slots.counts(1) && slots.counts(2) && !slots.counts(3));
    }
}
