"""Packets pass every stage that nearpath can observe on a kernel, by each path
into a guest, out of it and through it. nearpath reports the reason for each stage that it cannot observe.
"""

import json
import sys
from contextlib import ExitStack

from lab import Host
from lab.fixtures import lab, smoke
from lab.waiting import ended, start_measuring, wait_until

from . import devices
from .conversations import Conversation, start_server
from .hosts import IGB, TWO_NODES
from .steering import FAR_MASK, steer

READER_CPU = TWO_NODES.cpus_of(0)[0]
PORT = 5001
CLOSED_PORT = 5009

# An empty network beyond the peer, that the guest routes to.
BEYOND = "10.9.77.0/24"

# Devices on a wire that have their own stages.
STAGED = ("vlan", "bond", "bridge", "macvlan", "vxlan")

# Sends a datagram without an answer to an address.
DATAGRAM = f"""
import socket, sys
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"is anybody there?", (sys.argv[1], {CLOSED_PORT}))
"""

# More at once than fit in a queue of 3 KB.
BURST = """
import socket, sys
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(20):
    sender.sendto(bytes(1000), (sys.argv[1], 9))
"""


@smoke
@lab(topology=TWO_NODES, nics=IGB)
def test_every_stage_is_passed(host: Host) -> None:
    devices.make(host, *STAGED)
    stages = json.loads(host.check("nearpath measure stages --list-stages --json"))["stages"]
    observable = {(stage["direction"], stage["stage"]) for stage in stages if stage["attach"]}
    assert all(stage["reason"] for stage in stages if not stage["attach"])

    start_server(host, str(READER_CPU), PORT)
    steer(host, FAR_MASK)
    measuring = start_measuring(host, "measure", "stages")
    received_and_answered(host)
    forwarded(host)
    refused(host)
    sent_into_a_full_queue(host)
    for wire in STAGED:
        host.check(["ip", "netns", "exec", "left", "python3", "-c", DATAGRAM, devices.address(wire, "right")])
    host.check("ping -c 1 127.0.0.1")
    measurement = ended(measuring)

    ends = ("from", "to")
    passed = {(span["direction"], span[end]) for span in measurement["spans"] for end in ends if span["count"]}
    # Its time is in the packet: the watch begins there, and no span.
    stamp = {("rx", "skb_tstamp")}
    assert observable - passed == stamp
    assert measurement["watch"]["packets"]
    assert passed <= observable
    packets = measurement["packets"]
    assert packets["started"] == sum(packets[end] for end in ("completed", "dropped", "abandoned", "collided"))
    assert packets["dropped"] >= 2
    assert packets["completed"] + packets["dropped"] >= 0.95 * packets["started"]


def received_and_answered(host: Host) -> None:
    """UDP and TCP, over IPv4 and IPv6; the first packet of each through ovs-vswitchd."""
    with ExitStack() as stack:
        for address in (host.machine.address(), host.machine.address6()):
            for protocol in ("udp", "tcp"):
                talk = stack.enter_context(Conversation(host, protocol, address, PORT, flows=2))
                talk.talk(20)


def forwarded(host: Host) -> None:
    """From the peer to a network behind the peer."""
    host.check(f"sysctl -qw net.ipv4.ip_forward=1 && ip route add {BEYOND} via {host.peer.address()}")
    routed = host.peer.run(["ip", "route", "add", BEYOND, "via", host.machine.address()])
    assert routed.status == 0, routed
    datagram(host, BEYOND.replace("0/24", "1"))
    wait_until(lambda: counter(host, "Ip", "ForwDatagrams") > 0, "the guest has forwarded a packet")


def refused(host: Host) -> None:
    """To a closed port, where it is dropped."""
    before = counter(host, "Udp", "NoPorts")
    datagram(host, host.machine.address())
    wait_until(lambda: counter(host, "Udp", "NoPorts") > before, "the guest has dropped a packet")


def sent_into_a_full_queue(host: Host) -> None:
    """More than fit in the NIC's queue: some wait in it, the rest is dropped."""
    host.check("tc qdisc replace dev nic0 root tbf rate 1mbit burst 2kb limit 3kb")
    host.check(["python3", "-c", BURST, host.peer.address()])

    def is_empty() -> bool:
        queue = host.check("tc -s qdisc show dev nic0")
        return "backlog 0b 0p" in queue and "dropped 0," not in queue

    wait_until(is_empty, "what the queue took is sent, and it took not all")


def datagram(host: Host, address: str) -> None:
    """Sends one from the peer."""
    sent = host.peer.run([sys.executable, "-c", DATAGRAM, address])
    assert sent.status == 0, sent


def counter(host: Host, protocol: str, name: str) -> int:
    """A counter of the guest's kernel, from a line of names and a line of numbers per protocol."""
    lines = [line.split() for line in host.check("cat /proc/net/snmp").splitlines()]
    names, numbers = (line for line in lines if line[0] == f"{protocol}:")
    return int(numbers[names.index(name)])
