//! A slow packet as the programs send it (`struct outlier` of `bpf/history.h`), and what its CPU did
//! before.

use super::table::{STAGES_MAX, Stage, stage};
use super::trail::Trail;
use crate::grouping::{comm, flow};
use std::ops::Range;

/// Bytes of `struct event`.
const EVENT_BYTES: usize = 32;
/// Events that a ring has room for.
const EVENTS: usize = 512;
/// Where the parts of `struct outlier` are that stand behind its first fields.
const FLOW: usize = 40;
const COMM: usize = 80;
const HEADS: usize = 96;
const MOVED: usize = 112;
const MOVED_FROM: usize = 120;
const PACKET_BYTES: usize = 124;
const THROTTLED: usize = 128;
const RINGS: usize = 192;
const TRAIL: usize = RINGS + 2 * EVENTS * EVENT_BYTES;
/// Times that are kept of a cgroup on a CPU.
const THROTTLES: usize = 4;
/// Where the parts of `struct left` are, and its size.
const LEFT_HEADS: usize = 16;
const LEFT_RINGS: usize = 32;
pub const LEFT_BYTES: usize = LEFT_RINGS + 2 * EVENTS * EVENT_BYTES;

/// A slow packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// End of the span.
    pub at_ns: u64,
    /// Its length.
    pub span_ns: u64,
    /// CPU of the stage before.
    pub from_cpu: u32,
    /// CPU of the stage after, whose events these are.
    pub to_cpu: u32,
    /// The stage before.
    pub from: &'static Stage,
    /// The stage after.
    pub to: &'static Stage,
    /// The task that takes the packet, or that runs at the end; its name and thread id alone.
    pub task: Task,
    /// When that task was moved to this CPU since it was woken, and from which.
    pub moved: Option<(u64, u32)>,
    /// What that one did, if it was in this span.
    pub left: Option<Left>,
    /// From when until when its cgroup had used up its quota on this CPU, the last times.
    pub throttled: Vec<Range<u64>>,
    /// Bytes of the packet; 0: not known.
    pub bytes: u32,
    /// Packets that the CPU's stack has received, modulo 2^16.
    pub received: u16,
    /// The packet's flow.
    pub flow: Option<String>,
    /// Tasks and interrupts, oldest first.
    pub tasks: Ring,
    /// Softirqs, oldest first.
    pub softirqs: Ring,
    /// The packet's path up to here, where one is kept.
    pub trail: Option<Trail>,
}

/// What a CPU did that the reader of a slow packet was moved from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// End of the packet's span, and its CPU: by these it is known.
    pub of: (u64, u32),
    /// The CPU whose events these are.
    pub cpu: u32,
    /// Tasks and interrupts, oldest first.
    pub tasks: Ring,
    /// Softirqs, oldest first.
    pub softirqs: Ring,
}

/// Events of one kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ring {
    /// The events.
    pub events: Vec<Event>,
    /// Whether there were more before them.
    pub cut: bool,
}

/// A task as the scheduler knows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Task {
    /// Thread id; 0 is the idle task.
    pub pid: u32,
    /// Its name.
    pub comm: String,
    /// The kernel's priority: below 100 real-time.
    pub prio: u16,
    /// `SCHED_*`.
    pub policy: u8,
    /// Whether the task that ran before it could have gone on.
    pub ready_before: bool,
}

/// A change of what a CPU runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// When, CLOCK_MONOTONIC.
    pub ns: u64,
    /// What.
    pub what: What,
    /// The thread that the CPU was at, by its id; `None` where `what` is a switch to another.
    pub current: Option<u32>,
}

/// What changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// It turned to a task.
    Task(Task),
    /// A device's interrupt began, or one of the CPU's own (with [`VECTOR`]).
    Irq(u32),
    /// It ended.
    IrqEnd,
    /// A softirq began: its vector, and how many packets had been received by then.
    Softirq(u32, u16),
    /// It ended.
    SoftirqEnd(u16),
    /// The hypervisor had the CPU for so many nanoseconds, at some time since the timer before.
    Stolen(u32),
    /// The CPU came online: it was offline since the event before.
    Online,
}

/// Bit of an interrupt of the CPU's own.
pub const VECTOR: u32 = 1 << 31;
/// Bit of a task's policy: the task before it could have gone on.
const READY_BEFORE: u8 = 1 << 7;

