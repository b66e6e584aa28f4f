"""The judge of fault scenes, tested on hand-written traces; and the covering array of the scenes."""

import struct

from lab.faults.covering import all_pairs, covering_array, pairs
from lab.faults.judge import Actors, Judge, Span, Verdict
from lab.faults.scenes import DIMENSIONS, Scene, allowed, array
from lab.faults.score import cause_said
from lab.faults.trace import Event, Trace, decode_page

READER, HOG, OTHER_READER = 10, 20, 11
RECVFROM, FUTEX = 45, 202
SLEEPING, STOPPED, PREEMPTED = 1, 4, 0x100
TIMER_FUNCTION, TIMER = 0xF00, 0x7


def switch(at: int, before: int, state: int, after: int) -> Event:
    names = {0: "swapper", READER: "reader", HOG: "hog", OTHER_READER: "reader"}
    return Event(at, "sched_switch", before, (names[before], before, state, names[after], after))


def waking(at: int, tid: int, current: int, cpu: int = 1) -> Event:
    return Event(at, "sched_waking", current, (tid, cpu))


def enter(at: int, tid: int, call: int) -> Event:
    return Event(at, "sys_enter", tid, (call, (3, 0, 0, 0, 0, 0)))


def leave(at: int, tid: int, call: int) -> Event:
    return Event(at, "sys_exit", tid, (call, 64))


def softirq(at: int, name: str, current: int, vector: int = 3) -> Event:
    return Event(at, f"softirq_{name}", current, (vector,))


def judge(cpu_1: list[Event], cpu_0: list[Event] | None = None, **actors: object) -> Judge:
    trace = Trace({1: cpu_1, 0: cpu_0 or [switch(0, 0, 0, 0)]})
    known = Actors(**{"readers": [READER], "others": [], "port": 9000, **actors})
    return Judge(trace, known, {TIMER_FUNCTION: "sched_cfs_period_timer"}, filter_reason=5)


def decide(judge: Judge, begin: int, end: int, to: str = "sock_recv") -> Verdict:
    return judge.decide(Span(begin, end, 1, to, received=True))


# The reader runs, blocks in recv on its socket, and the hog has the CPU from 1 ms on.
BLOCKED = [
    switch(0, 0, 0, READER),
    enter(100_000, READER, RECVFROM),
    switch(1_000_000, READER, SLEEPING, HOG),
]


def test_a_reader_woken_by_an_earlier_packet_waits_for_the_hog() -> None:
    events = [
        *BLOCKED,
        softirq(1_990_000, "entry", HOG),
        waking(2_000_000, READER, HOG),
        softirq(2_010_000, "exit", HOG),
        switch(9_000_000, HOG, PREEMPTED, READER),
        leave(9_010_000, READER, RECVFROM),
        enter(9_020_000, READER, RECVFROM),
        leave(9_030_000, READER, RECVFROM),
        switch(9_040_000, READER, SLEEPING, 0),
    ]
    verdict = decide(judge(events), 3_000_000, 9_025_000)
    assert verdict.excluded is None
    assert verdict.largest == {"runqueue:hog"}
    assert verdict.causes["runqueue:hog"] == 6_000_000
    assert sum(verdict.causes.values()) == 6_025_000


def test_a_busy_reader_is_its_own_cause() -> None:
    events = [
        switch(0, 0, 0, READER),
        enter(100_000, READER, RECVFROM),
        leave(200_000, READER, RECVFROM),
        enter(5_000_000, READER, RECVFROM),
        leave(5_100_000, READER, RECVFROM),
        switch(6_000_000, READER, SLEEPING, 0),
    ]
    assert decide(judge(events), 1_000_000, 5_050_000).first == "self"


def test_a_reader_blocked_elsewhere_has_that_cause() -> None:
    for state, call, on in ((SLEEPING, FUTEX, "futex"), (STOPPED, FUTEX, "stopped"), (STOPPED, RECVFROM, "stopped")):
        events = [
            switch(0, 0, 0, READER),
            enter(100_000, READER, call),
            switch(200_000, READER, state, 0),
            waking(5_000_000, READER, 0),
            switch(5_010_000, 0, 0, READER),
            leave(5_020_000, READER, call),
            enter(5_030_000, READER, RECVFROM),
            leave(5_040_000, READER, RECVFROM),
            switch(6_000_000, READER, SLEEPING, 0),
        ]
        assert decide(judge(events), 1_000_000, 5_035_000).first == f"asleep:{on}"


def test_a_page_fault_blocks_outside_a_system_call() -> None:
    events = [
        switch(0, 0, 0, READER),
        enter(50_000, READER, RECVFROM),
        leave(60_000, READER, RECVFROM),
        switch(200_000, READER, 2, 0),
        waking(5_000_000, READER, 0),
        switch(5_010_000, 0, 0, READER),
        enter(5_030_000, READER, RECVFROM),
        leave(5_040_000, READER, RECVFROM),
        switch(6_000_000, READER, SLEEPING, 0),
    ]
    assert decide(judge(events), 1_000_000, 5_035_000).first == "asleep:fault"


