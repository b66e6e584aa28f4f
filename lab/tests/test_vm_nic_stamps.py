"""`nearpath measure vm` with a NIC that time stamps: packets into a virtual machine begin at the NIC, and those that
its interrupt moderation made late are named.

The judge is the kernel's: of each packet a packet socket on the NIC gets the NIC's stamp and the kernel's own
(SO_TIMESTAMPING), whose difference is the time at the NIC.
"""

from typing import Any

import pytest

from lab import Host
from lab.fixtures import lab
from lab.vms import send, start_vm, wait_until_taken, worker_of
from lab.waiting import ended, start_measuring

from .hosts import IGB, TWO_NODES
from .stamping import PARAMETERS, STAMPED_TOS, Watched
from .test_vm import VCPU_CPU, VHOST_CPU
from .test_vm_late import start_hog

# The emulated NIC takes four times as long: 28 ms from one interrupt to the next.
MODERATION_US = 7000
# Packets 15 ms apart: one or two wait for each interrupt.
PACKETS = 400
RATE = 66
# Emulation needs less for nearly all packets.
SLOW_MS = 10


def measured(host: Host, moderation_us: int) -> tuple[dict[str, Any], dict[str, Any], list[dict[str, int]]]:
    """Packets with a stamp through the NIC with this moderation: the document, its queue, and the judge's."""
    vm = start_vm(host, "-c", str(VCPU_CPU))
    host.check(f"taskset -p -c {VHOST_CPU} {worker_of(host, vm)}")
    host.check(f"ethtool -C nic0 rx-usecs {moderation_us}")
    watched = Watched(host)
    measuring = start_measuring(host, "measure", "vm", "--slow", f"{SLOW_MS}ms")
    send(host, PACKETS, RATE, tos=STAMPED_TOS)
    wait_until_taken(host)
    document = ended(measuring)
    judged = watched.end()
    vm.end()
    (one,) = document["vms"]
    (queue,) = one["queues"]
    print(document["nic_stamps"], queue["late"], len(judged))
    return document, queue, judged


def span(queue: dict[str, Any], kind: str) -> dict[str, Any]:
    """The times of a span."""
    (found,) = [span for span in queue["spans"] if span["span"] == kind]
    return dict(found)


@lab(kernels=("6.1", "6.12", "7.2"), topology=TWO_NODES, nics=IGB, parameters=PARAMETERS)
def test_moderation_is_named(host: Host) -> None:
    document, queue, judged = measured(host, MODERATION_US)
    stamps = document["nic_stamps"]
    (device,) = stamps["devices"]
    at_nic = span(queue, "nic_to_interrupt")
    print(at_nic["count"], at_nic["p50_ns"], at_nic["max_ns"])
    # Of two packets of one interrupt the NIC stamps the first.
    assert stamps["used"] >= 0.4 * PACKETS and abs(at_nic["count"] - len(judged)) <= 2, (at_nic["count"], len(judged))
    times = sorted(packet["at_nic_ns"] for packet in judged)
    median = times[len(times) // 2]
    # The judge's ends in the stack, after the interrupt and NET_RX.
    before = span(queue, "interrupt_to_handler")["p50_ns"]
    print(median, before, device)
    assert abs(at_nic["p50_ns"] + before - median) <= max(0.1 * median, 300_000)
    late = {part["part"]: part["packets"] for part in queue["late"]["parts"]}
    by_judge = sum(ns >= SLOW_MS * 1_000_000 for ns in times)
    assert by_judge >= 100, times
    # A few are late by their whole way, with less than the limit at the NIC.
    assert 0.95 * by_judge <= late["nic"] <= 1.05 * by_judge + 5, (late, by_judge)


@lab(kernels=("6.12",), topology=TWO_NODES, nics=IGB, parameters=PARAMETERS)
def test_without_moderation_it_is_not(host: Host) -> None:
    _, queue, judged = measured(host, 0)
    late = {part["part"]: part["packets"] for part in queue["late"]["parts"]}
    assert late.get("nic", 0) <= 0.02 * len(judged), late


# Packets are not taken from the NIC, or not passed on, by the NET_RX of its interrupt.
RPS = "for queue in /sys/class/net/nic0/queues/rx-*; do echo 8 >$queue/rps_cpus; done"
THREADED = "echo 1 >/sys/class/net/nic0/threaded && for pid in $(pgrep napi/nic0); do taskset -p -c 3 $pid; done"


@pytest.mark.parametrize("setting", [RPS, THREADED], ids=["rps", "threaded"])
@lab(kernels=("6.12",), topology=TWO_NODES, nics=IGB, parameters=PARAMETERS)
def test_what_passes_after_the_interrupt_is_not_blamed_on_the_nic(host: Host, setting: str) -> None:
    """A task takes CPU 3, where RPS moves packets to and the thread of NAPI runs, for longer than moderation would."""
    host.check(setting)
    hog = start_hog(host, 3)
    _, queue, judged = measured(host, 0)
    host.check(["kill", str(hog.pid)])
    late = {part["part"]: part["packets"] for part in queue["late"]["parts"]}
    at_nic = [span["count"] for span in queue["spans"] if span["span"] == "nic_to_interrupt"]
    print(len(judged), max(packet["at_nic_ns"] for packet in judged), at_nic, late)
    assert len(judged) >= 20 and late.get("nic", 0) <= 0.02 * len(judged), late
    assert sum(at_nic) <= 0.1 * len(judged), at_nic
