//! A slow packet as sent by the programs (`struct outlier` of `bpf/history.h`), and the activity of its CPU and
//! its reader before.

use super::events::{Logs, RINGS};
use super::packet_path::PacketPath;
use super::table::{STAGES_MAX, Stage, stage};
use crate::grouping::{comm, flow};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Events in a ring of a reader.
pub const READER_EVENTS: usize = 256;
/// Offsets of the parts of `struct outlier` after its first fields.
const FLOW: usize = 40;
const COMM: usize = 80;
const HEADS: usize = 96;
const READER_HEADS: usize = 112;
const READER_CLAIMED: usize = 128;
const READER_RING: usize = 144;
const QDISC: usize = 152;
const DEVICE: usize = 168;
const RAISED: usize = 184;
const GAP_END: usize = 192;
const THROTTLED: usize = 200;
const PACKET_PATH_OFFSET: usize = 264;
/// Throttled periods kept per cgroup and CPU.
const THROTTLES: usize = 4;
/// Flags of an outlier (`WAIT_*` in `bpf/waits.h`).
const ENDED_IN_TASK: u16 = 1;
const STOPPED: u16 = 2;
const EARLY: u16 = 4;
const RAISED_BY_TIMER: u16 = 8;
const RAISED_BY_DEVICE: u16 = 16;

/// A slow packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// End of the span.
    pub at_ns: u64,
    /// Its length.
    pub span_ns: u64,
    /// CPU of the first stage.
    pub from_cpu: u32,
    /// CPU of the second stage.
    pub to_cpu: u32,
    /// The first stage.
    pub from: &'static Stage,
    /// The second stage.
    pub to: &'static Stage,
    /// The task that takes the packet, or that runs at the end; only its name and thread id.
    pub task: Task,
    /// Whether the span does not end in a softirq.
    pub ended_in_task: bool,
    /// Where it was queued to be sent.
    pub queued: Option<Queued>,
    /// For TCP: data before it was missing; until when, if known.
    pub early: Option<Option<u64>>,
    /// Recent periods in which its cgroup was throttled on this CPU: start and end.
    pub throttled: Vec<Range<u64>>,
    /// Length of the packet in bytes; 0: unknown.
    pub bytes: u32,
    /// Packets that the CPU's stack has received, modulo 2^16.
    pub received: u16,
    /// The packet's flow.
    pub flow: Option<String>,
    /// Activity of the CPU of the second stage.
    pub cpu: CpuEvents,
    /// Activity of other CPUs that the reader was on.
    pub others: BTreeMap<u32, CpuEvents>,
    /// Activity of the task that takes the packet, if it is known as a reader.
    pub reader: ReaderEvents,
    /// The packet's path so far, if recorded.
    pub packet_path: Option<PacketPath>,
}

/// Where a packet was queued to be sent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Queued {
    /// Kind of the queueing discipline.
    pub qdisc: String,
    /// The device.
    pub device: String,
    /// Whether the device's queue was stopped when this packet was queued.
    pub stopped: bool,
    /// When NET_TX was raised that dequeued it, and its source.
    pub raised: Option<(u64, Raiser)>,
}

/// What raised NET_TX.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Raiser {
    /// A timer, such as that of a queueing discipline.
    Timer,
    /// An interrupt of a device, or NET_RX.
    Device,
    /// Something else.
    Other,
}

/// Activity of a CPU.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpuEvents {
    /// Tasks and interrupts, oldest first.
    pub tasks: Ring,
    /// Softirqs, oldest first.
    pub softirqs: Ring,
}

/// Activity of a reader: switches and wake-ups, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReaderEvents {
    /// The events.
    pub events: Vec<ReaderEvent>,
    /// Since when they are complete.
    pub known_from: u64,
}

/// A change of a reader's state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReaderEvent {
    /// The time.
    pub ns: u64,
    /// Its CPU.
    pub cpu: u32,
    /// The change.
    pub what: Change,
}

