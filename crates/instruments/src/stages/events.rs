//! Events from the programs' rings (`bpf/events.h`), reassembled by their numbers.
//!
//! Input: blocks, in the order in which they were reserved. Output: the events of a ring up to a given one.
//! Numbers are consecutive, so a block that did not fit leaves a gap, and nothing before it is used.

use super::record::{
    READER_EVENTS, ReaderEvents, Ring, event, half, is_timer, reader_event, tells_what_it_does,
    tells_what_runs, word,
};
use std::collections::{BTreeMap, VecDeque};

/// Size of `struct event` in bytes.
pub const EVENT_BYTES: usize = 32;
/// Maximum number of events in a ring of a CPU, on any host.
const EVENTS_MAX: usize = 4096;
/// Events per block.
const BLOCK_EVENTS: usize = 16;
/// Offset of the events.
const BLOCK_HEADER: usize = 32;
/// Size of a block in bytes, which distinguishes it from the other records.
pub const BLOCK_BYTES: usize = BLOCK_HEADER + BLOCK_EVENTS * EVENT_BYTES;
/// Maximum events kept per ring: twice its size, as older ones may have been received before.
const KEEP: usize = 2 * EVENTS_MAX;
/// Memory for the rings of all CPUs, unless rings of 1,024 events need more.
const EVENTS_BYTES: usize = 16 << 20;
/// Rings per CPU, and per reader.
pub const RINGS: u32 = 2;

/// A CPU without a timer interrupt for this long (at 100 per second) has its tick stopped.
const TIMER_NS: u64 = 10_000_000;

type Bytes = [u8; EVENT_BYTES];

/// Events per ring of a CPU on a host with this many CPUs: a power of two. 4,096 events are what a CPU produces
/// in some 0.7 s at 2,000 packets per second.
pub fn events_of_cpu(cpus: usize) -> usize {
    let all = EVENTS_BYTES / EVENT_BYTES / RINGS as usize;
    let fair = (all / cpus.max(1)).max(1);
    (1 << fair.ilog2()).clamp(1024, EVENTS_MAX)
}

/// The rings received so far.
#[derive(Debug)]
pub struct Logs {
    rings: BTreeMap<u32, Log>,
    /// Number of the first ring of readers.
    reader_rings: u32,
    /// Events in a ring of a CPU.
    cpu_events: usize,
}

/// One ring: events with consecutive numbers.
#[derive(Debug, Default)]
struct Log {
    /// Number of the oldest one.
    first: u64,
    events: VecDeque<Bytes>,
}

impl Logs {
    /// For a host with this many CPUs.
    pub fn new(cpus: usize) -> Self {
        let reader_rings = u32::try_from(cpus).unwrap_or(u32::MAX).saturating_mul(RINGS);
        Self { rings: BTreeMap::new(), reader_rings, cpu_events: events_of_cpu(cpus) }
    }

    /// Resets: numbers start at 0 again.
    pub fn clear(&mut self) {
        self.rings.clear();
    }

    /// Adds a block; anything else is ignored.
    pub fn take(&mut self, block: &[u8]) {
        let (Some(ring), Some(first), Some(head), Some(after)) =
            (half(block, 0), word(block, 8), word(block, 16), word(block, 24))
        else {
            return;
        };
        let size = if ring < self.reader_rings { self.cpu_events } else { READER_EVENTS };
        let log = self.rings.entry(ring).or_default();
        let events = block.get(BLOCK_HEADER..).unwrap_or_default();
        for (number, bytes) in (first..head).zip(events.chunks_exact(EVENT_BYTES)) {
            // A newer event is stored there already, or is about to be written.
            let overwritten = number.saturating_add(size as u64) <= after;
            if let (Ok(bytes), false) = (bytes.try_into(), overwritten) {
                log.add(number, bytes);
            }
        }
    }

    /// The events of a CPU's ring before number `head`, oldest first: those after a moment, and enough before
    /// it to know what the CPU did then.
    pub fn cpu(&self, ring: u32, head: u64, after_ns: u64) -> Ring {
        let (first, events) = self.events(ring, 0, head);
        let skip = not_needed(events.clone(), after_ns);
        Ring {
            events: events.skip(skip).filter_map(|bytes| event(bytes)).collect(),
            cut: first > 0 || skip > 0,
        }
    }

    /// Number of events received of a ring, if any.
    pub fn head(&self, ring: u32) -> Option<u64> {
        self.rings.get(&ring).map(Log::end)
    }

