"""`nearpath measure stages` of packets that reach the tap of a virtual machine: their way into the guest follows.

The judge is the guest, which notes each packet. Others, which the filter does not match, take the same way meanwhile.
"""

import json
from typing import Any

from lab import Host
from lab.fixtures import lab, representative
from lab.vms import ADDRESS, PORT, TinyVm, send, start_vm, start_vm_on_macvtap, wait_until_taken
from lab.waiting import ended, start_measuring

from .hosts import IGB, TWO_NODES
from .test_vm import WAYS

PACKETS = 60
# Datagrams to another port of the guest.
OTHERS = f"""
import socket, time
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(30):
    sender.sendto(b"others" + bytes(58), ("{ADDRESS}", {PORT + 1}))
    time.sleep(0.02)
"""


def measured(host: Host, *options: str) -> dict[str, Any]:
    """Of datagrams to the guest, beside others."""
    words = ["--proto", "udp", "--dport", str(PORT), *options]
    measuring = start_measuring(host, "measure", "stages", *words)
    send(host, PACKETS, 50)
    assert host.peer.run(["python3", "-c", OTHERS]).status == 0
    wait_until_taken(host)
    return ended(measuring)


def assert_followed(document: dict[str, Any], vm: TinyVm) -> None:
    """All packets that the filter matches went into the guest, and no others did so as far as nearpath says."""
    guests = document["into_guests"]
    (one,) = guests["vms"]
    (queue,) = one["queues"]
    spans = {span["span"]: span["count"] for span in queue["spans"]}
    assert one["pid"] == vm.pid
    assert guests["started"] == queue["taken"] == spans["whole"] == PACKETS, guests
    assert sum(spans.get(way, 0) for way in WAYS) == spans["vhost_to_kvm"] == spans["kvm_to_guest"] == PACKETS
    assert guests["not_available"] == []
    guest = vm.end()
    assert len(guest.numbered()) == PACKETS
    others = [note for note in guest.notes if note.payload.startswith(b"others")]
    assert len(others) == 30, "and the guest has had others"


@lab(tiers=(representative,), kernels=("6.12",), topology=TWO_NODES, nics=IGB)
@lab(kernels=("6.1", "7.2"), topology=TWO_NODES, nics=IGB)
def test_packets_are_followed_from_the_tap_into_the_guest(host: Host) -> None:
    vm = start_vm(host)
    listed = json.loads(host.check("nearpath measure stages --list-stages --json"))["into_guests"]
    reasons = {step["stage"]: step["reason"] for step in listed}
    assert not any(reasons[step] for step in ("tun_net_xmit", "handle_rx", "apic_accept_irq", "vcpu_run")), listed

    # Received alone: the path of the stages ends where Open vSwitch gives the packet to the tap.
    document = measured(host, "--direction", "rx")
    assert [path["kind"] for path in document["paths"]] == ["forward"]
    assert document["paths"][0]["count"] == document["packets"]["started"] == PACKETS
    assert_followed(document, vm)


@lab(kernels=("6.1", "6.12", "7.2"), topology=TWO_NODES, nics=IGB)
def test_packets_sent_to_a_tap_are_followed(host: Host) -> None:
    """Both directions: the tap's transmission is a path of the stages, too."""
    vm = start_vm(host)
    short = "nearpath measure stages --json --for 100ms"
    assert "into_guests" in json.loads(host.check(short))
    assert "into_guests" not in json.loads(host.check(f"{short} --no-guests"))
    document = measured(host)
    assert {path["kind"] for path in document["paths"]} == {"forward", "kernel_transmit"}
    assert_followed(document, vm)


@lab(kernels=("6.12",), topology=TWO_NODES, nics=IGB)
def test_packets_are_followed_by_a_macvtap(host: Host) -> None:
    """Its packets are received, not forwarded."""
    vm = start_vm_on_macvtap(host, "nic0")
    document = measured(host)
    assert_followed(document, vm)


@lab(kernels=("5.10",), topology=TWO_NODES, nics=IGB)
def test_a_kernel_without_types_of_its_modules_says_so(host: Host) -> None:
    start_vm(host)
    document = measured(host)
    (missing,) = document["into_guests"]["not_available"]
    assert "no types of its module" in missing["reason"], missing
    assert document["packets"]["started"] >= PACKETS, "and the stages are measured"