/// Kind of change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// It runs.
    Runs,
    /// It runs, and was not known as a reader before.
    Found,
    /// It is preempted; or it is throttled, as its cgroup has used up its quota.
    Ready {
        /// Whether it is throttled.
        throttled: bool,
    },
    /// It leaves its CPU to wait.
    Blocks(Block),
    /// It is queued on another CPU.
    Moves(u32),
    /// It is woken, by whom; it may not run yet as its cgroup has used up its quota.
    Woken {
        /// What woke it.
        by: Waker,
        /// The CPU on which a softirq or an interrupt did.
        on: Option<u32>,
        /// Whether it is throttled.
        throttled: bool,
    },
}

/// What a task is blocked on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Block {
    /// Number of its stack; negative: unknown.
    pub stack: i32,
    /// State of the scheduler.
    pub state: u32,
    /// Whether it waits for I/O.
    pub io: bool,
    /// The name, once it has been looked up.
    pub on: Option<String>,
}

/// What wakes a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Waker {
    /// A task, by thread id and name.
    Task(u32, String),
    /// A softirq, by its vector.
    Softirq(u32),
    /// An interrupt (with [`VECTOR`], one of the CPU itself).
    Irq(u32),
}

/// Events of one kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ring {
    /// The events.
    pub events: Vec<Event>,
    /// Whether there were more before them.
    pub cut: bool,
}

/// A task as known to the scheduler.
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
    /// Whether the task that ran before it was still runnable.
    pub ready_before: bool,
}

/// A change of what a CPU runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The time, CLOCK_MONOTONIC.
    pub ns: u64,
    /// The change.
    pub what: What,
    /// The thread that the CPU was running, by its id; `None` if `what` is a switch to another.
    pub current: Option<u32>,
}

/// Kind of change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// It switched to a task.
    Task(Task),
    /// Entry of a device interrupt, or of one of the CPU itself (with [`VECTOR`]).
    Irq(u32),
    /// Its exit.
    IrqEnd,
    /// Entry of a softirq: its vector, and how many packets had been received by then.
    Softirq(u32, u16),
    /// Its exit.
    SoftirqEnd(u16),
    /// The hypervisor stole this many nanoseconds, at some time since the previous timer interrupt.
    Stolen(u32),
    /// The CPU came online; it was offline since the previous event.
    Online,
    /// The next task of the CPU was runnable since then.
    Queued(u64),
}

/// Flag of an interrupt of the CPU itself.
pub const VECTOR: u32 = 1 << 31;
/// The timer's interrupt on x86.
pub const LOCAL_TIMER: u32 = VECTOR | 0xec;
/// Flag in a task's policy: the previous task was still runnable.
const READY_BEFORE: u8 = 1 << 7;

impl Record {
    /// Parses a record, with the data received before it; `None` if it is malformed.
    pub fn read(bytes: &[u8], logs: &Logs) -> Option<Self> {
        let (word, half) = (|at| word(bytes, at), |at| half(bytes, at));
        let quarter = |at: usize| Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
        let flags = quarter(34)?;
        let begin_ns = word(0)?.saturating_sub(word(8)?);
        let to_cpu = half(20)?;
        let ring = to_cpu.checked_mul(RINGS)?;
        let reader = reader(bytes, logs, begin_ns)?;
        let others: BTreeSet<u32> = reader.cpus().chain(reader.wakers()).collect();
        let others = others.into_iter().filter(|&cpu| cpu != to_cpu);
        let others = others.filter_map(|cpu| Some((cpu, CpuEvents::latest(cpu, logs, begin_ns)?)));
        Some(Self {
            at_ns: word(0)?,
            span_ns: word(8)?,
            from_cpu: half(16)?,
            to_cpu,
            from: stage(usize::from(quarter(24)?) % STAGES_MAX)?,
            to: stage(usize::from(quarter(26)?) % STAGES_MAX)?,
            task: Task { pid: half(28)?, comm: comm(bytes.get(COMM..HEADS)?), ..Task::default() },
            ended_in_task: flags & ENDED_IN_TASK != 0,
            queued: queued(bytes, flags)?,
            early: match (flags & EARLY != 0, word(GAP_END)?) {
                (false, _) => None,
                (true, 0) => Some(None),
                (true, ns) => Some(Some(ns)),
            },
            throttled: (0..THROTTLES)
                .filter_map(|n| Some(word(THROTTLED + 16 * n)?..word(THROTTLED + 16 * n + 8)?))
                .filter(|time| !time.is_empty())
                .collect(),
            bytes: half(36)?,
            received: quarter(32)?,
            flow: flow(bytes.get(FLOW..COMM)?),
            cpu: CpuEvents {
                tasks: logs.cpu(ring, word(HEADS)?, begin_ns),
                softirqs: logs.cpu(ring.checked_add(1)?, word(HEADS + 8)?, begin_ns),
            },
            others: others.collect(),
            reader,
            packet_path: bytes.get(PACKET_PATH_OFFSET..).and_then(PacketPath::read),
        })
    }