    /// The switches of a reader, or its wake-ups, from number `claimed` and before `head`: those after a
    /// moment, and enough before it to determine the reader's state then. Also since when they are complete.
    pub fn reader(&self, ring: u32, claimed: u64, head: u64, after_ns: u64) -> ReaderEvents {
        // What was received earlier is no longer in the programs' ring.
        let (first, events) = self.events(ring, claimed, head);
        let known_from = match events.clone().next() {
            _ if first <= claimed => 0,
            Some(bytes) => word(bytes, 0).unwrap_or(u64::MAX),
            None => u64::MAX,
        };
        let is_before = |bytes: &Bytes| word(bytes, 0).is_some_and(|ns| ns <= after_ns);
        let last = events.clone().rposition(|bytes| is_before(bytes) && tells_what_it_does(bytes));
        let events = events.skip(last.unwrap_or(0)).filter_map(|bytes| reader_event(bytes));
        ReaderEvents { events: events.collect(), known_from }
    }

    /// The same events unchanged, with the number of the first.
    fn events(
        &self,
        ring: u32,
        from: u64,
        head: u64,
    ) -> (u64, impl DoubleEndedIterator<Item = &Bytes> + ExactSizeIterator + Clone) {
        let log = self.rings.get(&ring).filter(|log| head <= log.end());
        let first = log.map_or(head, |log| log.first.clamp(from.min(head), head));
        let skip = log.map_or(0, |log| first.saturating_sub(log.first));
        static NONE: VecDeque<Bytes> = VecDeque::new();
        let events = log.map_or(&NONE, |log| &log.events);
        let (skip, count) = (usize::try_from(skip), usize::try_from(head - first));
        let begin = skip.unwrap_or(usize::MAX).min(events.len());
        let count = if log.is_some() { count.unwrap_or(0) } else { 0 };
        (first, events.range(begin..begin.saturating_add(count).min(events.len())))
    }
}

/// How many of the oldest events are not needed for what a CPU did after a moment: what it ran then is known
/// from a switch before it (for softirqs, from any event), and stolen time is reported by the timer.
fn not_needed<'a>(
    events: impl DoubleEndedIterator<Item = &'a Bytes> + ExactSizeIterator,
    after_ns: u64,
) -> usize {
    let (mut has_switch, mut has_timer) = (false, false);
    let mut needed = 0;
    let count = events.len();
    for bytes in events.rev() {
        needed += 1;
        let Some(ns) = word(bytes, 0).filter(|&ns| ns <= after_ns) else { continue };
        has_switch |= tells_what_runs(bytes);
        has_timer |= is_timer(bytes) || ns.saturating_add(TIMER_NS) < after_ns;
        if has_switch && has_timer {
            break;
        }
    }
    count - needed
}

impl Log {
    fn end(&self) -> u64 {
        self.first + self.events.len() as u64
    }

