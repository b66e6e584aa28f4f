//! Constructed histories, and the shares expected for them.

use super::super::record::{
    Block, Change, CpuEvents, Event, Queued, Raiser, ReaderEvent, ReaderEvents, Ring, Task, VECTOR,
    Waker, What,
};
use super::super::table::STAGES;
use super::*;
use proptest::prelude::*;
use std::ops::Range;

pub(super) fn task(pid: u32, comm: &str) -> Task {
    Task { pid, comm: comm.to_owned(), prio: 120, ..Task::default() }
}

pub(super) fn at(ns: u64, what: What) -> Event {
    Event { ns, what, current: None }
}

/// The same while the CPU runs a thread.
pub(super) fn at_thread(ns: u64, current: u32, what: What) -> Event {
    Event { current: Some(current), ..at(ns, what) }
}

/// A span of 1,000ns from 1,000 on, from CPU 0 to CPU 1, that ends in `reader`.
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
        ended_in_task: false,
        queued: None,
        early: None,
        throttled: Vec::new(),
        bytes: 1500,
        cpu: CpuEvents {
            tasks: Ring { events: tasks, cut: false },
            softirqs: Ring { events: softirqs, cut: false },
        },
        others: BTreeMap::new(),
        reader: ReaderEvents { events: Vec::new(), known_from: u64::MAX },
        packet_path: None,
    }
}

