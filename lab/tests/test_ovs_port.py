"""RPS on an OVS internal port steers only packets of the NIC's RX queue 0; on the NIC it steers all.

A NIC with four queues that node 0 serves, and a reader on node 1: RPS to node 1 is set on the port,
then on the NIC, as `nearpath diagnose` proposes. The kernel's trace events show which packets
changed CPU, and nearpath's counts agree.
"""

from collections import Counter
from typing import Any

from lab import Host
from lab.fixtures import lab
from lab.waiting import EVERY_PACKET, ended, start_measuring, wait_until

from . import packet_trace
from .hosts import IGB, TWO_NODES
from .packet_trace import Event
from .traffic import PACKET_BYTES, PORT, send, start_reader

# Fewer in total than fit in any ring or backlog on the path, so that none is lost.
FLOWS = 64
EACH = 8
SENT = FLOWS * EACH

QUEUES = {0, 1, 2, 3}
NIC_CPUS, READER_CPUS = (set(TWO_NODES.cpus_of(node)) for node in (0, 1))
READER_MASK = "0000000c"

# The pairs of events between which RPS may move a packet, on the NIC and on the port.
ON_NIC = (("napi_gro_receive_entry", "nic0"), ("netif_receive_skb", "nic0"))
ON_PORT = (("netif_rx_entry", "br0"), ("netif_receive_skb", "br0"))

# nearpath's stages that such a step may start with; not all kernels have the last.
STAGES = ("napi_gro_receive", "netif_rx", "enqueue_to_backlog")


@lab(topology=TWO_NODES, nics=IGB)
def test_rps_on_the_port_steers_only_queue_0(host: Host) -> None:
    prepare(host)
    host.write("/sys/class/net/br0/queues/rx-0/rps_cpus", READER_MASK.encode())

    document, events = followed(host, *EVERY_PACKET)
    by_queue = moves_by_queue(events, ON_PORT)
    assert set(by_queue) == QUEUES
    assert by_queue[0].keys() == {True}, by_queue
    assert all(by_queue[queue].keys() == {False} for queue in QUEUES - {0}), by_queue
    assert not any(has_moved(*step) for step in steps(events, ON_NIC))
    steered = by_queue[0].total()
    assert 0 < steered < SENT

    assert counts(document["measurement"]) == (SENT, steered)
    finding = finding_of_port(document)
    # It is found without all stages and without a second look: all packets arrive during the first one.
    document, events = followed(host, "--max-overhead", "none")
    assert finding_of_port(document) == finding
    assert counts(document["measurement"]) == (SENT, moves_by_queue(events, ON_PORT)[0].total())

    # The proposed changes.
    assert Counter(change["after"] for change in finding["changes"]) == {READER_MASK: 4, "00000000": 1}
    for change in finding["changes"]:
        assert int(host.read(change["target"]), 16) == int(change["before"], 16)
        host.write(change["target"], change["after"].encode())

    document, events = followed(host, *EVERY_PACKET)
    by_queue = moves_by_queue(events, ON_NIC)
    assert set(by_queue) == QUEUES
    assert all(moves.keys() == {True} for moves in by_queue.values()), by_queue
    assert not any(has_moved(*step) for step in steps(events, ON_PORT))
    assert counts(document["measurement"]) == (SENT, SENT)
    assert "ovs_port_rps" not in {finding["check"] for finding in document["findings"]}


def finding_of_port(document: dict[str, Any]) -> dict[str, Any]:
    (finding,) = (finding for finding in document["findings"] if finding["check"] == "ovs_port_rps")
    assert finding["title"] == "RPS on the OVS port br0 steers only packets of RX queue 0"
    assert finding["cost"]["share_percent"] == 75
    return dict(finding)


def prepare(host: Host) -> None:
    """Sets up the NIC on its node with flows over all queues, the reader on the other, and starts the trace."""
    irqs = "$(grep nic0 /proc/interrupts | cut -d : -f 1)"
    host.check(f"for irq in {irqs}; do echo {cpulist(NIC_CPUS)} >/proc/irq/$irq/smp_affinity_list; done")
    host.check("ethtool -N nic0 rx-flow-hash udp4 sdfn")
    reader = start_reader(host)
    host.check(["taskset", "--cpu-list", "--pid", cpulist(READER_CPUS), str(reader.pid)])

    # A packet without a flow in OVS goes through ovs-vswitchd, and returns without its queue.
    host.check("ovs-vsctl set Open_vSwitch . other_config:max-idle=600000")
    send(host, flows=1, each=1)
    wait_until(lambda: "eth_type(0x0800)" in host.check("ovs-dpctl dump-flows"), "OVS knows where IPv4 goes")
    packet_trace.start(host, ("napi_gro_receive_entry", "netif_receive_skb", "netif_rx_entry"), PACKET_BYTES)


def cpulist(cpus: set[int]) -> str:
    return ",".join(map(str, sorted(cpus)))


def followed(host: Host, *how: str) -> tuple[dict[str, Any], list[Event]]:
    """Sends packets; returns nearpath's results, and the kernel's records."""
    only = ("--proto", "udp", "--dport", str(PORT), "--direction", "rx")
    measuring = start_measuring(host, "diagnose", "--measure", "stages", *only, *how)
    packet_trace.clear(host)
    send(host, FLOWS, EACH)

    def all_are_there() -> bool:
        return len(steps(packet_trace.read(host), ON_PORT)) == SENT

    wait_until(all_are_there, "all packets came through the port")
    return ended(measuring), packet_trace.read(host)


def steps(events: list[Event], between: tuple[tuple[str, str], tuple[str, str]]) -> list[tuple[Event, Event]]:
    """The two events of each packet that has both."""
    first, second = between
    begun: dict[str, Event] = {}
    found = []
    for event in events:
        if (event.name, event.device) == first:
            begun[event.packet] = event
        elif (event.name, event.device) == second and event.packet in begun:
            found.append((begun.pop(event.packet), event))
    return found


def has_moved(before: Event, after: Event) -> bool:
    """Whether RPS moved a packet; else it stayed on the CPU of the NIC's interrupt."""
    if before.cpu == after.cpu:
        return False
    assert before.cpu in NIC_CPUS and after.cpu in READER_CPUS, (before, after)
    return True


def moves_by_queue(events: list[Event], between: tuple[tuple[str, str], tuple[str, str]]) -> dict[int, Counter[bool]]:
    """For each RX queue of the NIC, how many of its packets moved and how many stayed."""
    moves: dict[int, Counter[bool]] = {}
    for before, after in steps(events, between):
        moves.setdefault(before.queue, Counter())[has_moved(before, after)] += 1
    return moves


def counts(measurement: dict[str, Any]) -> tuple[int, int]:
    """How many packets nearpath followed, and how many of these steps went to another CPU."""
    places = [place for span in measurement["spans"] if span["from"] in STAGES for place in span["places"]]
    moved = sum(place["count"] for place in places if place["from_cpu"] != place["to_cpu"])
    return measurement["packets"]["started"], moved
