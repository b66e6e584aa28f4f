//! Where the time of a slow span went: the events of its CPU, laid over the span.
//!
//! The CPU is at each moment in a hard interrupt, else in a softirq, else in a task; the idle task
//! is one. What each of these means for the packet depends on what the span waits for.

mod stretches;
mod who;

use super::record::Record;
use crate::{Share, ShareKind, Who};
use nearpath_host::CpuId;
use std::collections::BTreeMap;
use stretches::{Reader, Runs, Stretch, stretches};

const NET_RX: u32 = 3;
/// The share of a span that may be unknown in a complete budget.
const TOLERANCE: f64 = 0.05;

/// Cache lines that the kernel touches for a packet between two stages, beside those of its data:
/// more than there are in an sk_buff (4) with its shared info (5), a socket's hot fields (about
/// 10), a flow and its actions, and a device's queue.
const LINES: u64 = 64;
const LINE_BYTES: u64 = 64;
/// Nanoseconds of a load from a node's own memory, on the slow side of today's servers.
const LOCAL_NS: u64 = 100;
/// The distance of a node to itself (ACPI 6.5, 5.2.17: System Locality Information Table), to which
/// others are relative.
const LOCAL_DISTANCE: u64 = 10;

/// A budget.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Budget {
    /// Its shares, the largest first; they add up to the span.
    pub shares: Vec<Share>,
    /// Whether no more than a twentieth is unknown.
    pub complete: bool,
    /// Packets that the stack was given meanwhile.
    pub packets: u16,
}

/// What a span waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waits {
    /// The CPU's NET_RX.
    Softirq,
    /// The reader, which was woken, to run.
    Scheduler,
    /// The reader, which is awake, to come for the packet.
    Reader,
    /// The user space of Open vSwitch.
    Upcall,
    /// Nothing: the packet is being worked on.
    Nothing,
    /// The device.
    Device,
}

/// Lays the CPU's events over the span.
pub fn budget(record: &Record) -> Budget {
    let begin = record.begin_ns();
    let (stretches, received) = stretches(record);
    let spanned: Vec<&Stretch> = stretches.iter().filter(|s| s.end > begin).collect();
    let view = View {
        record,
        softirq: stretches.iter().rev().find_map(|s| match s.runs {
            Runs::Softirq(vector) => Some(Some(vector)),
            Runs::Task(_) => Some(None),
            Runs::Irq(_) | Runs::Unknown => None,
        }),
        waits: waits(record),
        by_ksoftirqd: stretches.iter().rev().find_map(|s| match &s.runs {
            Runs::Task(task) => Some(task.comm.starts_with("ksoftirqd/")),
            _ => None,
        }) == Some(true),
    };
    let mut sums: BTreeMap<(ShareKind, Option<Who>), u64> = BTreeMap::new();
    let mut broken_off = false;
    for (index, stretch) in spanned.iter().enumerate() {
        let mut stolen = stretch.stolen;
        let mut now = stretch.begin.max(begin);
        while now < stretch.end {
            let (share, end) = view.share(stretch, now, index == 0, broken_off);
            let taken = stolen.min(end - now);
            stolen -= taken;
            *sums.entry((ShareKind::Stolen, None)).or_default() += taken;
            *sums.entry(share).or_default() += end - now - taken;
            now = end;
        }
        broken_off |= stretch.runs == Runs::Softirq(NET_RX);
    }
    // (A span of no time at all has no stretch.)
    let unknown: u64 =
        sums.iter().filter(|((kind, _), _)| *kind == ShareKind::Unknown).map(|(_, ns)| ns).sum();
    let mut shares: Vec<Share> = sums
        .into_iter()
        .filter(|(_, ns)| *ns > 0)
        .map(|((share, who), ns)| Share { share, ns, who })
        .collect();
    shares.sort_by_key(|share| std::cmp::Reverse(share.ns));
    Budget {
        shares,
        complete: unknown as f64 <= record.span_ns as f64 * TOLERANCE,
        packets: received.map_or(0, |first| record.received.wrapping_sub(first)),
    }
}