/// The shares by kind and cause, largest first.
pub(super) fn shares(record: &Record) -> Vec<(ShareKind, String, u64)> {
    let name = |who: &Culprit| {
        let number = || format!("{:?}{:?}", who.irq, who.cpu);
        who.comm.clone().or(who.vector.clone()).or(who.qdisc.clone()).unwrap_or_else(number)
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
fn a_task_before_ksoftirqd_differs_from_one_that_disables_softirqs() {
    let hog = || at(500, What::Task(task(9, "hog")));
    let left = record(
        "net_rx_raise",
        "net_rx_entry",
        vec![hog(), at(1900, What::Task(task(20, "ksoftirqd/1")))],
        vec![],
    );
    assert_eq!(shares(&left)[0], (ShareKind::Task, "hog".to_owned(), 900));
    // The same with a thread that polls the device, and with that of an interrupt (PREEMPT_RT).
    for (comm, softirqs) in
        [("napi/eth0-8193", vec![]), ("irq/33-eth0", vec![at(1901, What::Softirq(NET_RX, 5))])]
    {
        let thread = at(1900, What::Task(task(20, comm)));
        let left = record("irq_handler", "napi_gro_receive", vec![hog(), thread], softirqs);
        let ahead = shares(&left).into_iter().find(|share| share.0 == ShareKind::NetRxAhead);
        assert_eq!(shares(&left)[0], (ShareKind::Task, "hog".to_owned(), 900));
        assert!(ahead.is_some_and(|share| share.2 >= 99), "{comm}");
    }
    let held = record("net_rx_raise", "net_rx_entry", vec![hog()], vec![]);
    assert_eq!(shares(&held), [(ShareKind::Disabled, "hog".to_owned(), 1000)]);
}

#[test]
fn a_cpu_that_is_offline_neither_idles_nor_waits_for_an_interrupt() {
    let r = record(
        "enqueue_to_backlog",
        "net_rx_raise",
        vec![
            at(500, What::Task(task(0, "swapper/1"))),
            at(1800, What::Online),
            at(1810, What::Online),
            at(1900, What::Irq(VECTOR | 0xfb)),
        ],
        vec![],
    );
    assert_eq!(
        shares(&r),
        [
            (ShareKind::Offline, String::new(), 810),
            (ShareKind::Irq, "call_function_single".to_owned(), 100),
            (ShareKind::Idle, String::new(), 90),
        ]
    );
    // Packets in its backlog are passed to netif_rx() by the CPU that takes over.
    let taken = record("enqueue_to_backlog", "netif_rx", vec![], vec![]);
    assert_eq!(shares(&taken), [(ShareKind::Offline, String::new(), 1000)]);
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
fn processing_the_packet_is_its_own_work() {
    let in_stack = record(
        "netif_receive_skb",
        "tcp_v4_rcv",
        vec![at(500, What::Task(task(9, "other")))],
        vec![at(600, What::Softirq(NET_RX, 10))],
    );
    assert_eq!(shares(&in_stack), [(ShareKind::Own, String::new(), 1000)]);
    assert_eq!(budget(&in_stack).packets, 2);
    // For the reader, NET_RX processes other packets.
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
            // Its CPU alone does not show whether it was runnable.
            (ShareKind::Unknown, String::new(), 300)
        ]
    );
    assert!(!budget(&r).complete);
}

/// Adds the reader's events, all of them known.
fn with_reader(mut r: Record, events: Vec<(u64, u32, Change)>) -> Record {
    let events = events.into_iter().map(|(ns, cpu, what)| ReaderEvent { ns, cpu, what });
    r.reader = ReaderEvents { events: events.collect(), known_from: 0 };
    r
}

fn blocks(on: &str) -> Change {
    Change::Blocks(Block { on: Some(on.to_owned()), ..Block::default() })
}

fn woken(pid: u32, comm: &str) -> Change {
    Change::Woken { by: Waker::Task(pid, comm.to_owned()), on: None, throttled: false }
}

#[test]
fn a_packet_behind_the_first_waits_for_the_readers_cpu_too() {
    // The first has woken the reader, which waits behind a task; this one wakes no task.
    let r = record(
        "sk_data_ready",
        "sock_recv",
        vec![
            at(100, What::Task(task(7, "reader"))),
            at(200, What::Task(task(9, "hog"))),
            at(1950, What::Task(task(7, "reader"))),
        ],
        vec![at(700, What::Softirq(NET_RX, 5)), at(710, What::SoftirqEnd(6))],
    );
    let by = Change::Woken { by: Waker::Softirq(NET_RX), on: None, throttled: false };
    let r = with_reader(
        r,
        vec![
            (100, 1, Change::Runs),
            (200, 1, blocks("socket")),
            (700, 1, by),
            (1950, 1, Change::Runs),
        ],
    );
    assert_eq!(
        shares(&r),
        [(ShareKind::Runqueue, "hog".to_owned(), 950), (ShareKind::Task, "reader".to_owned(), 50),]
    );
}

fn woken_by_net_rx_on(cpu: u32) -> Change {
    Change::Woken { by: Waker::Softirq(NET_RX), on: Some(cpu), throttled: false }
}

/// A watched packet: its reader waits for packets and is woken on a CPU after 600ns, and runs 300ns later.
fn watched(woken_on: u32) -> Record {
    let r = record(
        "skb_tstamp",
        "sock_recv",
        vec![at(100, What::Task(task(9, "hog"))), at(1900, What::Task(task(7, "reader")))],
        vec![],
    );
    with_reader(
        r,
        vec![
            (100, 1, blocks("socket")),
            (1600, 1, woken_by_net_rx_on(woken_on)),
            (1900, 1, Change::Runs),
        ],
    )
}

#[test]
fn a_watched_packet_waited_for_the_cpu_that_woke_its_reader_and_then_for_its_reader() {
    let mut r = watched(3);
    r.others.insert(
        3,
        CpuEvents {
            tasks: Ring { events: vec![at(500, What::Task(task(5, "locker")))], cut: false },
            softirqs: Ring { events: vec![at(1550, What::Softirq(NET_RX, 5))], cut: false },
        },
    );
    assert_eq!(
        shares(&r),
        [
            (ShareKind::Disabled, "locker".to_owned(), 550),
            (ShareKind::Runqueue, "hog".to_owned(), 300),
            (ShareKind::Task, "reader".to_owned(), 100),
            (ShareKind::NetRxAhead, String::new(), 50),
        ]
    );
    assert!(budget(&r).complete);
}

#[test]
fn what_a_cpu_did_whose_activity_was_not_sent_is_unknown() {
    let r = watched(3);
    assert_eq!(shares(&r)[0], (ShareKind::Unknown, String::new(), 600));
    assert!(!budget(&r).complete);
}

#[test]
fn a_watched_packet_whose_reader_never_waited_for_packets_waited_for_its_reader() {
    let mut r = watched(1);
    r.reader.events = vec![
        ReaderEvent { ns: 100, cpu: 1, what: Change::Ready { throttled: false } },
        ReaderEvent { ns: 1900, cpu: 1, what: Change::Runs },
    ];
    assert_eq!(
        shares(&r),
        [(ShareKind::Runqueue, "hog".to_owned(), 900), (ShareKind::Task, "reader".to_owned(), 100)]
    );
    // Another lock than that of its socket is not a wait for packets.
    r.reader.events = vec![
        ReaderEvent { ns: 100, cpu: 1, what: blocks("futex") },
        ReaderEvent { ns: 1900, cpu: 1, what: woken_by_net_rx_on(1) },
        ReaderEvent { ns: 1900, cpu: 1, what: Change::Runs },
    ];
    assert_eq!(shares(&r)[0], (ShareKind::Asleep, "reader".to_owned(), 900));
}

#[test]
fn a_blocked_reader_shows_on_what_and_who_woke_it() {
    let r = record(
        "sk_data_ready",
        "sock_recv",
        vec![at(100, What::Task(task(7, "reader"))), at(200, What::Task(task(9, "other")))],
        vec![at(1100, What::Softirq(1, 5)), at(1200, What::SoftirqEnd(6))],
    );
    let r = with_reader(
        r,
        vec![
            (100, 1, Change::Runs),
            (200, 1, blocks("futex")),
            (1700, 1, woken(12, "holder")),
            (1900, 1, Change::Runs),
        ],
    );
    let budget = budget(&r);
    assert_eq!(shares(&r)[0], (ShareKind::Asleep, "reader".to_owned(), 700));
    assert_eq!(shares(&r)[1], (ShareKind::Runqueue, "other".to_owned(), 200));
    let who = budget.shares[0].who.as_ref().unwrap();
    assert_eq!(who.on.as_deref(), Some("futex"));
    let by = who.woken_by.as_ref().unwrap();
    assert_eq!((by.comm.as_deref(), by.pid), (Some("holder"), Some(12)));
}

#[test]
fn a_reader_that_waits_for_its_lock_or_its_peer_is_not_a_sleeper() {
    for (from, to, on, share) in [
        ("sk_data_ready", "sock_recv", "socket_lock", ShareKind::SocketLocked),
        ("sock_send", "tcp_transmit_skb", "send_buffer", ShareKind::SocketFull),
    ] {
        let r = with_reader(
            record(from, to, vec![at(500, What::Task(task(0, "swapper/1")))], vec![]),
            vec![(100, 1, Change::Runs), (400, 1, blocks(on)), (2000, 1, woken(12, "peer"))],
        );
        assert_eq!(shares(&r), [(share, "reader".to_owned(), 1000)]);
    }
}

#[test]
fn a_reader_that_was_woken_for_a_packet_and_does_other_things_is_a_task() {
    let of = |on| {
        let r = record(
            "sched_switch",
            "sock_recv",
            vec![at(1000, What::Task(task(7, "reader")))],
            vec![],
        );
        with_reader(
            r,
            vec![(500, 1, blocks(on)), (900, 1, woken(0, "swapper/1")), (1000, 1, Change::Runs)],
        )
    };
    // It returns from epoll_wait(), and fetches the packet later.
    assert_eq!(shares(&of("poll")), [(ShareKind::Task, "reader".to_owned(), 1000)]);
    assert_eq!(shares(&of("socket")), [(ShareKind::Own, String::new(), 1000)]);
}

fn queued(qdisc: &str, stopped: bool, raised: Option<(u64, Raiser)>) -> Record {
    let mut r = record(
        "net_dev_queue",
        "qdisc_dequeue",
        vec![at(500, What::Task(task(9, "hog")))],
        vec![at(1900, What::Softirq(2, 5))],
    );
    let (qdisc, device) = (qdisc.to_owned(), "eth0".to_owned());
    r.queued = Some(Queued { qdisc, device, stopped, raised });
    r
}

#[test]
fn a_queueing_discipline_differs_from_a_device_and_a_late_cpu() {
    let first = |r: &Record| shares(r)[0].0;
    let timer = Some((1800, Raiser::Timer));
    let shaped = queued("tbf", false, timer);
    // Once its timer had expired it waited for the CPU.
    assert_eq!(
        shares(&shaped),
        [
            (ShareKind::Qdisc, "tbf".to_owned(), 800),
            (ShareKind::Softirq, "NET_TX".to_owned(), 100),
            (ShareKind::Task, "hog".to_owned(), 100),
        ]
    );
    let who = budget(&shaped).shares[0].who.clone().unwrap();
    assert_eq!((who.qdisc.as_deref(), who.device.as_deref()), (Some("tbf"), Some("eth0")));
    // Dequeued by a sender.
    assert_eq!(shares(&queued("fq", false, None)), [(ShareKind::Qdisc, "fq".to_owned(), 1000)]);
    assert_eq!(first(&queued("prio", false, timer)), ShareKind::Qdisc);
    assert_eq!(first(&queued("tbf", true, timer)), ShareKind::DeviceQueue);
    assert_eq!(first(&queued("pfifo_fast", true, None)), ShareKind::DeviceQueue);
    let by_device = Some((1800, Raiser::Device));
    assert_eq!(first(&queued("fq_codel", false, by_device)), ShareKind::DeviceQueue);
    assert_eq!(first(&queued("fq_codel", false, Some((1800, Raiser::Other)))), ShareKind::Task);
}

#[test]
fn tcp_data_waits_for_missing_data_before_it() {
    let mut r = record("tcp_rcv_established", "sk_data_ready", vec![], vec![]);
    r.early = Some(None);
    assert_eq!(shares(&r), [(ShareKind::TcpGap, String::new(), 1000)]);
    // Behind another segment, whose reader comes later.
    let mut r = record(
        "tcp_rcv_established",
        "skb_copy_datagram",
        vec![at(500, What::Task(task(9, "hog")))],
        vec![],
    );
    r.early = Some(Some(1600));
    let r = with_reader(r, vec![(500, 1, Change::Ready { throttled: false })]);
    assert_eq!(
        shares(&r),
        [(ShareKind::TcpGap, String::new(), 600), (ShareKind::Runqueue, "hog".to_owned(), 400)]
    );
}

#[test]
fn a_segment_in_the_backlog_waits_for_the_task_that_has_the_socket() {
    let mut r = record("tcp_v4_rcv", "tcp_rcv_established", vec![], vec![]);
    r.ended_in_task = true;
    assert_eq!(shares(&r), [(ShareKind::SocketLocked, "reader".to_owned(), 1000)]);
    r.ended_in_task = false;
    assert_eq!(shares(&r)[0].0, ShareKind::Own);
}

#[test]
fn a_short_history_leaves_the_rest_unknown() {
    let mut r =
        record("sched_waking", "sched_switch", vec![at(1800, What::Task(task(9, "hog")))], vec![]);
    r.cpu.tasks.cut = true;
    let shares = shares(&r);
    assert_eq!(shares[0], (ShareKind::Unknown, String::new(), 800));
    assert_eq!(shares[1], (ShareKind::Runqueue, "hog".to_owned(), 200));
    assert!(!budget(&r).complete);
}

#[test]
fn an_exhausted_quota_differs_from_other_tasks() {
    let mut r = record(
        "sched_waking",
        "sched_switch",
        vec![at(500, What::Task(task(9, "other"))), at(1100, What::Task(task(0, "swapper/1")))],
        vec![],
    );
    r.throttled = vec![200..1400, 1500..1900];
    assert_eq!(
        shares(&r),
        [(ShareKind::Throttled, "reader".to_owned(), 800), (ShareKind::Idle, String::new(), 200),]
    );
    // It has no information about the time before this packet.
    r.throttled = vec![Range { start: 200, end: 900 }];
    assert_eq!(shares(&r)[0].0, ShareKind::Idle);
}

#[test]
fn a_reader_of_a_throttled_cgroup_is_throttled() {
    let r = with_reader(
        record("sched_waking", "sched_switch", vec![at(500, What::Task(task(0, "idle")))], vec![]),
        vec![(500, 1, Change::Ready { throttled: true }), (1800, 1, Change::Runs)],
    );
    assert_eq!(shares(&r)[0], (ShareKind::Throttled, "reader".to_owned(), 800));
}

#[test]
fn a_migrated_reader_waited_for_another_cpu() {
    let r =
        record("sched_waking", "sched_switch", vec![at(500, What::Task(task(9, "other")))], vec![]);
    let moved = |ns, to| (ns, 3, Change::Moves(to));
    let mut r =
        with_reader(r, vec![(1000, 3, woken(1, "waker")), moved(1700, 1), (2000, 1, Change::Runs)]);
    assert_eq!(
        shares(&r),
        [
            (ShareKind::Migration, "NoneSome(CpuId(3))".to_owned(), 700),
            (ShareKind::Runqueue, "other".to_owned(), 300),
        ]
    );
    let ring = |events| Ring { events, cut: false };
    let there = CpuEvents {
        tasks: ring(vec![
            at(900, What::Task(task(11, "hog"))),
            at(1300, What::Irq(33)),
            at(1350, What::IrqEnd),
            at(1650, What::Task(task(0, "swapper/3"))),
            // What happened after the migration is irrelevant.
            at(1750, What::Task(task(12, "later"))),
        ]),
        softirqs: ring(vec![at(1400, What::Softirq(1, 0)), at(1500, What::SoftirqEnd(0))]),
    };
    r.others.insert(3, there);
    assert_eq!(
        shares(&r),
        [
            (ShareKind::Migration, "hog".to_owned(), 500),
            (ShareKind::Runqueue, "other".to_owned(), 300),
            (ShareKind::Migration, "TIMER".to_owned(), 100),
            (ShareKind::Migration, "NoneSome(CpuId(3))".to_owned(), 50),
            (ShareKind::Migration, "Some(33)Some(CpuId(3))".to_owned(), 50),
        ]
    );
    let moved = budget(&r).shares.into_iter().filter(|s| s.share == ShareKind::Migration);
    assert!(moved.map(|s| s.who.unwrap().cpu).all(|cpu| cpu == Some(CpuId(3))));
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
fn stolen_time_is_not_assigned_to_a_task() {
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
fn remote_memory_explains_microseconds_only() {
    let mut r = record("sched_waking", "sched_switch", vec![], vec![]);
    r.span_ns = 16_000_000;
    // 64 lines and 24 of data, each 110ns farther away.
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
        Just(What::Online),
    ];
    (0..3000u64, what).prop_map(|(ns, what)| at(ns, what))
}

fn any_reader_event() -> impl Strategy<Value = (u64, u32, Change)> {
    let what = prop_oneof![
        Just(Change::Runs),
        any::<bool>().prop_map(|throttled| Change::Ready { throttled }),
        Just(blocks("futex")),
        Just(blocks("send_buffer")),
        (0..4u32).prop_map(Change::Moves),
        Just(woken(5, "waker")),
    ];
    (0..3000u64, 0..4u32, what)
}

proptest! {
    #[test]
    fn any_history_adds_up(
        tasks in prop::collection::vec(any_event(), 0..20),
        softirqs in prop::collection::vec(any_event(), 0..20),
        there in prop::collection::vec(any_event(), 0..20),
        mut reader in prop::collection::vec(any_reader_event(), 0..20),
        known_from in 0..3000u64,
        cut in any::<bool>(),
        from in 0..STAGES.len(),
        to in 0..STAGES.len(),
        throttled in prop::collection::vec(0..3000u64, 2),
        early in prop::option::of(prop::option::of(0..3000u64)),
        raised in prop::option::of(0..3000u64),
    ) {
        reader.sort_by_key(|event| event.0);
        let mut r = record(STAGES[from].name, STAGES[to].name, tasks, softirqs);
        r.cpu.tasks.cut = cut;
        r = with_reader(r, reader);
        r.reader.known_from = known_from;
        r.others.insert(2, CpuEvents { tasks: Ring { events: there, cut }, ..CpuEvents::default() });
        r.throttled = throttled.windows(2).map(|w| w[0]..w[1]).collect();
        r.early = early;
        r.queued = queued("tbf", cut, raised.map(|ns| (ns, Raiser::Timer))).queued;
        shares(&r);
    }
}
