"""The complete path of a slow packet: from the NIC's poll through Open vSwitch to its reader, with the
CPU and the node of each stage.
"""

from typing import Any

from lab import Host
from lab.fixtures import lab
from lab.waiting import ended, start_measuring

from .conversations import Conversation, start_server
from .hosts import IGB, TWO_NODES
from .steering import FAR_MASK, steer, take_interrupts

NIC_CPU, READER_CPU = TWO_NODES.cpus_of(0)
PORT = 5001
ROUNDS = 10

# Stages that each datagram passes, in this order, possibly with others between.
WAY = ["napi_gro_receive", "netif_receive_skb", "ovs_vport_send", "netif_rx", "netif_receive_skb", "udp_rcv"]
# Where it ends, by kernel.
ENDS = {"sock_recv", "consume_skb"}


@lab(topology=TWO_NODES, nics=IGB)
def test_a_slow_packet_is_followed_to_its_end(host: Host) -> None:
    take_interrupts(host, NIC_CPU)
    start_server(host, str(READER_CPU), PORT)
    steer(host, FAR_MASK)
    which = ("--dev", "nic0", "--direction", "rx", "--proto", "udp", "--dport", str(PORT))
    with Conversation(host, "udp", host.machine.address(), PORT, flows=1) as talk:
        talk.talk(1)
        # In emulation no span is shorter, so every packet is slow.
        measuring = start_measuring(host, "measure", "stages", *which, "--slow", "100ns", "--outliers", "1000")
        talk.talk(ROUNDS)
        document = ended(measuring)

    assert document["outliers"]
    paths = {outlier["packet"]: outlier["path"] for outlier in document["outliers"]}
    whole = [path for path in paths.values() if path[-1]["stage"] in ENDS]
    assert len(whole) + document["slow"]["paths_lost"] >= len(paths) - document["packets"]["abandoned"]
    assert len(whole) > ROUNDS / 2
    for outlier in document["outliers"]:
        assert_holds_its_slow_span(outlier)
    for path in whole:
        stages = iter(step["stage"] for step in path)
        assert all(stage in stages for stage in WAY), path
        for step in path:
            assert step["cpu"] in TWO_NODES.cpus_of(step["node"]), step
        # RPS sends it to the other node, and the reader waits on this one.
        nodes = [step["node"] for step in path]
        assert nodes[0] == 0 and 1 in nodes, path


def assert_holds_its_slow_span(outlier: dict[str, Any]) -> None:
    path = outlier["path"]
    end = next(
        number
        for number, step in enumerate(path)
        if (step["stage"], step["at_ns"]) == (outlier["to"], outlier["at_ns"])
    )
    before = path[end - 1]
    assert (before["stage"], outlier["at_ns"] - before["at_ns"]) == (outlier["from"], outlier["span_ns"])
