"""`nearpath show`: queues, their packet steering, and interrupts, against sysfs and procfs.

Interrupts and softnet counters increase while they are read: the output must lie between
the guest's own values before and after.
"""

import re
from typing import Any

from lab import Machine

from .hosts import on_every_host
from .show import Reading, bits, cpus

# Drivers' names for the interrupt of a queue, for one direction or for both.
IRQ_NAMES = {
    "igb": {"rx": "{nic}-(rx|TxRx)-{queue}", "tx": "{nic}-(tx|TxRx)-{queue}"},
    "virtio_net": {"rx": r"virtio\d+-input\.{queue}", "tx": r"virtio\d+-output\.{queue}"},
    "vmxnet3": {"rx": "{nic}-rxtx-{queue}", "tx": "{nic}-rxtx-{queue}"},
    "e1000e": {"rx": "{nic}-rx-{queue}", "tx": "{nic}-tx-{queue}"},
}
# The columns of /proc/net/softnet_stat that all tested kernels have.
SOFTNET = {"processed": 0, "dropped": 1, "time_squeeze": 2, "received_rps": 9, "flow_limit": 10}
# The current number of queued packets: none on a quiet host.
SOFTNET_WAITING = {"backlog": 11, "input_queue": 13, "process_queue": 14}


def interrupts(text: str) -> dict[str, tuple[list[int], str]]:
    """The rows of /proc/interrupts: their counts, and the rest of the line."""
    cpus_there = len(text.splitlines()[0].split())
    rows = re.findall(rf"^ *(\w+):((?: +\d+){{1,{cpus_there}}}) *(.*)$", text, re.MULTILINE)
    return {name: ([int(count) for count in counts.split()], rest) for name, counts, rest in rows}


def cpus_of_columns(text: str) -> list[str]:
    """The CPUs of a table's columns (an offline one has none)."""
    return [cpu.removeprefix("CPU") for cpu in text.splitlines()[0].split()]


def effective(text: str) -> dict[int, str]:
    """The targets of interrupts, by their numbers."""
    found = re.findall(r"^/proc/irq/(\d+)/effective_affinity_list:(.*)$", text, re.MULTILINE)
    return {int(irq): cpulist for irq, cpulist in found}


def assert_between(low: list[int], counts: dict[str, int], high: list[int], columns: list[str]) -> None:
    """Asserts that counts by CPU (zeros are omitted) lie between two readings."""
    assert counts.keys() <= set(columns)
    for cpu, first, last in zip(columns, low, high, strict=True):
        assert first <= counts.get(cpu, 0) <= last


@on_every_host
def test_queues_of_nics(reading: Reading) -> None:
    tool = reading.tool("ls -d /sys/class/net/*/queues/*").split()
    shown = {
        f"/sys/class/net/{name}/queues/{way}-{queue['queue']}"
        for name, nic in reading.nics.items()
        for way in ("rx", "tx")
        for queue in nic[f"{way}_queues"]
    }
    assert shown == set(tool)
    for nic in reading.shown["nics"]:
        for way in ("rx", "tx"):
            assert [queue["queue"] for queue in nic[f"{way}_queues"]] == list(range(len(nic[f"{way}_queues"])))


@on_every_host
def test_steering_files(reading: Reading) -> None:
    for name, nic in reading.nics.items():
        for queue in nic["rx_queues"]:
            folder = f"/sys/class/net/{name}/queues/rx-{queue['queue']}"
            assert cpus(queue["rps_cpus"]) == bits(reading.files[f"{folder}/rps_cpus"])
            assert queue["rps_flow_cnt"] == int(reading.files[f"{folder}/rps_flow_cnt"])
        for queue in nic["tx_queues"]:
            folder = f"/sys/class/net/{name}/queues/tx-{queue['queue']}"
            # For a NIC with one queue the kernel refuses to show the file.
            mask = reading.files.get(f"{folder}/xps_cpus")
            assert (mask is None) == (len(nic["tx_queues"]) == 1)
            assert queue["xps_cpus"] is None if mask is None else cpus(queue["xps_cpus"]) == bits(mask)
            assert set(queue["xps_rxqs"]) == bits(reading.files[f"{folder}/xps_rxqs"])


@on_every_host
def test_the_interrupt_of_each_queue(machine: Machine, reading: Reading) -> None:
    table = interrupts(reading.tool("cat /proc/interrupts", 1))
    files = reading.answers["ls -d /sys/class/net/*/device/{,../}msi_irqs/*"][0].text
    for index, _ in enumerate(machine.nics):
        nic = reading.nics[f"nic{index}"]
        used = []
        for way in ("rx", "tx"):
            for queue in nic[f"{way}_queues"]:
                name = IRQ_NAMES[nic["driver"]][way].format(nic=nic["name"], queue=queue["queue"])
                assert re.search(rf"\b{name}$", table[str(queue["irq"])][1]), (nic["name"], way, queue)
                assert re.search(rf"/{nic['name']}/.*/msi_irqs/{queue['irq']}$", files, re.MULTILINE)
                used.append(queue["irq"])
        assert len(set(used)) == len(used) // (2 if len(set(used)) < len(used) else 1)
        # Which drivers register their interrupts depends on the kernel; the result is unambiguous either way.
        napi = {queue["napi_id"] for queue in nic["rx_queues"] + nic["tx_queues"]}
        assert ((f"nic {nic['name']}", "napi_id") in reading.unknown) == (None in napi)
        assert 0 not in napi
    for name, nic in reading.nics.items():
        if not name.startswith("nic"):
            assert {queue["irq"] for queue in nic["rx_queues"] + nic["tx_queues"]} == {None}