/// The most that remote memory can have added to a span: each line that the packet's work touches
/// is fetched once from the farthest node. `distance` is that of the CPU's node to it.
pub fn remote_memory_bound(record: &Record, distance: u32) -> Option<Share> {
    let farther = u64::from(distance).checked_sub(LOCAL_DISTANCE).filter(|&more| more > 0)?;
    let lines = LINES + u64::from(record.bytes).div_ceil(LINE_BYTES);
    let ns = lines * LOCAL_NS * farther / LOCAL_DISTANCE;
    let ns = ns.min(record.span_ns);
    Some(Share { share: ShareKind::RemoteMemoryBound, ns, who: None })
}

/// What the two stages of a span have between them.
fn waits(record: &Record) -> Waits {
    match (record.from.name, record.to.name) {
        (
            "irq_handler" | "net_rx_raise" | "net_rx_entry" | "napi_poll" | "napi_gro_receive"
            | "netif_rx" | "gro_cells_receive" | "enqueue_to_backlog" | "process_backlog",
            _,
        ) => Waits::Softirq,
        ("sched_waking", _) => Waits::Scheduler,
        ("ovs_dp_upcall", _) => Waits::Upcall,
        (_, "skb_copy_datagram" | "sock_recv" | "sched_switch")
            if record.from.name != "sched_switch" =>
        {
            Waits::Reader
        }
        ("net_dev_xmit" | "net_dev_start_xmit", "consume_skb" | "kfree_skb") => Waits::Device,
        ("qdisc_enqueue", _) => Waits::Device,
        _ => Waits::Nothing,
    }
}

/// How the CPU's doing is to be seen for one record.
struct View<'a> {
    record: &'a Record,
    waits: Waits,
    /// What the span ends in: a softirq, or a task (`Some(None)`).
    softirq: Option<Option<u32>>,
    /// NET_RX came from ksoftirqd in the end.
    by_ksoftirqd: bool,
}