impl Record {
    /// Reads a record; `None` if it is none.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let (word, half) = (|at| word(bytes, at), |at| half(bytes, at));
        let quarter = |at: usize| Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
        Some(Self {
            at_ns: word(0)?,
            span_ns: word(8)?,
            from_cpu: half(16)?,
            to_cpu: half(20)?,
            from: stage(usize::from(quarter(24)?) % STAGES_MAX)?,
            to: stage(usize::from(quarter(26)?) % STAGES_MAX)?,
            task: Task { pid: half(28)?, comm: comm(bytes.get(COMM..HEADS)?), ..Task::default() },
            moved: match word(MOVED)? {
                0 => None,
                ns => Some((ns, half(MOVED_FROM)?)),
            },
            left: None,
            throttled: (0..THROTTLES)
                .filter_map(|n| Some(word(THROTTLED + 16 * n)?..word(THROTTLED + 16 * n + 8)?))
                .filter(|time| !time.is_empty())
                .collect(),
            bytes: half(PACKET_BYTES)?,
            received: quarter(32)?,
            flow: flow(bytes.get(FLOW..COMM)?),
            tasks: ring(bytes, HEADS, RINGS, 0)?,
            softirqs: ring(bytes, HEADS, RINGS, 1)?,
            trail: bytes.get(TRAIL..).and_then(Trail::read),
        })
    }

    /// Begin of the span.
    pub fn begin_ns(&self) -> u64 {
        self.at_ns.saturating_sub(self.span_ns)
    }

    /// The same span, as the CPU saw it that the reader was moved from.
    pub fn as_left(&self) -> Option<Self> {
        let Left { cpu, tasks, softirqs, .. } = self.left.clone()?;
        Some(Self { to_cpu: cpu, tasks, softirqs, moved: None, left: None, ..self.clone() })
    }
}