    /// Start of the span.
    pub fn begin_ns(&self) -> u64 {
        self.at_ns.saturating_sub(self.span_ns)
    }
}

impl CpuEvents {
    /// Nothing is known of it.
    pub fn unknown() -> Self {
        let cut = || Ring { events: Vec::new(), cut: true };
        Self { tasks: cut(), softirqs: cut() }
    }

    /// The events of a CPU, if any were received.
    fn latest(cpu: u32, logs: &Logs, after_ns: u64) -> Option<Self> {
        let ring = cpu.checked_mul(RINGS)?;
        let latest = |ring| logs.head(ring).map(|head| logs.cpu(ring, head, after_ns));
        let tasks = latest(ring)?;
        Some(Self { tasks, softirqs: latest(ring.checked_add(1)?).unwrap_or_default() })
    }
}

impl ReaderEvents {
    /// The CPUs that it was woken on.
    fn wakers(&self) -> impl Iterator<Item = u32> {
        self.events.iter().filter_map(|event| match event.what {
            Change::Woken { on, .. } => on,
            _ => None,
        })
    }

    /// The CPUs that it was on.
    fn cpus(&self) -> impl Iterator<Item = u32> {
        self.events.iter().map(|event| event.cpu)
    }
}

/// The activity of the reader up to the end of a slow packet's span.
fn reader(bytes: &[u8], logs: &Logs, begin_ns: u64) -> Option<ReaderEvents> {
    let ring = half(bytes, READER_RING)?;
    if ring == 0 {
        return Some(ReaderEvents { known_from: u64::MAX, ..ReaderEvents::default() });
    }
    let events = |number: u32, after_ns| {
        let at = 8 * usize::try_from(number).ok()?;
        let (claimed, head) = (word(bytes, READER_CLAIMED + at)?, word(bytes, READER_HEADS + at)?);
        Some(logs.reader(ring.checked_add(number)?, claimed, head, after_ns))
    };
    let mut all = events(0, begin_ns)?;
    let first_ns = all.events.first().map_or(begin_ns, |first| first.ns);
    let wakes = events(1, first_ns)?;
    all.known_from = all.known_from.max(wakes.known_from);
    all.events.extend(wakes.events);
    all.events.sort_by_key(|event| event.ns);
    Some(all)
}

fn queued(bytes: &[u8], flags: u16) -> Option<Option<Queued>> {
    let device = comm(bytes.get(DEVICE..RAISED)?);
    if device.is_empty() {
        return Some(None);
    }
    let raiser = match flags & (RAISED_BY_TIMER | RAISED_BY_DEVICE) {
        RAISED_BY_TIMER => Raiser::Timer,
        RAISED_BY_DEVICE => Raiser::Device,
        _ => Raiser::Other,
    };
    let raised_ns = word(bytes, RAISED)?;
    Some(Some(Queued {
        qdisc: comm(bytes.get(QDISC..DEVICE)?),
        device,
        stopped: flags & STOPPED != 0,
        raised: (raised_ns > 0).then_some((raised_ns, raiser)),
    }))
}

