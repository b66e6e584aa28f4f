"""Where packets are allocated and freed, exactly: by the functions of a guest's kernel.

Interrupts, and thus allocations, are on one CPU; the reader is on it, and then on the other node.
"""

from contextlib import ExitStack
from typing import Any

from lab import Host, Nic
from lab.fixtures import lab, representative, smoke
from lab.waiting import ended, start_measuring

from .conversations import Conversation, start_server
from .hosts import IGB, TWO_NODES
from .steering import take_interrupts
from .test_btf import hide_btf

NIC_CPU, _ = TWO_NODES.cpus_of(0)
FAR_CPU, _ = TWO_NODES.cpus_of(1)

# Packets to one port are read on the NIC's CPU, those to the other on the far node.
NEAR_PORT, FAR_PORT = 5001, 5002
FLOWS = 4
ROUNDS = 50
MESSAGES = FLOWS * ROUNDS

STREAM_BYTES = 8 << 20
GSO_MAX_BYTES = 1 << 16

# The last packets sent wait for their interrupt; and runs that the kernel skips.
FEW = FLOWS


@representative
@smoke
@lab(topology=TWO_NODES, nics=IGB)
def test_packets_are_followed_from_allocation_to_reader(host: Host) -> None:
    start_servers(host)
    with ExitStack() as stack:
        talk = {
            (protocol, port): stack.enter_context(Conversation(host, protocol, host.machine.address(), port, FLOWS))
            for protocol in ("udp", "tcp")
            for port in (NEAR_PORT, FAR_PORT)
        }
        # Connections are made before counting starts.
        for conversation in talk.values():
            conversation.talk(1)
        near = measured(host, talk["udp", NEAR_PORT])
        far = measured(host, talk["udp", FAR_PORT])
        far_tcp = measured(host, talk["tcp", FAR_PORT])

    # Each message is a packet, and so is each answer; it is freed where its transmission is completed.
    for document, distance in ((near, "same_cpu"), (far, "other_node")):
        for direction in ("rx", "tx"):
            counts = document[direction]
            assert MESSAGES - FEW <= counts[distance] <= counts["packets"] <= MESSAGES, document
        # Of an allocation that the kernel did not report, it counts the miss.
        assert document["packets"]["not_allocated"] <= document["events_lost"], document
    assert places(near, "rx") == {(NIC_CPU, NIC_CPU)} == places(near, "tx")
    assert places(far, "rx") == {(NIC_CPU, FAR_CPU)}
    assert places(far, "tx") == {(FAR_CPU, NIC_CPU)}

    # Messages are freed by their reader, though the kernel returns them to their CPU; answers
    # by the softirq that processes their acknowledgement.
    rx, tx = far_tcp["rx"], far_tcp["tx"]
    assert abs(rx["other_node"] - MESSAGES) <= FEW, far_tcp
    assert abs(tx["other_node"] - MESSAGES) <= FEW, far_tcp
    returned = 0 if host.machine.kernel == "5.10" else MESSAGES
    assert abs(far_tcp["packets"]["returned"] - returned) <= FEW, far_tcp


@lab(topology=TWO_NODES, nics=(Nic("virtio", node=1), Nic("igb", node=0)))
def test_no_packet_of_a_stream_is_missed(host: Host) -> None:
    host.check(["iperf3", "--server", "--daemon"])
    for direction, way in (("rx", ()), ("tx", ("--reverse",))):
        measuring = start_measuring(host, "measure", "locality", "--dev", "nic0", "--direction", direction)
        before = frames(host)
        stream = ["iperf3", "--client", host.machine.address(), "--bytes", str(STREAM_BYTES), *way]
        done = host.peer.run(stream)
        assert done.status == 0, done
        received = frames(host) - before
        document = ended(measuring)
        packets = document["packets"]
        # The device counts packets that its driver has received.
        if direction == "rx":
            assert abs(packets["started"] - received) <= 0.01 * received + FEW, (received, document)
        assert packets["started"] == document[direction]["packets"] + packets["abandoned"] + packets["not_allocated"]
        # (Data that is still in the peer's socket at the end is not sent.)
        assert packets["started"] > STREAM_BYTES / GSO_MAX_BYTES / 2, document
        assert packets["abandoned"] + packets["not_allocated"] <= 0.01 * packets["started"] + FEW, document


@lab(kernels=("6.1",), topology=TWO_NODES, nics=IGB)
def test_kprobes_give_the_same_result(host: Host) -> None:
    btf = hide_btf(host)
    start_servers(host)
    with ExitStack() as stack:
        talk = stack.enter_context(Conversation(host, "udp", host.machine.address(), FAR_PORT, FLOWS))
        talk.talk(1)
        document = measured(host, talk, "--btf", btf)
    for direction in ("rx", "tx"):
        counts = document[direction]
        assert MESSAGES - FEW <= counts["other_node"] <= counts["packets"] <= MESSAGES, document


def frames(host: Host) -> int:
    """Packets that the NIC has received."""
    return int(host.check("cat /sys/class/net/nic0/statistics/rx_packets"))


def start_servers(host: Host) -> None:
    """Starts the guest's ends."""
    take_interrupts(host, NIC_CPU)
    start_server(host, str(NIC_CPU), NEAR_PORT)
    start_server(host, str(FAR_CPU), FAR_PORT)


def measured(host: Host, talk: Conversation, *arguments: str) -> dict[str, Any]:
    """nearpath's measurement of a conversation: exact, and each packet has one end."""
    which = ("--port", str(talk.port), *arguments)
    measuring = start_measuring(host, "measure", "locality", *which)
    talk.talk(ROUNDS)
    document = ended(measuring)
    assert (document["method"], document["fallback"]) == ("exact", None), document
    packets = document["packets"]
    ends = ("completed", "dropped", "abandoned", "collided", "not_allocated")
    assert packets["started"] == sum(packets[end] for end in ends), document
    assert packets["abandoned"] <= FEW and packets["dropped"] == 0, document
    assert document["events_lost"] <= FEW, document
    return document


def places(document: dict[str, Any], direction: str) -> set[tuple[int, int]]:
    """The pairs of CPUs between which packets of a direction went."""
    return {(place["from_cpu"], place["to_cpu"]) for place in document["places"] if place["direction"] == direction}
