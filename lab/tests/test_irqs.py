"""`nearpath measure irqs` in a guest whose NIC has queues: the matrix agrees with /proc/interrupts over the
same time, follows an interrupt that is moved, and shows where RPS sends packets.

/proc is read in the guest before, during and after the measurement: the result must lie
between the differences.
"""

from contextlib import ExitStack
from typing import Any

from lab import Host
from lab.fixtures import lab, representative
from lab.waiting import ended, start_measuring

from .conversations import Conversation, start_server
from .hosts import IGB, TWO_NODES, VIRTIO
from .steering import FAR_MASK, steer, take_interrupts
from .test_show_queues import SOFTNET, interrupts

# One node serves interrupts and reads; interrupts are moved to the other.
NIC_CPU, READER_CPU = TWO_NODES.cpus_of(0)
MOVED_TO, _ = TWO_NODES.cpus_of(1)
CPUS = range(4)

PORT = 5001
FLOWS = 8
ROUNDS = 60

# Messages, each answered before the next of its flow.
MESSAGES = FLOWS * ROUNDS

# Packets and polls are read sequentially, and another packet may arrive in between.
NEAR = 4

Readings = list[dict[str, str]]


def read(host: Host) -> dict[str, str]:
    """The kernel's current counters."""
    files = ("/proc/interrupts", "/proc/softirqs", "/proc/net/softnet_stat")
    return {file: host.check(["cat", file]) for file in files}