/// Eight bytes of a record.
pub(super) fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// Four bytes of a record.
pub(super) fn half(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Whether an event of a CPU determines what it runs from then on: a task, or a softirq or none.
pub(super) fn tells_what_runs(bytes: &[u8]) -> bool {
    matches!(bytes.get(15), Some(1 | 4 | 5))
}

/// Whether an event of a reader determines its state from then on, and what it last waited for: it blocks, or
/// is woken.
pub(super) fn tells_what_it_does(bytes: &[u8]) -> bool {
    matches!(bytes.get(15), Some(10 | 12))
}

/// Whether an event is the timer interrupt (x86).
pub(super) fn is_timer(bytes: &[u8]) -> bool {
    matches!(bytes.get(15), Some(2)) && half(bytes, 8) == Some(LOCAL_TIMER)
}

/// Parses an event of a reader.
pub(super) fn reader_event(bytes: &[u8]) -> Option<ReaderEvent> {
    const IOWAIT: u32 = 1;
    const THROTTLED: u32 = 2;
    const WAKER_THROTTLED: u8 = 0x80;
    let policy = *bytes.get(14)?;
    let id = half(bytes, 8)?;
    let flags = half(bytes, 28)?;
    let what = match bytes.get(15)? {
        8 => Change::Runs,
        13 => Change::Found,
        9 => Change::Ready { throttled: flags & THROTTLED != 0 },
        10 => Change::Blocks(Block {
            state: half(bytes, 16)?,
            stack: half(bytes, 20)?.cast_signed(),
            io: flags & IOWAIT != 0,
            on: None,
        }),
        11 => Change::Moves(half(bytes, 24)?),
        12 => Change::Woken {
            by: match policy & !WAKER_THROTTLED {
                1 => Waker::Softirq(id),
                2 => Waker::Irq(id),
                _ => Waker::Task(id, comm(bytes.get(16..32)?)),
            },
            on: match policy & !WAKER_THROTTLED {
                1 | 2 => half(bytes, 24)?.checked_sub(1),
                _ => None,
            },
            throttled: policy & WAKER_THROTTLED != 0,
        },
        _ => return None,
    };
    let cpu = u32::from(u16::from_ne_bytes(bytes.get(12..14)?.try_into().ok()?));
    Some(ReaderEvent { ns: word(bytes, 0)?, cpu, what })
}

/// Parses an event of a CPU.
pub(super) fn event(bytes: &[u8]) -> Option<Event> {
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
        14 => What::Queued(word(bytes, 24)?),
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
    use super::super::packet_path::tests::written;
    use super::*;
    use proptest::prelude::*;

    /// A thread's id.
    const NUMBER: [u8; 4] = [7, 1, 0, 0];

    /// A record of CPU 3.
    fn bytes() -> Vec<u8> {
        let mut bytes = vec![0; PACKET_PATH_OFFSET];
        let mut set = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        set(0, &5000u64.to_ne_bytes());
        set(8, &700u64.to_ne_bytes());
        set(20, &3u32.to_ne_bytes());
        set(24, &2u16.to_ne_bytes());
        set(26, &3u16.to_ne_bytes());
        set(34, &(ENDED_IN_TASK | STOPPED | EARLY | RAISED_BY_TIMER).to_ne_bytes());
        set(36, &1500u32.to_ne_bytes());
        set(HEADS, &2u64.to_ne_bytes());
        set(READER_HEADS, &3u64.to_ne_bytes());
        set(READER_CLAIMED, &1u64.to_ne_bytes());
        set(READER_HEADS + 8, &1u64.to_ne_bytes());
        set(READER_RING, &16u32.to_ne_bytes());
        set(QDISC, b"tbf\0");
        set(DEVICE, b"eth0\0");
        set(RAISED, &4900u64.to_ne_bytes());
        set(GAP_END, &4800u64.to_ne_bytes());
        set(THROTTLED, &4400u64.to_ne_bytes());
        set(THROTTLED + 8, &4500u64.to_ne_bytes());
        bytes
    }

    /// An event as encoded by the programs.
    fn written_event(ns: u64, id: u32, prio: u16, policy: u8, kind: u8, rest: &[u8]) -> Vec<u8> {
        let mut bytes =
            [&ns.to_ne_bytes()[..], &id.to_ne_bytes(), &prio.to_ne_bytes(), &[policy, kind], rest]
                .concat();
        bytes.resize(32, 0);
        bytes
    }

    fn block(ring: u32, events: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = super::super::events::tests::block(ring, 0, events.len() as u64);
        bytes.truncate(32);
        bytes.extend(events.concat());
        bytes.resize(super::super::events::BLOCK_BYTES, 0);
        bytes
    }

    fn logs() -> Logs {
        let mut logs = Logs::new(8);
        logs.take(&block(
            6,
            &[
                written_event(4000, 42, 0, READY_BEFORE | 1, 1, b"hog\0"),
                written_event(4900, 42, 0, 0, 3, &NUMBER),
            ],
        ));
        logs.take(&block(8, &[written_event(4000, 7, 0, 0, 1, b"other\0")]));
        logs.take(&block(
            16,
            &[
                written_event(3000, 1, 0, 0, 8, b""),
                written_event(4100, 9, 4, 0, 10, &[1, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 1]),
                written_event(4700, 9, 3, 0, 8, b""),
            ],
        ));
        logs.take(&block(17, &[written_event(4600, 11, 4, 0, 12, b"waker\0")]));
        logs
    }

    #[test]
    fn records_round_trip() {
        let record = Record::read(&bytes(), &logs()).unwrap();
        assert_eq!((record.begin_ns(), record.to_cpu, record.bytes), (4300, 3, 1500));
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
        assert_eq!(record.cpu.tasks, Ring { events: events.to_vec(), cut: false });
        assert_eq!(record.cpu.softirqs, Ring::default());
        assert_eq!((record.flow, record.packet_path), (None, None));
        assert_eq!((record.throttled[0].start, record.throttled[0].end), (4400, 4500));
        let queued = Queued {
            qdisc: "tbf".to_owned(),
            device: "eth0".to_owned(),
            stopped: true,
            raised: Some((4900, Raiser::Timer)),
        };
        assert_eq!((record.queued, record.early), (Some(queued), Some(Some(4800))));
        assert!(record.ended_in_task);
        let packet_path = written((64, 4000), &[(1, 2, 4300), (2, 3, 5000)]);
        let with_packet_path =
            Record::read(&[bytes(), packet_path].concat(), &logs()).unwrap().packet_path.unwrap();
        assert_eq!((with_packet_path.packet, with_packet_path.hops.len()), ((64, 4000), 2));
        assert_eq!(Record::read(&bytes()[..100], &logs()), None);
    }

    #[test]
    fn what_a_reader_did_is_read_in_order() {
        let record = Record::read(&bytes(), &logs()).unwrap();
        let block = Block { stack: 5, state: 1, io: true, on: None };
        let by = Waker::Task(11, "waker".to_owned());
        let event = |ns, cpu, what| ReaderEvent { ns, cpu, what };
        let events = vec![
            event(4100, 4, Change::Blocks(block)),
            event(4600, 4, Change::Woken { by, on: None, throttled: false }),
            event(4700, 3, Change::Runs),
        ];
        assert_eq!(record.reader, ReaderEvents { events, known_from: 0 });
        // And the activity of the other CPU that it was on.
        assert_eq!(record.others.keys().collect::<Vec<_>>(), [&4]);
        // What was not received is unknown.
        let lost = Record::read(&bytes(), &Logs::new(8)).unwrap();
        assert_eq!(lost.reader.known_from, u64::MAX);
        assert!(lost.cpu.tasks.cut);
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_rejected(bytes in prop::collection::vec(any::<u8>(), 0..700)) {
            let _ = (Record::read(&bytes, &logs()), event(&bytes), reader_event(&bytes));
        }
    }
}