def test_a_reader_moved_to_another_cpu_waited_for_the_first() -> None:
    cpu_0 = [switch(0, 0, 0, HOG), switch(9_000_000, HOG, SLEEPING, 0)]
    cpu_1 = [
        switch(0, 0, 0, READER),
        enter(100_000, READER, RECVFROM),
        switch(1_000_000, READER, SLEEPING, 0),
        waking(2_000_000, READER, 0, cpu=0),
        Event(6_000_000, "sched_migrate_task", 0, (READER, 0, 1)),
        switch(6_010_000, 0, 0, READER),
        leave(6_020_000, READER, RECVFROM),
        switch(7_000_000, READER, SLEEPING, 0),
    ]
    assert decide(judge(cpu_1, cpu_0), 2_000_000, 6_015_000).first == "migration:hog"


def test_another_reader_of_the_socket_is_waited_for() -> None:
    events = [
        switch(0, 0, 0, READER),
        enter(100_000, READER, RECVFROM),
        switch(200_000, READER, SLEEPING, OTHER_READER),
        enter(300_000, OTHER_READER, RECVFROM),
        switch(400_000, OTHER_READER, SLEEPING, HOG),
        # A packet wakes one reader, a later packet the other, which reads the first packet.
        waking(1_000_000, OTHER_READER, HOG),
        waking(7_000_000, READER, HOG),
        switch(8_000_000, HOG, PREEMPTED, READER),
        leave(8_010_000, READER, RECVFROM),
        switch(9_000_000, READER, SLEEPING, OTHER_READER),
    ]
    verdict = decide(judge(events, readers=[READER, OTHER_READER]), 1_000_000, 8_005_000)
    assert verdict.first == "runqueue:hog"


def test_a_softirq_waits_for_what_runs_on_its_cpu() -> None:
    events = [
        switch(0, 0, 0, HOG),
        Event(1_000_000, "irq_handler_entry", HOG, (36,)),
        Event(4_000_000, "irq_handler_exit", HOG, (36,)),
        softirq(4_010_000, "entry", HOG),
        softirq(4_500_000, "exit", HOG),
        switch(5_000_000, HOG, SLEEPING, 0),
    ]
    verdict = decide(judge(events), 1_100_000, 4_020_000, to="netif_receive_skb")
    assert verdict.causes == {"irq:36": 2_900_000, "task:hog": 10_000, "net_rx": 10_000}


def test_a_quota_ends_with_the_timer_of_its_period() -> None:
    period = 37_000_000
    events = [switch(0, 0, 0, HOG)]
    for start in (0, period, 2 * period):
        events += [
            switch(start + 15_000_000, HOG, PREEMPTED, 0),
            waking(start + 16_000_000, READER, 0),
            Event(start + period, "hrtimer_expire_entry", 0, (TIMER, TIMER_FUNCTION)),
            switch(start + period + 10_000, 0, 0, READER),
            enter(start + period + 20_000, READER, RECVFROM),
            switch(start + period + 30_000, READER, SLEEPING, HOG),
        ]
    verdict = decide(
        judge(events, limited=[READER, HOG], period_ns=period, quota_ns=15_000_000), 60_000_000, 74_015_000
    )
    assert verdict.first == "throttled"


def test_only_a_quota_keeps_a_thread_off_an_idle_cpu() -> None:
    events = [
        switch(0, 0, 0, READER),
        switch(1_000_000, READER, PREEMPTED, 0),
        switch(9_000_000, 0, 0, READER),
        enter(9_010_000, READER, RECVFROM),
        switch(9_030_000, READER, SLEEPING, HOG),
    ]
    limited = decide(judge(events, limited=[READER], period_ns=1 << 40, quota_ns=1 << 39), 2_000_000, 9_020_000)
    assert limited.first == "throttled"
    assert decide(judge(events), 2_000_000, 9_020_000).first == "idle"


def test_a_gap_in_a_connection_is_no_cpu_cause() -> None:
    events = [
        *BLOCKED[:2],
        Event(150_000, "kfree_skb", READER, (0xABC, 5)),
        switch(1_000_000, READER, SLEEPING, 0),
        Event(5_000_000, "tcp_retransmit_skb", 0, (9000, 41000)),
        waking(5_010_000, READER, 0),
        switch(5_020_000, 0, 0, READER),
        leave(5_030_000, READER, RECVFROM),
        switch(6_000_000, READER, SLEEPING, 0),
    ]
    assert decide(judge(events, tcp=True), 1_100_000, 5_025_000).first == "tcp_gap"
    # Packets from before the loss do not wait for it.
    assert decide(judge(events, tcp=True), 120_000, 5_025_000).first != "tcp_gap"