impl Left {
    /// Reads it; `None` if it is none.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            of: (word(bytes, 0)?, half(bytes, 8)?),
            cpu: half(bytes, 12)?,
            tasks: ring(bytes, LEFT_HEADS, LEFT_RINGS, 0)?,
            softirqs: ring(bytes, LEFT_HEADS, LEFT_RINGS, 1)?,
        })
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn half(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// A ring, of those that lie one after the other.
fn ring(bytes: &[u8], heads: usize, rings: usize, number: usize) -> Option<Ring> {
    let head = usize::try_from(word(bytes, heads + 8 * number)?).ok()?;
    let first = rings + number * EVENTS * EVENT_BYTES;
    let ring = bytes.get(first..first + EVENTS * EVENT_BYTES)?;
    let oldest = head.saturating_sub(EVENTS);
    let at = |index: usize| event(ring.chunks_exact(EVENT_BYTES).nth(index % EVENTS)?);
    Some(Ring { events: (oldest..head).filter_map(at).collect(), cut: oldest > 0 })
}

fn event(bytes: &[u8]) -> Option<Event> {
    let id = u32::from_ne_bytes(bytes.get(8..12)?.try_into().ok()?);
    let prio = u16::from_ne_bytes(bytes.get(12..14)?.try_into().ok()?);
    let what = match bytes.get(15)? {
        1 => What::Task(Task {
            pid: id,
            comm: comm(bytes.get(16..32)?),
            prio,
            policy: *bytes.get(14)? & !READY_BEFORE,
            ready_before: *bytes.get(14)? & READY_BEFORE != 0,
        }),
        2 => What::Irq(id),
        3 => What::IrqEnd,
        4 => What::Softirq(id, prio),
        5 => What::SoftirqEnd(prio),
        6 => What::Stolen(id),
        7 => What::Online,
        _ => return None,
    };
    let current = match what {
        What::Task(_) => None,
        _ => Some(u32::from_ne_bytes(bytes.get(16..20)?.try_into().ok()?)),
    };
    Some(Event { ns: u64::from_ne_bytes(bytes.get(..8)?.try_into().ok()?), what, current })
}

#[cfg(test)]
mod tests {
    use super::super::trail::tests::written;
    use super::*;
    use proptest::prelude::*;

    /// A thread's id.
    const NUMBER: [u8; 4] = [7, 1, 0, 0];

    /// A record whose ring of tasks has gone round: event 512 lies where event 0 was.
    fn bytes() -> Vec<u8> {
        let mut bytes = vec![0; TRAIL];
        bytes[0..8].copy_from_slice(&5000u64.to_ne_bytes());
        bytes[8..16].copy_from_slice(&700u64.to_ne_bytes());
        bytes[20..24].copy_from_slice(&3u32.to_ne_bytes());
        bytes[24..26].copy_from_slice(&1u16.to_ne_bytes());
        bytes[26..28].copy_from_slice(&2u16.to_ne_bytes());
        bytes[MOVED..MOVED + 8].copy_from_slice(&4400u64.to_ne_bytes());
        bytes[MOVED_FROM..MOVED_FROM + 4].copy_from_slice(&2u32.to_ne_bytes());
        bytes[THROTTLED..THROTTLED + 8].copy_from_slice(&4400u64.to_ne_bytes());
        bytes[THROTTLED + 8..THROTTLED + 16].copy_from_slice(&4500u64.to_ne_bytes());
        bytes[HEADS..HEADS + 8].copy_from_slice(&(EVENTS as u64 + 1).to_ne_bytes());
        for (slot, ns, kind) in [(EVENTS - 1, 4000u64, 1), (0, 4900, 3)] {
            let event = RINGS + slot * EVENT_BYTES;
            bytes[event..event + 8].copy_from_slice(&ns.to_ne_bytes());
            bytes[event + 8..event + 12].copy_from_slice(&42u32.to_ne_bytes());
            bytes[event + 14] = READY_BEFORE | 1;
            bytes[event + 15] = kind;
            bytes[event + 16..event + 20].copy_from_slice(if kind == 1 {
                b"hog\0"
            } else {
                &NUMBER
            });
        }
        bytes
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let record = Record::read(&bytes()).unwrap();
        assert_eq!((record.begin_ns(), record.to_cpu), (4300, 3));
        assert_eq!((record.from.name, record.to.name), ("irq_handler", "net_rx_raise"));
        let hog = Task {
            pid: 42,
            comm: "hog".to_owned(),
            policy: 1,
            ready_before: true,
            ..Task::default()
        };
        let current = Some(u32::from_ne_bytes(NUMBER));
        let events = [
            Event { ns: 4000, what: What::Task(hog), current: None },
            Event { ns: 4900, what: What::IrqEnd, current },
        ];
        assert_eq!(record.tasks, Ring { events: events.to_vec(), cut: true });
        assert_eq!(record.softirqs, Ring::default());
        assert_eq!((record.flow, record.trail), (None, None));
        let trail = written((64, 4000), &[(1, 2, 4300), (2, 3, 5000)]);
        let with_trail = Record::read(&[bytes(), trail].concat()).unwrap().trail.unwrap();
        assert_eq!((with_trail.packet, with_trail.steps.len()), ((64, 4000), 2));
        assert_eq!(record.moved, Some((4400, 2)));
        assert_eq!((record.throttled[0].start, record.throttled[0].end), (4400, 4500));
        assert_eq!(Record::read(&bytes()[..100]), None);
    }

    #[test]
    fn what_another_cpu_did_is_read_as_it_was_written() {
        let mut left = vec![0; LEFT_BYTES];
        left[0..8].copy_from_slice(&5000u64.to_ne_bytes());
        left[8..12].copy_from_slice(&3u32.to_ne_bytes());
        left[12..16].copy_from_slice(&2u32.to_ne_bytes());
        let outlier = bytes();
        left[LEFT_HEADS..LEFT_RINGS].copy_from_slice(&outlier[HEADS..HEADS + 16]);
        left[LEFT_RINGS..].copy_from_slice(&outlier[RINGS..TRAIL]);
        let left = Left::read(&left).unwrap();
        assert_eq!((left.of, left.cpu), ((5000, 3), 2));
        let record = Record { left: Some(left), ..Record::read(&outlier).unwrap() };
        let seen = record.as_left().unwrap();
        assert_eq!((seen.to_cpu, &seen.tasks, seen.moved), (2, &record.tasks, None));
        assert_eq!(Left::read(&outlier[..LEFT_BYTES - 1]), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..40_000)) {
            let _ = (Record::read(&bytes), Left::read(&bytes));
        }
    }
}