def measured(host: Host, talk: Conversation, between: str = "true") -> tuple[dict[str, Any], Readings]:
    """Measures two halves of a conversation with a command between them, and reads the kernel's counters
    before it, at its start and its end, and after it."""
    readings = [read(host)]
    job = start_measuring(host, "measure", "irqs", "--nic", "nic0")
    readings.append(read(host))
    talk.talk(ROUNDS // 2)
    host.check(between)
    talk.talk(ROUNDS // 2)
    readings.append(read(host))
    document = ended(job)
    readings.append(read(host))
    return document, readings


def bounds(readings: list[list[int]]) -> list[tuple[int, int]]:
    """The minimum and the maximum that each CPU can have counted."""
    before, begin, end, after = readings
    return [(end[cpu] - begin[cpu], after[cpu] - before[cpu]) for cpu in CPUS]


def assert_within(counts: list[int], limits: list[tuple[int, int]], what: object) -> None:
    for cpu, (least, most) in enumerate(limits):
        assert least <= counts[cpu] <= most, (what, cpu, counts, limits)


def assert_kernels(document: dict[str, Any], readings: Readings) -> None:
    """All counts agree with the kernel's counters."""
    tables = [interrupts(reading["/proc/interrupts"]) for reading in readings]
    rows = {str(row["irq"]): row for row in document["queues"] + document["irqs"]}
    for number in (number for number in tables[0] if number.isdigit()):
        counts = rows[number]["per_cpu"] if number in rows else [0 for _ in CPUS]
        assert_within(counts, bounds([table[number][0] for table in tables]), number)
    softirqs = [interrupts(reading["/proc/softirqs"]) for reading in readings]
    for vector, counts in document["softirqs"].items():
        assert_within(counts, bounds([table[vector][0] for table in softirqs]), vector)
    lines = [reading["/proc/net/softnet_stat"].splitlines() for reading in readings]
    for field, column in SOFTNET.items():
        values = [[int(line.split()[column], 16) for line in of_one] for of_one in lines]
        assert_within([cpu[field] for cpu in document["cpus"]], bounds(values), field)


def assert_queues(document: dict[str, Any], source: str, queues: int) -> None:
    """Each queue's polls match its packets, even if the driver does not report the NAPI instances of queues."""
    (nic,) = document["nics"]
    assert (nic["nic"], nic["packets_from"]) == ("nic0", source)
    packets = [queue["rx_packets"] for queue in document["queues"] if queue["direction"] != "tx"]
    assert sum(packets) >= MESSAGES
    assert abs(nic["rx_imbalance"] - max(packets) * len(packets) / sum(packets)) < 1e-6
    busy = [queue for queue in document["queues"] if (queue["rx_packets"] or 0) > NEAR]
    assert len(busy) >= queues, "flows are spread over queues"
    for queue in busy:
        napi = queue["napi"]
        assert napi is not None, (queue, document["napi"])
        assert abs(napi["work"] - queue["rx_packets"]) <= NEAR, queue
        assert napi["polls"] > 0 and napi["work"] <= napi["budget"]
        assert queue["queue"] in {napi["queue"] for napi in document["napi"]}


def assert_only(document: dict[str, Any], there: int) -> None:
    """One CPU serves all interrupts. A moved interrupt may fire once more on its old CPU."""
    for queue in document["queues"]:
        elsewhere = sum(count for cpu, count in enumerate(queue["per_cpu"]) if cpu != there)
        assert elsewhere <= 1, queue
    assert sum(queue["per_cpu"][there] for queue in document["queues"]) > FLOWS


def assert_times(document: dict[str, Any], at_work: set[int]) -> None:
    """CPUs that served interrupts spent time on them, and no more than the measured time."""
    elapsed_ns = document["duration_s"] * 1e9
    for cpu in document["cpus"]:
        assert 0 < cpu["irq_ns"] + cpu["softirq_ns"] < elapsed_ns, cpu
        if cpu["cpu"] in at_work:
            assert cpu["hard_ns"]["device"] > 0 and cpu["soft_ns"]["NET_RX"] > 0, cpu
    assert document["events_lost"] <= 2
    assert document["unknown"] == []


@representative
@lab(topology=TWO_NODES, nics=IGB)
def test_the_matrix_agrees_with_the_kernel(host: Host) -> None:
    take_interrupts(host, NIC_CPU)
    start_server(host, str(READER_CPU), PORT)
    with ExitStack() as stack:
        talk = stack.enter_context(Conversation(host, "tcp", host.machine.address(), PORT, FLOWS))
        talk.talk(1)

        near, readings = measured(host, talk)
        assert_kernels(near, readings)
        assert_queues(near, "driver", queues=2)
        assert_times(near, {NIC_CPU})
        assert_only(near, NIC_CPU)
        assert all(cpu["received_rps"] == 0 for cpu in near["cpus"])

        # Moved in the middle: the first half on one CPU, the second on the other.
        irqs = "$(grep nic0 /proc/interrupts | cut -d : -f 1)"
        move = f"for irq in {irqs}; do echo {MOVED_TO} >/proc/irq/$irq/smp_affinity_list; done"
        moved, readings = measured(host, talk, between=move)
        assert_kernels(moved, readings)
        assert_queues(moved, "driver", queues=2)
        assert_times(moved, {NIC_CPU, MOVED_TO})
        for queue in (queue for queue in moved["queues"] if queue["interrupts"] > NEAR * 2):
            by_cpu = {cpu: count for cpu, count in enumerate(queue["per_cpu"]) if count}
            assert by_cpu.keys() == {NIC_CPU, MOVED_TO}, queue
        there, readings = measured(host, talk)
        assert_kernels(there, readings)
        assert_only(there, MOVED_TO)

        # RPS sends packets back, each with an inter-processor interrupt unless its CPU is already processing.
        take_interrupts(host, NIC_CPU)
        steer(host, FAR_MASK)
        far, readings = measured(host, talk)
        assert_kernels(far, readings)
        far_cpus = set(TWO_NODES.cpus_of(1))
        reported = {cpu["cpu"]: cpu["received_rps"] for cpu in far["cpus"]}
        assert sum(reported[cpu] for cpu in far_cpus) > MESSAGES / 2
        assert all(reported[cpu] == 0 for cpu in reported.keys() - far_cpus)
        backlog = {cpu["cpu"]: cpu["backlog_polls"]["work"] for cpu in far["cpus"]}
        assert sum(backlog[cpu] for cpu in far_cpus) >= MESSAGES


@lab(topology=TWO_NODES, nics=VIRTIO)
def test_queues_with_one_interrupt_per_direction(host: Host) -> None:
    start_server(host, str(READER_CPU), PORT)
    with Conversation(host, "tcp", host.machine.address(), PORT, FLOWS) as talk:
        talk.talk(1)
        document, readings = measured(host, talk)
    assert_kernels(document, readings)
    assert_times(document, set())
    assert {queue["direction"] for queue in document["queues"]} == {"rx", "tx"}
    # The kernel's own statistics by queue need 6.9.
    old = host.machine.kernel in ("5.10", "6.1")
    assert_queues(document, "driver" if old else "netdev", queues=1)
    sent = [queue["tx_packets"] for queue in document["queues"] if queue["direction"] == "tx"]
    assert sum(sent) >= MESSAGES


@lab(topology=TWO_NODES, nics=IGB)
def test_a_cpu_that_goes_offline_keeps_its_counts(host: Host) -> None:
    take_interrupts(host, MOVED_TO)
    start_server(host, str(READER_CPU), PORT)
    state = f"/sys/devices/system/cpu/cpu{MOVED_TO}/online"
    with Conversation(host, "tcp", host.machine.address(), PORT, FLOWS) as talk:
        talk.talk(1)
        job = start_measuring(host, "measure", "irqs", "--nic", "nic0", "--interval", "200ms")
        talk.talk(ROUNDS // 2)
        before = interrupts(read(host)["/proc/interrupts"])
        # The kernel moves its interrupts to other CPUs, and no longer shows its counts.
        host.check(f"echo 0 >{state}")
        talk.talk(ROUNDS // 2)
        document = ended(job, lines=True)
    (gone,) = [cpu for cpu in document["cpus"] if cpu["cpu"] == MOVED_TO]
    assert not gone["online"]
    assert gone["softirq_ns"] > 0
    rows = [queue for queue in document["queues"] if queue["interrupts"] > NEAR]
    assert rows
    for queue in rows:
        elsewhere = sum(count for cpu, count in enumerate(queue["per_cpu"]) if cpu != MOVED_TO)
        assert queue["per_cpu"][MOVED_TO] <= before[str(queue["irq"])][0][MOVED_TO]
        assert queue["per_cpu"][MOVED_TO] > 0 and elsewhere > 0, queue