def test_a_switch_that_was_not_traced_is_unknown() -> None:
    events = [
        switch(0, 0, 0, READER),
        enter(100_000, READER, RECVFROM),
        switch(1_000_000, READER, SLEEPING, 0),
        # The hog is current without a recorded switch.
        waking(8_000_000, READER, HOG),
        switch(8_500_000, HOG, PREEMPTED, READER),
        leave(8_600_000, READER, RECVFROM),
        switch(9_000_000, READER, SLEEPING, 0),
    ]
    verdict = judge(events).decide(Span(2_000_000, 7_000_000, 1, "netif_receive_skb", received=True))
    assert verdict.excluded is not None
    assert decide(judge(events), 8_050_000, 8_550_000).first == "runqueue:hog"


def test_two_equally_large_causes_are_both_correct() -> None:
    events = [
        *BLOCKED,
        waking(2_000_000, READER, HOG),
        Event(2_000_001, "irq_handler_entry", HOG, (36,)),
        Event(4_100_000, "irq_handler_exit", HOG, (36,)),
        switch(6_000_000, HOG, PREEMPTED, READER),
        leave(6_010_000, READER, RECVFROM),
        switch(7_000_000, READER, SLEEPING, 0),
    ]
    assert decide(judge(events), 2_000_000, 6_005_000).largest == {"runqueue:hog", "irq:36"}


def test_lost_events_exclude_a_packet() -> None:
    judging = judge(BLOCKED)
    judging.trace.holes[0] = [(2_000_000, 2_500_000)]
    assert decide(judging, 1_500_000, 2_100_000).excluded == "events of the trace were lost"
    assert decide(judging, 200_000, 300_000).excluded is None


def outlier(*shares: tuple[str, int, dict]) -> dict:
    return {"budget": [{"share": share, "ns": ns, "who": who or None} for share, ns, who in shares]}


def test_the_reported_cause_is_the_largest_share_and_no_bound() -> None:
    actors = Actors([READER], [], 9000)
    said = outlier(
        ("remote_memory_bound", 900, {}),
        ("irq", 300, {"vector": "local_timer"}),
        ("runqueue", 200, {"comm": "hog", "pid": 20}),
        ("runqueue", 200, {"comm": "hog", "pid": 21}),
    )
    assert cause_said(said, True, actors) == "runqueue:hog"
    assert cause_said(outlier(("task", 5, {"comm": "reader", "pid": READER})), True, actors) == "self"
    assert cause_said(outlier(("task", 5, {"comm": "hog", "pid": HOG})), False, actors) == "task:hog"
    assert cause_said(outlier(("asleep", 5, {"comm": "reader"})), True, actors) == "asleep:None"
    assert cause_said(outlier(("asleep", 5, {"on": "futex"})), True, actors) == "asleep:futex"


def test_every_possible_pair_occurs() -> None:
    rows = [{"reader": s.reader, "traffic": s.traffic, "fault": s.fault} for s in array()]
    assert all(allowed(row) for row in rows)
    covered = set().union(*(pairs(row) for row in rows))
    assert covered == all_pairs(DIMENSIONS, allowed)
    assert (("traffic", "single"), ("fault", "loss")) not in covered
    # Fewer rows cannot contain the pairs of the two longest dimensions.
    assert len(DIMENSIONS["reader"]) * len(DIMENSIONS["fault"]) <= len(rows) <= 150
    assert array() == array()


def test_an_array_is_smaller_than_all_combinations() -> None:
    dimensions = {name: ["1", "2", "3"] for name in "abcd"}
    rows = covering_array(dimensions, lambda _: True)
    assert 9 <= len(rows) <= 15


def test_scenes_have_names() -> None:
    for scene in array():
        assert Scene.named(scene.name) == scene


def test_a_ring_buffer_page_is_decoded() -> None:
    def header(kind: int, delta: int) -> bytes:
        return struct.pack("=I", delta << 5 | kind)

    data = b"".join(
        [
            header(2, 5) + b"12345678",  # eight bytes
            header(30, 3) + struct.pack("=I", 1),  # 2^27 ns more, and 3
            header(0, 1) + struct.pack("=I", 4 + 6) + b"abcdef\0\0",  # an explicit length, rounded up
            header(29, 7) + struct.pack("=I", 8) + b"\0" * 4,  # discarded
            header(31, 1000) + struct.pack("=I", 2),  # the absolute time
            header(1, 2) + b"wxyz",
            header(29, 0),  # the rest is empty
        ]
    )
    page = struct.pack("=QQ", 100, len(data)) + data + b"\xff" * 64
    found = [(at, page[offset : offset + 4]) for at, offset in decode_page(page)]
    second = 105 + 3 + (1 << 27) + 1
    assert found == [(105, b"1234"), (second, b"abcd"), (1000 + (2 << 27) + 2, b"wxyz")]
