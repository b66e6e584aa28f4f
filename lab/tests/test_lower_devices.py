"""Packets received by an upper (stacked) device, which the kernel shows with the lowest device: `--dev` of the
upper one matches them, and nothing else. Also, a sample counts each packet of a NIC once.
"""

import json

import pytest

from lab import Host
from lab.fixtures import lab
from lab.waiting import ended, start_measuring

from . import devices
from .hosts import IGB, TWO_NODES

DATAGRAMS = 40
PORT = 5003
OTHER_PORT = 5004

# Arguments: address, port.
SEND = f"""
import socket, sys
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range({DATAGRAMS}):
    sender.sendto(b"x" * 100, (sys.argv[1], int(sys.argv[2])))
"""

STREAM_BYTES = 4 << 20

# Packets that are not IP, or arrive before the first or after the last reading of a counter.
FEW = 4


@lab(topology=TWO_NODES, nics=IGB)
@pytest.mark.parametrize("wire", ["vlan", "bond", "macvlan"])
def test_a_stacked_device_has_its_packets(host: Host, wire: str) -> None:
    devices.make(host, wire)
    beside(host, wire)
    upper = devices.device(wire)
    for which, port in (("--dev", PORT), ("--dev", OTHER_PORT)):
        measuring = start_measuring(
            host, "measure", "stages", "--netns", "right", which, upper, "--direction", "rx", "--dport", str(port)
        )
        send(host, devices.address(wire, "right"), PORT)
        send(host, "10.78.0.2", OTHER_PORT)
        packets = ended(measuring)["packets"]
        # The bond has one port here: it receives everything that the port receives.
        expected = DATAGRAMS if port == PORT or wire == "bond" else 0
        assert packets["started"] == expected, packets


@lab(topology=TWO_NODES, nics=IGB)
@pytest.mark.parametrize("offload", ["on", "off"])
def test_tags_are_read_wherever_they_are(host: Host, offload: str) -> None:
    """For a VLAN in a VLAN: removed by the device, or still in the packet."""
    devices.make(host, "vlan")
    for end, number in (("left", 1), ("right", 2)):
        host.check(f"ip netns exec {end} ethtool -K vlan-raw txvlan {offload}")
        ip = f"ip -netns {end}"
        host.check(f"{ip} link add inner link vlan0 type vlan id 9 && {ip} link set inner up")
        host.check(f"{ip} link add wrong link vlan0 type vlan id 10 && {ip} link set wrong up")
        host.check(f"{ip} address add 10.79.0.{number}/24 dev inner")
    measuring = start_measuring(
        host, "measure", "stages", "--netns", "right", "--dev", "inner", "--direction", "rx", "--proto", "udp"
    )
    send(host, "10.79.0.2", PORT)
    assert ended(measuring)["packets"]["started"] == DATAGRAMS
    measuring = start_measuring(
        host, "measure", "stages", "--netns", "right", "--dev", "wrong", "--direction", "rx", "--proto", "udp"
    )
    send(host, "10.79.0.2", PORT)
    assert ended(measuring)["packets"]["started"] == 0


@lab(topology=TWO_NODES, nics=IGB)
@pytest.mark.parametrize("instrument", ["stages"])
def test_a_sample_counts_each_packet_of_a_nic(host: Host, instrument: str) -> None:
    host.check(["iperf3", "--server", "--daemon"])
    measuring = start_measuring(host, "measure", instrument, "--dev", "nic0", "--direction", "rx", "--sample", "1/2")
    before = received(host)
    done = host.peer.run(
        ["iperf3", "--client", host.machine.address(), "--parallel", "8", "--bytes", str(STREAM_BYTES)]
    )
    assert done.status == 0, done
    count = received(host) - before
    packets = ended(measuring)["packets"]
    seen = packets["started"] + packets["sampled_out"]
    assert abs(seen - count) <= FEW + count // 200, (count, packets)
    assert packets["started"] and packets["sampled_out"], packets


def beside(host: Host, wire: str) -> None:
    """Addresses of the lower device, at which it receives packets itself."""
    below = f"{wire}-raw" if wire != "bond" else devices.device(wire)
    for end, number in (("left", 1), ("right", 2)):
        host.check(f"ip -netns {end} address add 10.78.0.{number}/24 dev {below}")


def send(host: Host, address: str, port: int) -> None:
    host.check(["ip", "netns", "exec", "left", "python3", "-c", SEND, address, str(port)])


def received(host: Host) -> int:
    """Packets of the NIC, by its own counters."""
    statistics = json.loads(host.check("ip -json -statistics link show dev nic0"))
    return int(statistics[0]["stats64"]["rx"]["packets"])
