"""Packets through NIC, Open vSwitch, its internal port and a socket, followed as the kernel moves them.

The NIC is on node 0 and so is the reader; then RPS sends the packets to node 1. bpftrace, in the
same guest, counts the same packets independently.
"""

from contextlib import ExitStack
from typing import Any

from lab import Host
from lab.fixtures import lab
from lab.waiting import Measuring, ended, start_loading

from . import bpftrace
from .bpftrace import Hop, Hops
from .conversations import Conversation, start_server
from .hosts import IGB, TWO_NODES
from .steering import steer, take_interrupts

# Each on a CPU of its own, so that no bpftrace program interrupts another one, nor a system call of who measures: the
# kernel would skip it.
NIC_CPU, READER_CPU = TWO_NODES.cpus_of(0)
FAR_CPU, MEASURING_CPU = TWO_NODES.cpus_of(1)

# Packets to one port are measured before RPS is set, those to the other with it.
NEAR_PORT, FAR_PORT = 5001, 5002
PROTOCOLS = ("udp", "tcp")
FLOWS = 4
ROUNDS = 100
MESSAGES = len(PROTOCOLS) * FLOWS * ROUNDS

# The script's functions that correspond to stages with other names.
STAGE_OF = {
    "napi_gro_receive_entry": "napi_gro_receive",
    "skb_copy_datagram_iovec": "skb_copy_datagram",
    "__udp_enqueue_schedule_skb": "sk_data_ready",
    "skb_consume_udp": "sock_recv",
}

# Stages on a CPU before the stack gets a packet; they are recorded by CPU, not by packet.
SOFTIRQ = {"irq_handler", "net_rx_raise", "net_rx_entry", "napi_poll", "process_backlog"}

# A reader that is about to call recv may take a datagram at the moment in which its socket reports it: then
# nearpath has one of the two branches, and the script may have the other, or both.
AT_THE_SOCKET = {("udp_rcv", "sk_data_ready"), ("delivered", "read")}
RACES = 4

# Runs that the kernel may skip: a program that interrupts itself.
LOST = 2

# From the delivery to the socket until the reader has the packet, on several branches.
DELIVERED = {"tcp_rcv_established", "sk_data_ready", "sched_waking", "sched_switch"}
READ = {"skb_copy_datagram", "sock_recv"}


@lab(topology=TWO_NODES, nics=IGB)
def test_spans_are_what_bpftrace_counts(host: Host) -> None:
    take_interrupts(host, NIC_CPU)
    start_server(host, str(READER_CPU), NEAR_PORT, FAR_PORT)
    with ExitStack() as stack:
        talks = {
            port: [
                stack.enter_context(Conversation(host, protocol, host.machine.address(), port, FLOWS))
                for protocol in PROTOCOLS
            ]
            for port in (NEAR_PORT, FAR_PORT)
        }
        # Connections are made before counting starts.
        for both in talks.values():
            talk(both, 1)
        # Started concurrently: each loads its programs on a CPU.
        script = bpftrace.start(host)
        measuring = {port: follow(host, port) for port in talks}
        for one in measuring.values():
            one.wait_until_begun()
        bpftrace.wait_until_attached(script)
        for job in (script, *(one.job for one in measuring.values())):
            host.check(["taskset", "-acp", str(MEASURING_CPU), str(job.pid)])
        talk(talks[NEAR_PORT], ROUNDS)
        steer(host, f"{1 << FAR_CPU:08x}")
        talk(talks[FAR_PORT], ROUNDS)
        near, far = (ended(measuring[port]) for port in (NEAR_PORT, FAR_PORT))
        missed = bpftrace.missed(host)
        counted = bpftrace.ended(script)

    assert missed <= LOST
    assert_same(spans_as_hops(near), as_stages(counted[NEAR_PORT]), near["events_lost"] + missed)
    assert_same(spans_as_hops(far), as_stages(counted[FAR_PORT]), far["events_lost"] + missed)

    # On node 0 from end to end; then all to node 1, and back to their readers.
    assert all(hop.other_node == 0 for hop in spans_as_hops(near).values())
    hops = spans_as_hops(far)
    started = far["packets"]["started"]
    assert hops["napi_gro_receive", "enqueue_to_backlog"] == Hop(started, 0, 0)
    assert hops["enqueue_to_backlog", "netif_receive_skb"] == Hop(2 * started, started, started)
    assert hops["delivered", "read"].other_node > MESSAGES / 2

    for document in (near, far):
        packets = document["packets"]
        assert packets["started"] == sum(packets[end] for end in ("completed", "dropped", "abandoned", "collided"))
        assert packets["started"] >= MESSAGES
        assert packets["completed"] >= 0.95 * packets["started"]
        assert abs(spans_as_hops(document)["delivered", "read"].packets - MESSAGES) <= RACES
        assert document["events_lost"] <= LOST


def assert_same(spans: Hops, counted: Hops, lost: int) -> None:
    """Asserts that each hop has the same packets, and the same number crossed; except for races at the socket, and for
    runs of programs that the kernel skipped.
    """
    assert spans.keys() == counted.keys()
    for hop, found in spans.items():
        near = lost + (RACES if hop in AT_THE_SOCKET else 0)
        differences = [abs(a - b) for a, b in zip(found, counted[hop], strict=True)]
        assert max(differences) <= near, (hop, found, counted[hop])


def talk(conversations: list[Conversation], rounds: int) -> None:
    for conversation in conversations:
        conversation.talk(rounds)


def follow(host: Host, port: int) -> Measuring:
    """Starts measuring the packets that arrive at a port by the NIC."""
    which = ("--dev", "nic0", "--direction", "rx", "--dport", str(port))
    return start_loading(host, "measure", "stages", *which)


def spans_as_hops(document: dict[str, Any]) -> Hops:
    """The spans of a measurement as hops from one function that gets the packet to the next."""
    hops: Hops = {}
    for span in document["spans"]:
        begin, end = span["from"], span["to"]
        if begin in SOFTIRQ | READ:
            continue
        hop = Hop(span["count"], crossed(span, "cpu"), crossed(span, "node"))
        if end in SOFTIRQ:
            end = "netif_receive_skb"
        if (begin, end) == ("udp_rcv", "sock_recv"):
            # A polling reader took it before its socket reported it.
            add(hops, begin, "sk_data_ready", Hop(hop.packets))
            begin = "sk_data_ready"
        if begin in DELIVERED:
            hop = hop if end in READ else hop._replace(packets=0)
            begin, end = "delivered", "read"
        add(hops, begin, end, hop)
    return hops


def crossed(span: dict[str, Any], what: str) -> int:
    """Packets of a span that went to another CPU or node."""
    return sum(place["count"] for place in span["places"] if place[f"from_{what}"] != place[f"to_{what}"])


def as_stages(counted: Hops) -> Hops:
    """bpftrace's counts, with the names of stages."""
    hops: Hops = {}
    for functions, hop in counted.items():
        begin, end = (STAGE_OF.get(function, function) for function in functions)
        if begin in DELIVERED:
            begin, end = "delivered", "read"
        # A packet that is copied but was not delivered has the address of one that was freed unseen.
        if begin not in READ and end not in READ:
            add(hops, begin, end, hop)
    return hops


def add(hops: Hops, begin: str, end: str, hop: Hop) -> None:
    hops[begin, end] = hops.get((begin, end), Hop()) + hop
