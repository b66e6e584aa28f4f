//! Where the time of a slow span went: the events of its CPU, laid over the span.
//!
//! The CPU is at each moment in a hard interrupt, else in a softirq, else in a task; the idle task
//! is one. What each of these means for the packet depends on what the span waits for.

use super::record::{Event, Record, Ring, Task, VECTOR, What};
use crate::outlier::{Share, ShareKind, Who};
use std::collections::BTreeMap;

/// Names of the softirqs (`softirq_to_name` in `kernel/softirq.c`).
const SOFTIRQS: [&str; 10] =
    ["HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER", "RCU"];
const NET_RX: u32 = 3;
/// Names of the scheduling policies (`include/uapi/linux/sched.h`).
const POLICIES: [&str; 8] = [
    "SCHED_OTHER",
    "SCHED_FIFO",
    "SCHED_RR",
    "SCHED_BATCH",
    "",
    "SCHED_IDLE",
    "SCHED_DEADLINE",
    "SCHED_EXT",
];
/// The share of a span that may be unknown in a complete budget.
const TOLERANCE: f64 = 0.05;

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
    /// Nothing: the packet is being worked on.
    Nothing,
    /// The device.
    Device,
}

/// Lays the CPU's events over the span.
pub fn budget(record: &Record) -> Budget {
    let begin = record.begin_ns();
    let mut cpu = Cpu::at(record, begin);
    let first_packets = cpu.received;
    let waits = waits(record);
    let by_ksoftirqd = cpu.last_task(record).comm.starts_with("ksoftirqd/");
    let mut sums: BTreeMap<(ShareKind, Option<Who>), u64> = BTreeMap::new();
    let mut undisturbed = true;
    let mut now = begin;
    for event in merged(record).filter(|event| event.ns > begin && event.ns <= record.at_ns) {
        let (kind, who) = cpu.share(record, waits, by_ksoftirqd, undisturbed);
        *sums.entry((kind, who)).or_default() += event.ns - now;
        now = event.ns;
        undisturbed = false;
        cpu.apply(event);
    }
    let (kind, who) = cpu.share(record, waits, by_ksoftirqd, undisturbed);
    *sums.entry((kind, who)).or_default() += record.at_ns - now;

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
        packets: first_packets.map_or(0, |first| record.received.wrapping_sub(first)),
    }
}