    fn add(&mut self, number: u64, bytes: Bytes) {
        if number < self.end() {
            return;
        }
        if number > self.end() || self.events.is_empty() {
            self.events.clear();
            self.first = number;
        }
        self.events.push_back(bytes);
        if self.events.len() > KEEP {
            self.events.pop_front();
            self.first += 1;
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::record::What;
    use super::*;
    use proptest::prelude::*;

    /// A block of interrupt-exit events at as many nanoseconds as their number.
    pub fn block(ring: u32, first: u64, head: u64) -> Vec<u8> {
        copied(ring, first, head, head)
    }

    /// The same with more events in the ring after it had been copied.
    fn copied(ring: u32, first: u64, head: u64, after: u64) -> Vec<u8> {
        let mut bytes = vec![0; BLOCK_BYTES];
        bytes[0..4].copy_from_slice(&ring.to_ne_bytes());
        bytes[8..16].copy_from_slice(&first.to_ne_bytes());
        bytes[16..24].copy_from_slice(&head.to_ne_bytes());
        bytes[24..32].copy_from_slice(&after.to_ne_bytes());
        for n in 0..BLOCK_EVENTS {
            let at = BLOCK_HEADER + n * EVENT_BYTES;
            bytes[at..at + 8].copy_from_slice(&(first + n as u64).to_ne_bytes());
            bytes[at + 15] = 3;
        }
        bytes
    }

    fn times(ring: &Ring) -> Vec<u64> {
        assert!(ring.events.iter().all(|event| event.what == What::IrqEnd));
        ring.events.iter().map(|event| event.ns).collect()
    }

    #[test]
    fn blocks_are_reassembled_by_event_numbers() {
        let mut logs = Logs::new(2);
        // The last block is partial, and is sent again when it has more events.
        logs.take(&block(2, 0, 20));
        logs.take(&block(2, 16, 20));
        logs.take(&block(2, 16, 25));
        let ring = logs.cpu(2, 25, 0);
        assert_eq!((times(&ring), ring.cut), ((0..25).collect(), false));
        // Up to a packet that was slow earlier.
        assert_eq!(times(&logs.cpu(2, 18, 0)), (0..18).collect::<Vec<_>>());
        assert_eq!(logs.cpu(3, 5, 0), Ring { events: vec![], cut: true });
    }

    #[test]
    fn what_is_before_a_gap_is_not_used() {
        let mut logs = Logs::new(2);
        logs.take(&block(0, 0, 16));
        logs.take(&block(0, 32, 40));
        let ring = logs.cpu(0, 40, 0);
        assert_eq!((times(&ring), ring.cut), ((32..40).collect(), true));
        // Its block did not fit.
        assert_eq!(logs.cpu(0, 41, 0), Ring { events: vec![], cut: true });
    }

    #[test]
    fn rings_are_longer_on_small_hosts_and_bounded_in_memory() {
        assert_eq!(
            [1, 2, 64, 65, 128, 256, 1024].map(events_of_cpu),
            [4096, 4096, 4096, 2048, 2048, 1024, 1024]
        );
    }

    #[test]
    fn overwritten_events_are_omitted() {
        let mut logs = Logs::new(2);
        // Of 16 events three have been replaced by newer ones, and a fourth is being written.
        logs.take(&block(0, 64, 64 + events_of_cpu(2) as u64 + 3));
        assert_eq!(times(&logs.cpu(0, 80, 0)), (68..80).collect::<Vec<_>>());
        // A reader's ring is shorter.
        logs.take(&block(4, 64, 64 + READER_EVENTS as u64 + 3));
        assert_eq!(logs.rings[&4].first, 68);
    }

    #[test]
    fn events_written_during_the_copy_are_left_for_the_next_block() {
        let mut logs = Logs::new(2);
        // Two interrupts occurred in between: the copy of their events is not consistent.
        logs.take(&copied(0, 0, 5, 7));
        assert_eq!(logs.head(0), Some(5));
        logs.take(&copied(0, 0, 7, 7));
        assert_eq!(times(&logs.cpu(0, 7, 0)), (0..7).collect::<Vec<_>>());
    }

    #[test]
    fn a_readers_events_start_where_it_claimed_the_ring() {
        let mut logs = Logs::new(2);
        let mut bytes = block(4, 0, 8);
        (0..8).for_each(|n| bytes[BLOCK_HEADER + n * EVENT_BYTES + 15] = 8);
        logs.take(&bytes);
        let read = |claimed, after| {
            let reader = logs.reader(4, claimed, 8, after);
            (reader.events.iter().map(|e| e.ns).collect::<Vec<_>>(), reader.known_from)
        };
        assert_eq!(read(5, 0), (vec![5, 6, 7], 0));
        // Nor before its state at a moment is known.
        let mut bytes = bytes.clone();
        bytes[BLOCK_HEADER + 2 * EVENT_BYTES + 15] = 10;
        let mut logs = Logs::new(2);
        logs.take(&bytes);
        assert_eq!(logs.reader(4, 0, 8, 4).events.first().map(|e| e.ns), Some(2));
    }

    #[test]
    fn events_go_back_only_to_what_ran_at_a_moment() {
        let mut logs = Logs::new(2);
        let mut bytes = block(0, 0, 16);
        // Switches at 3 and at 6, timers at 2 and 8.
        for (number, kind) in [(3, 1), (6, 1), (2, 2), (8, 2)] {
            let at = BLOCK_HEADER + number * EVENT_BYTES;
            bytes[at + 15] = kind;
            bytes[at + 8..at + 12].copy_from_slice(&(1u32 << 31 | 0xec).to_ne_bytes());
        }
        logs.take(&bytes);
        let first = |after| logs.cpu(0, 16, after).events[0].ns;
        assert_eq!((first(12), first(8), first(7), first(5)), (6, 6, 2, 2));
        assert!(logs.cpu(0, 16, 12).cut);
        assert!(!logs.cpu(0, 16, 1).cut);
    }

    proptest! {
        #[test]
        fn any_bytes_are_accepted_or_ignored(
            blocks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..600), 0..4),
            head in any::<u64>(),
            after in any::<u64>(),
        ) {
            let mut logs = Logs::new(2);
            for block in &blocks {
                logs.take(block);
            }
            let _ = (logs.cpu(0, head, after), logs.reader(4, head / 2, head, after));
        }

        #[test]
        fn events_stay_in_order(
            blocks in prop::collection::vec((0u64..200, 0u64..40), 0..40),
            head in 0u64..240,
            after in 0u64..240,
        ) {
            let mut logs = Logs::new(2);
            for (first, more) in blocks {
                logs.take(&block(0, first, first + more));
            }
            let times = times(&logs.cpu(0, head, after));
            prop_assert!(times.windows(2).all(|pair| pair[0] + 1 == pair[1]));
            prop_assert!(times.last().is_none_or(|&last| last + 1 == head));
        }
    }
}