@on_every_host
def test_affinity_of_queues(reading: Reading) -> None:
    before, after = reading.between(effective, "grep -sH . /proc/irq/*/effective_affinity_list")
    node_of = {cpu["cpu"]: cpu["node"] for cpu in reading.shown["cpus"]}
    assert {queue["nic"] for queue in reading.shown["queues"]} == reading.nics.keys()
    for queue in reading.shown["queues"]:
        nic = reading.nics[queue["nic"]]
        (own,) = (own for own in nic[f"{queue['direction']}_queues"] if own["queue"] == queue["queue"])
        assert queue["nic_node"] == nic["numa_node"]
        assert own.items() <= queue.items()
        steering = ("rps_cpus", "rps_flow_cnt", "xps_cpus", "xps_rxqs")
        assert {field: queue[field] for field in steering} == dict.fromkeys(steering) | {
            field: own[field] for field in steering if field in own
        }
        if queue["irq"] is None:
            assert (queue["affinity"], queue["effective_affinity"], queue["irq_nodes"]) == (None, None, [])
            continue
        assert queue["affinity"] == reading.files[f"/proc/irq/{queue['irq']}/smp_affinity_list"]
        # An interrupt moves to its new CPU when it next fires.
        assert queue["effective_affinity"] in (before[queue["irq"]], after[queue["irq"]])
        assert set(queue["irq_nodes"]) == {node_of[cpu] for cpu in cpus(queue["effective_affinity"])}


@on_every_host
def test_interrupts(reading: Reading) -> None:
    before, after = reading.between(interrupts, "cat /proc/interrupts")
    targets = reading.between(effective, "grep -sH . /proc/irq/*/effective_affinity_list")
    columns = cpus_of_columns(reading.tool("cat /proc/interrupts"))
    shown = {str(irq["irq"]): irq for irq in reading.shown["irqs"]}
    shown |= {irq["name"]: irq for irq in reading.shown["arch_irqs"]}
    assert shown.keys() == before.keys()
    for number, irq in shown.items():
        (low, rest), (high, _) = before[number], after[number]
        if number.isdigit():
            assert rest.split() == f"{irq['chip']} {irq['name']}".split()
            assert irq["affinity"] == reading.files[f"/proc/irq/{number}/smp_affinity_list"]
            assert irq["effective_affinity"] in {reported.get(int(number), "") for reported in targets}
            node = reading.files[f"/proc/irq/{number}/node"]
            assert irq["node"] == (None if node == "-1" else int(node))
            assert ("node" in reasons_of(reading, int(number))) == (node == "-1")
        else:
            assert irq["description"] == (rest or None)
        if len(low) == len(columns):
            assert_between(low, irq["counts"], high, columns)
            assert irq.get("total") is None
        else:
            # The last rows (ERR, MIS) have one number for the whole host.
            assert low[0] <= irq["total"] <= high[0]


def reasons_of(reading: Reading, irq: int) -> set[str]:
    """The facts of an interrupt that are unknown with a reason."""
    subjects = ((subject.split(), fact) for subject, fact in reading.unknown if subject.startswith("irq"))
    return {fact for (_, numbers), fact in subjects if irq in cpus(numbers)}


@on_every_host
def test_softirqs(reading: Reading) -> None:
    before, after = reading.between(interrupts, "cat /proc/softirqs")
    columns = cpus_of_columns(reading.tool("cat /proc/softirqs"))
    assert [row["vector"] for row in reading.shown["softirqs"]] == list(before)
    for row in reading.shown["softirqs"]:
        assert_between(before[row["vector"]][0], row["counts"], after[row["vector"]][0], columns)


@on_every_host
def test_softnet(reading: Reading) -> None:
    def parse(text: str) -> dict[int, list[int]]:
        rows = [[int(column, 16) for column in line.split()] for line in text.splitlines()]
        # Column 13 is the row's CPU: offline CPUs have no row.
        return {row[12]: row for row in rows}

    before, after = reading.between(parse, "cat /proc/net/softnet_stat")
    shown: dict[int, dict[str, Any]] = {row["cpu"]: row for row in reading.shown["softnet"]}
    assert shown.keys() == before.keys() == cpus(reading.shown["online"])
    for cpu, row in shown.items():
        for field, column in SOFTNET.items():
            assert before[cpu][column] <= row[field] <= after[cpu][column]
        for field, column in SOFTNET_WAITING.items():
            # Linux 6.1 lacks the last one.
            known = column < len(before[cpu])
            assert row[field] in ((before[cpu][column], after[cpu][column]) if known else (None,))
    assert sum(row["processed"] for row in shown.values()) > 0


@on_every_host
def test_the_text_has_each_queue(readings: dict[str, Reading]) -> None:
    reading = readings["changed"]
    heading, *rows = reading.tool("nearpath show queues").split("\n\n")[0].splitlines()
    columns = re.split("  +", heading)
    lines = [dict(zip(columns, re.split("  +", row.strip()), strict=False)) for row in rows]
    reported = {
        (line["NIC"], way, queue) for line in lines for way in line["DIR"].split("+") for queue in cpus(line["QUEUE"])
    }
    assert reported == {(queue["nic"], queue["direction"], queue["queue"]) for queue in reading.shown["queues"]}