/// What the two stages of a span have between them.
fn waits(record: &Record) -> Waits {
    match (record.from.name, record.to.name) {
        (
            "irq_handler" | "net_rx_raise" | "net_rx_entry" | "napi_poll" | "napi_gro_receive"
            | "netif_rx" | "enqueue_to_backlog" | "process_backlog",
            _,
        ) => Waits::Softirq,
        ("sched_waking", _) => Waits::Scheduler,
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

/// Both rings in the order of time.
fn merged(record: &Record) -> impl Iterator<Item = &Event> {
    let mut events: Vec<&Event> =
        record.tasks.events.iter().chain(&record.softirqs.events).collect();
    events.sort_by_key(|event| event.ns);
    events.into_iter()
}

/// What a CPU runs at a moment.
struct Cpu {
    /// `None`: not known.
    task: Option<Task>,
    irqs: Vec<u32>,
    softirq: Option<u32>,
    /// Packets received; `None`: not known.
    received: Option<u16>,
    /// From when on the rings tell what it runs.
    known_from: u64,
    now: u64,
}

impl Cpu {
    /// The CPU at the begin of the span.
    fn at(record: &Record, begin: u64) -> Self {
        let oldest = |ring: &Ring| match (ring.cut, ring.events.first()) {
            (true, Some(event)) => event.ns,
            _ => 0,
        };
        let mut cpu = Self {
            task: None,
            irqs: Vec::new(),
            softirq: None,
            received: None,
            known_from: oldest(&record.tasks).max(oldest(&record.softirqs)),
            now: begin,
        };
        for event in merged(record).filter(|event| event.ns <= begin) {
            cpu.apply(event);
        }
        // No switch was seen at all: what runs at the end has run throughout.
        let switched = record.tasks.events.iter().any(|event| matches!(event.what, What::Task(_)));
        if !switched && !record.tasks.cut {
            cpu.task = Some(record.task.clone());
        }
        cpu.now = begin;
        cpu
    }

    fn apply(&mut self, event: &Event) {
        self.now = event.ns;
        match &event.what {
            What::Task(task) => self.task = Some(task.clone()),
            What::Irq(irq) => self.irqs.push(*irq),
            What::IrqEnd => drop(self.irqs.pop()),
            What::Softirq(vector, received) => {
                self.softirq = Some(*vector);
                self.received = Some(*received);
            }
            What::SoftirqEnd(received) => {
                self.softirq = None;
                self.received = Some(*received);
            }
        }
    }

    /// The task that runs when the span ends.
    fn last_task(&self, record: &Record) -> Task {
        let last = record.tasks.events.iter().rev().find_map(|event| match &event.what {
            What::Task(task) if event.ns <= record.at_ns => Some(task.clone()),
            _ => None,
        });
        last.or_else(|| self.task.clone()).unwrap_or_else(|| record.task.clone())
    }

    /// What the CPU's doing means for the packet.
    fn share(
        &self,
        record: &Record,
        waits: Waits,
        by_ksoftirqd: bool,
        undisturbed: bool,
    ) -> (ShareKind, Option<Who>) {
        if self.now < self.known_from {
            return (ShareKind::Unknown, None);
        }
        if let Some(&irq) = self.irqs.last() {
            return (ShareKind::Irq, Some(interrupt(irq)));
        }
        if let Some(vector) = self.softirq {
            let kind = match waits {
                Waits::Softirq if vector == NET_RX => ShareKind::NetRxAhead,
                Waits::Nothing if vector == NET_RX => ShareKind::Own,
                _ => ShareKind::Softirq,
            };
            let who = (kind == ShareKind::Softirq).then(|| softirq(vector));
            return (kind, who);
        }
        let Some(task) = &self.task else { return (ShareKind::Unknown, None) };
        if task.pid == 0 {
            let ipi = waits == Waits::Softirq && undisturbed && record.from_cpu != record.to_cpu;
            return (if ipi { ShareKind::Ipi } else { ShareKind::Idle }, None);
        }
        let kind = match waits {
            Waits::Softirq if task.comm.starts_with("ksoftirqd/") => ShareKind::Own,
            Waits::Softirq if by_ksoftirqd => ShareKind::Task,
            Waits::Softirq => ShareKind::Disabled,
            Waits::Reader if task.pid == record.task.pid => ShareKind::Task,
            Waits::Nothing if task.pid == record.task.pid => ShareKind::Own,
            Waits::Device => ShareKind::Task,
            Waits::Reader | Waits::Nothing | Waits::Scheduler => ShareKind::Runqueue,
        };
        (kind, (kind != ShareKind::Own).then(|| who(task)))
    }
}

fn interrupt(irq: u32) -> Who {
    if irq & VECTOR == 0 {
        return Who { irq: Some(irq), ..Who::default() };
    }
    // Linux on x86 (arch/x86/include/asm/irq_vectors.h).
    let vector = match irq & !VECTOR {
        0xec => "local_timer".to_owned(),
        0xfb => "call_function_single".to_owned(),
        other => format!("vector {other:#x}"),
    };
    Who { vector: Some(vector), ..Who::default() }
}

fn softirq(vector: u32) -> Who {
    let name = usize::try_from(vector).ok().and_then(|v| SOFTIRQS.get(v));
    Who {
        vector: Some(name.map_or_else(|| vector.to_string(), |&n| n.to_owned())),
        ..Who::default()
    }
}

fn who(task: &Task) -> Who {
    let prio = i32::from(task.prio);
    let policy = POLICIES.get(usize::from(task.policy)).filter(|name| !name.is_empty());
    Who {
        comm: Some(task.comm.clone()),
        pid: Some(task.pid),
        policy: policy.map(|&name| name.to_owned()),
        // include/linux/sched/prio.h: 0 to 99 are real-time, 99 - prio as users know it; then nice.
        // That of a deadline task says nothing.
        prio: (prio < 140).then_some(if prio < 100 { 99 - prio } else { prio - 120 }),
        ..Who::default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::table::STAGES;
    use super::*;
    use proptest::prelude::*;

    fn task(pid: u32, comm: &str) -> Task {
        Task { pid, comm: comm.to_owned(), prio: 120, policy: 0 }
    }

    fn at(ns: u64, what: What) -> Event {
        Event { ns, what }
    }

    /// A span of 1,000 ns from 1,000 on, from CPU 0 to CPU 1, that ends in `reader`.
    fn record(from: &str, to: &str, tasks: Vec<Event>, softirqs: Vec<Event>) -> Record {
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
            tasks: Ring { events: tasks, cut: false },
            softirqs: Ring { events: softirqs, cut: false },
            trail: None,
        }
    }

    /// The shares by kind and by who is named, the largest first.
    fn shares(record: &Record) -> Vec<(ShareKind, String, u64)> {
        let name = |who: &Who| {
            who.comm.clone().or(who.vector.clone()).unwrap_or_else(|| format!("{:?}", who.irq))
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
                (ShareKind::Irq, "Some(33)".to_owned(), 100),
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
            [(ShareKind::Task, "reader".to_owned(), 700), (ShareKind::Idle, String::new(), 300),]
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
    fn users_know_priorities_by_other_numbers() {
        let fifo = who(&Task { prio: 49, policy: 1, ..task(9, "hog") });
        assert_eq!((fifo.policy.as_deref(), fifo.prio), (Some("SCHED_FIFO"), Some(50)));
        assert_eq!(who(&Task { prio: 139, ..task(9, "hog") }).prio, Some(19));
        let deadline = who(&Task { prio: u16::MAX, policy: 6, ..task(9, "hog") });
        assert_eq!((deadline.policy.as_deref(), deadline.prio), (Some("SCHED_DEADLINE"), None));
    }

    fn any_event() -> impl Strategy<Value = Event> {
        let what = prop_oneof![
            (0..5u32).prop_map(|pid| What::Task(task(pid, "task"))),
            any::<u32>().prop_map(What::Irq),
            Just(What::IrqEnd),
            (any::<u32>(), any::<u16>()).prop_map(|(vector, n)| What::Softirq(vector, n)),
            any::<u16>().prop_map(What::SoftirqEnd),
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
        ) {
            let mut r = record(STAGES[from].name, STAGES[to].name, tasks, softirqs);
            r.tasks.cut = cut;
            shares(&r);
        }
    }
}