impl View<'_> {
    /// What a stretch means for the packet from a moment on, and until when. Whether it is the
    /// first of the span, and whether NET_RX ran before it in the span and was broken off.
    fn share(
        &self,
        stretch: &Stretch,
        now: u64,
        first: bool,
        broken_off: bool,
    ) -> ((ShareKind, Option<Who>), u64) {
        let kind = |kind, who| ((kind, who), stretch.end);
        let for_task = matches!(self.waits, Waits::Scheduler | Waits::Reader | Waits::Upcall);
        if let Some((until, from)) = self.record.moved
            && for_task
            && now < until
        {
            let who = Who { cpu: Some(CpuId(from)), ..Who::default() };
            return ((ShareKind::Migration, Some(who)), until.min(stretch.end));
        }
        let task = match &stretch.runs {
            Runs::Unknown => return kind(ShareKind::Unknown, None),
            Runs::Irq(irq) => return kind(ShareKind::Irq, Some(who::interrupt(*irq))),
            Runs::Softirq(NET_RX) if self.waits == Waits::Softirq => {
                return kind(ShareKind::NetRxAhead, None);
            }
            // It is the packet's own if it is still worked on there at the end.
            Runs::Softirq(vector)
                if self.waits == Waits::Nothing && self.softirq == Some(Some(*vector)) =>
            {
                return kind(ShareKind::Own, None);
            }
            Runs::Softirq(vector) => return kind(ShareKind::Softirq, Some(who::softirq(*vector))),
            Runs::Task(task) => task,
        };
        let reader = || Some(who::named(&self.record.task));
        let mut end = stretch.end;
        if for_task && task.pid != self.record.task.pid {
            for throttled in &self.record.throttled {
                if throttled.contains(&now) {
                    return ((ShareKind::Throttled, reader()), end.min(throttled.end));
                } else if now < throttled.start {
                    end = end.min(throttled.start);
                }
            }
        }
        let idle = task.pid == 0;
        let own = task.pid == self.record.task.pid;
        let ksoftirqd = task.comm.starts_with("ksoftirqd/");
        let share = match self.waits {
            Waits::Softirq if idle && first && self.record.from_cpu != self.record.to_cpu => {
                (ShareKind::Ipi, None)
            }
            Waits::Upcall if own || stretch.reader != Reader::Ready => {
                (ShareKind::Upcall, reader())
            }
            Waits::Reader if !own && stretch.reader == Reader::Asleep => {
                (ShareKind::Asleep, reader())
            }
            _ if idle => (ShareKind::Idle, None),
            Waits::Softirq if ksoftirqd => (ShareKind::Own, None),
            Waits::Softirq if self.by_ksoftirqd || broken_off => {
                (ShareKind::Task, Some(who::task(task)))
            }
            Waits::Softirq => (ShareKind::Disabled, Some(who::task(task))),
            Waits::Nothing if own => (ShareKind::Own, None),
            Waits::Reader if own => (ShareKind::Task, Some(who::task(task))),
            Waits::Device => (ShareKind::Task, Some(who::task(task))),
            _ => (ShareKind::Runqueue, Some(who::task(task))),
        };
        (share, end)
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::{Event, Ring, Task, VECTOR, What};
    use super::super::table::STAGES;
    use super::*;
    use proptest::prelude::*;
    use std::ops::Range;

    pub(super) fn task(pid: u32, comm: &str) -> Task {
        Task { pid, comm: comm.to_owned(), prio: 120, ..Task::default() }
    }

    pub(super) fn at(ns: u64, what: What) -> Event {
        Event { ns, what }
    }

    /// A span of 1,000 ns from 1,000 on, from CPU 0 to CPU 1, that ends in `reader`.
    pub(super) fn record(from: &str, to: &str, tasks: Vec<Event>, softirqs: Vec<Event>) -> Record {
        let stage = |name: &str| STAGES.iter().find(|stage| stage.name == name).unwrap();
        Record {
            at_ns: 2000,
            span_ns: 1000,
            from_cpu: 0,
            to_cpu: 1,
            from: stage(from),
            to: stage(to),
            task: task(7, "reader"),
            received: 12,
            flow: None,
            moved: None,
            throttled: Vec::new(),
            bytes: 1500,
            tasks: Ring { events: tasks, cut: false },
            softirqs: Ring { events: softirqs, cut: false },
            trail: None,
        }
    }

    /// The shares by kind and by who is named, the largest first.
    fn shares(record: &Record) -> Vec<(ShareKind, String, u64)> {
        let name = |who: &Who| {
            let number = || format!("{:?}{:?}", who.irq, who.cpu);
            who.comm.clone().or(who.vector.clone()).unwrap_or_else(number)
        };
        let budget = budget(record);
        assert_eq!(budget.shares.iter().map(|s| s.ns).sum::<u64>(), record.span_ns);
        budget
            .shares
            .iter()
            .map(|s| (s.share, s.who.as_ref().map(name).unwrap_or_default(), s.ns))
            .collect()
    }

    #[test]
    fn a_packet_waits_for_net_rx_behind_others() {
        let r = record(
            "net_rx_raise",
            "netif_receive_skb",
            vec![
                at(500, What::Task(task(0, "swapper/1"))),
                at(1100, What::Irq(VECTOR | 0xfb)),
                at(1150, What::IrqEnd),
            ],
            vec![at(1150, What::Softirq(NET_RX, 5))],
        );
        assert_eq!(
            shares(&r),
            [
                (ShareKind::NetRxAhead, String::new(), 850),
                (ShareKind::Ipi, String::new(), 100),
                (ShareKind::Irq, "call_function_single".to_owned(), 50),
            ]
        );
    }

    #[test]
    fn a_task_before_ksoftirqd_is_told_from_one_that_holds_softirqs_off() {
        let hog = || at(500, What::Task(task(9, "hog")));
        let left = record(
            "net_rx_raise",
            "net_rx_entry",
            vec![hog(), at(1900, What::Task(task(20, "ksoftirqd/1")))],
            vec![],
        );
        assert_eq!(shares(&left)[0], (ShareKind::Task, "hog".to_owned(), 900));
        let held = record("net_rx_raise", "net_rx_entry", vec![hog()], vec![]);
        assert_eq!(shares(&held), [(ShareKind::Disabled, "hog".to_owned(), 1000)]);
    }

    #[test]
    fn a_reader_waits_behind_tasks_interrupts_and_softirqs() {
        let r = record(
            "sched_waking",
            "sched_switch",
            vec![
                at(500, What::Task(task(9, "hog"))),
                at(1200, What::Irq(33)),
                at(1300, What::IrqEnd),
                at(1990, What::Task(task(7, "reader"))),
            ],
            vec![at(1300, What::Softirq(1, 5)), at(1350, What::SoftirqEnd(5))],
        );
        assert_eq!(
            shares(&r),
            [
                (ShareKind::Runqueue, "hog".to_owned(), 840),
                (ShareKind::Irq, "Some(33)None".to_owned(), 100),
                (ShareKind::Softirq, "TIMER".to_owned(), 50),
                (ShareKind::Runqueue, "reader".to_owned(), 10),
            ]
        );
        assert_eq!(budget(&r).packets, 0);
    }

    #[test]
    fn work_on_the_packet_is_its_own() {
        let in_stack = record(
            "netif_receive_skb",
            "tcp_v4_rcv",
            vec![at(500, What::Task(task(9, "other")))],
            vec![at(600, What::Softirq(NET_RX, 10))],
        );
        assert_eq!(shares(&in_stack), [(ShareKind::Own, String::new(), 1000)]);
        assert_eq!(budget(&in_stack).packets, 2);
        // To its reader it is others' packets that NET_RX works on.
        let disturbed = record(
            "sched_switch",
            "sock_recv",
            vec![at(500, What::Task(task(7, "reader")))],
            vec![at(1100, What::Softirq(NET_RX, 10)), at(1900, What::SoftirqEnd(12))],
        );
        assert_eq!(shares(&disturbed)[0], (ShareKind::Softirq, "NET_RX".to_owned(), 800));
        // No switch in the history at all: the task at the end ran throughout.
        let sending = record("sock_send", "net_dev_queue", vec![], vec![]);
        assert_eq!(shares(&sending), [(ShareKind::Own, String::new(), 1000)]);
    }

    #[test]
    fn a_reader_that_does_other_things_is_a_task() {
        let r = record(
            "sk_data_ready",
            "skb_copy_datagram",
            vec![
                at(500, What::Task(task(7, "reader"))),
                at(1600, What::Task(task(0, "swapper/1"))),
                at(1900, What::Task(task(7, "reader"))),
            ],
            vec![],
        );
        assert_eq!(
            shares(&r),
            [
                (ShareKind::Task, "reader".to_owned(), 700),
                (ShareKind::Asleep, "reader".to_owned(), 300)
            ]
        );
    }

    #[test]
    fn a_history_that_is_too_short_leaves_the_rest_unknown() {
        let mut r = record(
            "sched_waking",
            "sched_switch",
            vec![at(1800, What::Task(task(9, "hog")))],
            vec![],
        );
        r.tasks.cut = true;
        let shares = shares(&r);
        assert_eq!(shares[0], (ShareKind::Unknown, String::new(), 800));
        assert_eq!(shares[1], (ShareKind::Runqueue, "hog".to_owned(), 200));
        assert!(!budget(&r).complete);
    }

    #[test]
    fn a_quota_that_is_used_up_is_told_from_other_tasks() {
        let mut r = record(
            "sched_waking",
            "sched_switch",
            vec![at(500, What::Task(task(9, "other"))), at(1100, What::Task(task(0, "swapper/1")))],
            vec![],
        );
        r.throttled = vec![200..1400, 1500..1900];
        assert_eq!(
            shares(&r),
            [
                (ShareKind::Throttled, "reader".to_owned(), 800),
                (ShareKind::Idle, String::new(), 200),
            ]
        );
        // Of the time before this packet it says nothing.
        r.throttled = vec![Range { start: 200, end: 900 }];
        assert_eq!(shares(&r)[0].0, ShareKind::Idle);
    }

    #[test]
    fn a_reader_that_was_moved_waited_for_another_cpu() {
        let mut r = record(
            "sched_waking",
            "sched_switch",
            vec![at(500, What::Task(task(9, "other")))],
            vec![],
        );
        r.moved = Some((1700, 3));
        assert_eq!(
            shares(&r),
            [
                (ShareKind::Migration, "NoneSome(CpuId(3))".to_owned(), 700),
                (ShareKind::Runqueue, "other".to_owned(), 300),
            ]
        );
    }

    #[test]
    fn user_space_has_the_packet_of_an_upcall() {
        let preempting = Task { ready_before: true, ..task(9, "other") };
        let r = record(
            "ovs_dp_upcall",
            "ovs_vport_send",
            vec![
                at(500, What::Task(task(0, "swapper/1"))),
                at(1100, What::Task(task(7, "handler1"))),
                at(1200, What::Task(preempting)),
                at(1500, What::Task(task(7, "handler1"))),
            ],
            vec![],
        );
        assert_eq!(
            shares(&r),
            [
                (ShareKind::Upcall, "reader".to_owned(), 700),
                (ShareKind::Runqueue, "other".to_owned(), 300),
            ]
        );
    }

    #[test]
    fn what_was_stolen_is_no_task_s_fault() {
        let r = record(
            "sched_waking",
            "sched_switch",
            vec![
                at(500, What::Task(task(9, "other"))),
                at(1900, What::Irq(VECTOR | 0xec)),
                at(1910, What::Stolen(600)),
                at(1910, What::IrqEnd),
            ],
            vec![],
        );
        assert_eq!(shares(&r)[0], (ShareKind::Stolen, String::new(), 600));
        assert_eq!(shares(&r)[1], (ShareKind::Runqueue, "other".to_owned(), 390));
    }

    #[test]
    fn remote_memory_explains_microseconds_and_no_more() {
        let mut r = record("sched_waking", "sched_switch", vec![], vec![]);
        r.span_ns = 16_000_000;
        // 64 lines and 24 of data, each 110 ns farther.
        assert_eq!(remote_memory_bound(&r, 21).unwrap().ns, 9_680);
        assert_eq!(remote_memory_bound(&r, 10), None);
        r.span_ns = 500;
        assert_eq!(remote_memory_bound(&r, 21).unwrap().ns, 500);
    }

    fn any_event() -> impl Strategy<Value = Event> {
        let what = prop_oneof![
            (0..5u32).prop_map(|pid| What::Task(task(pid, "task"))),
            any::<u32>().prop_map(What::Irq),
            Just(What::IrqEnd),
            (any::<u32>(), any::<u16>()).prop_map(|(vector, n)| What::Softirq(vector, n)),
            any::<u16>().prop_map(What::SoftirqEnd),
            (0..3000u32).prop_map(What::Stolen),
        ];
        (0..3000u64, what).prop_map(|(ns, what)| at(ns, what))
    }

    proptest! {
        #[test]
        fn any_history_adds_up(
            tasks in prop::collection::vec(any_event(), 0..20),
            softirqs in prop::collection::vec(any_event(), 0..20),
            cut in any::<bool>(),
            from in 0..STAGES.len(),
            to in 0..STAGES.len(),
            moved in prop::option::of((0..3000u64, 0..4u32)),
            throttled in prop::collection::vec(0..3000u64, 2),
        ) {
            let mut r = record(STAGES[from].name, STAGES[to].name, tasks, softirqs);
            r.tasks.cut = cut;
            r.moved = moved;
            r.throttled = throttled.windows(2).map(|w| w[0]..w[1]).collect();
            shares(&r);
        }
    }
}
