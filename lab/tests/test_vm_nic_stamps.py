"""`nearpath measure vm` with a NIC that time stamps: packets into a virtual machine begin at the NIC, and those that
its interrupt moderation made late are named.

The judge is the kernel's: of each packet a packet socket on the NIC gets the NIC's stamp and the kernel's own
(SO_TIMESTAMPING), whose difference is the time at the NIC.
"""

import sys
from collections.abc import Callable
from typing import Any

import pytest

from lab import Host
from lab.fixtures import lab
from lab.vms import MAC, PORT, TinyVm, send, start_vm, start_vm_on_macvtap, wait_until_taken, worker_of
from lab.waiting import ended, start_measuring, wait_until

from .hosts import IGB, TWO_NODES
from .stamping import IPV4, PARAMETERS, STAMPED_TOS, STAMPED_VLAN, VLAN, Watched
from .test_vm import VCPU_CPU, VHOST_CPU
from .test_vm_late import start_hog

# The emulated NIC takes four times as long: 28 ms from one interrupt to the next.
MODERATION_US = 7000
# Packets 15 ms apart: one or two wait for each interrupt.
PACKETS = 400
RATE = 66
# Emulation needs less for nearly all packets.
SLOW_MS = 10


# Datagrams with a VLAN tag, as this machine's kernel has no VLANs. Arguments: how many, how many a second.
TAGGED = f"""
import socket, struct, sys, time
count, rate = int(sys.argv[1]), float(sys.argv[2])
sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
sender.bind(("tap0", 0))
data = bytes(64)
head = bytes.fromhex("{MAC}".replace(":", "") + "020000000001") + struct.pack("!HHH", 0x8100, {STAMPED_VLAN}, 0x0800)
words = [0x4500, 28 + len(data), 0, 0, 0x4011, 0, 0x0A09, 0x00FE, 0x0A09, 0x0032]
total = sum(words)
words[5] = ~(total % 0xFFFF) & 0xFFFF
frame = head + struct.pack("!10H", *words) + struct.pack("!HHHH", 40000, {PORT}, 8 + len(data), 0) + data
start = time.monotonic()
for number in range(count):
    time.sleep(max(0, start + number / rate - time.monotonic()))
    sender.send(frame)
"""


def start_below_vlan(host: Host) -> TinyVm:
    """Starts a virtual machine whose packets come by a VLAN of the NIC."""
    host.check(
        f"ovs-vsctl --if-exists del-port br0 nic0 && ip link add link nic0 name vlan type vlan id {STAMPED_VLAN}"
        " && ip link set nic0 up && ip link set vlan up && ovs-vsctl add-port br0 vlan"
    )
    return start_vm(host, "-c", str(VCPU_CPU))


def start_on_bond(host: Host) -> TinyVm:
    """Starts one whose packets come by a bond with the NIC alone."""
    host.check(
        "ovs-vsctl --if-exists del-port br0 nic0 && ip link add bond type bond mode active-backup miimon 100"
        " && ip link set nic0 down && ip link set nic0 master bond && ip link set bond up"
        " && ovs-vsctl add-port br0 bond"
    )
    wait_until(lambda: host.read("/sys/class/net/bond/operstate") == b"up\n", "the bond has its port")
    return start_vm(host, "-c", str(VCPU_CPU))


WAYS: dict[str, Callable[[Host], TinyVm]] = {
    "tap": lambda host: start_vm(host, "-c", str(VCPU_CPU)),
    "macvtap": lambda host: start_vm_on_macvtap(host, "nic0", "-c", str(VCPU_CPU)),
    "bond": start_on_bond,
    "vlan": start_below_vlan,
}


def measured(
    host: Host, moderation_us: int, way: str = "tap"
) -> tuple[dict[str, Any], dict[str, Any], list[dict[str, int]]]:
    """Packets with a stamp through the NIC with this moderation: the document, its queue, and the judge's."""
    vm = WAYS[way](host)
    host.check(f"taskset -p -c {VHOST_CPU} {worker_of(host, vm)}")
    host.check(f"ethtool -C nic0 rx-usecs {moderation_us}")
    watched = Watched(host, what=VLAN if way == "vlan" else IPV4)
    measuring = start_measuring(host, "measure", "vm", "--slow", f"{SLOW_MS}ms")
    if way == "vlan":
        sent = host.peer.run([sys.executable, "-c", TAGGED, str(PACKETS), str(RATE)])
        assert sent.status == 0, sent
    else:
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
    assert_moderation_is_named(host, "tap")


@pytest.mark.parametrize("way", ["macvtap", "bond", "vlan"])
@lab(kernels=("6.12",), topology=TWO_NODES, nics=IGB, parameters=PARAMETERS)
def test_moderation_is_named_below_other_devices(host: Host, way: str) -> None:
    assert_moderation_is_named(host, way)


def assert_moderation_is_named(host: Host, way: str) -> None:
    """Most packets are late at the NIC, which takes as long as the judge says."""
    document, queue, judged = measured(host, MODERATION_US, way)
    stamps = document["nic_stamps"]
    (device,) = stamps["devices"]
    at_nic = span(queue, "nic_to_interrupt")
    print(at_nic["count"], at_nic["p50_ns"], at_nic["max_ns"])
    # Of two packets of one interrupt the NIC stamps the first.
    assert stamps["used"] >= 0.4 * PACKETS, stamps
    # Of a few NET_RX goes on without their interrupt.
    assert abs(at_nic["count"] - len(judged)) <= max(2, 0.03 * len(judged)), (at_nic["count"], len(judged))
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
