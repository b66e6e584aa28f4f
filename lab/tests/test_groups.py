"""Packets by queue, process, cgroup, node and flow: each group agrees with other counters of the
guest. With `measure stages`, and with `measure locality` and the CPUs that packets go to.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lab import Host
from lab.fixtures import lab
from lab.waiting import ended, start_measuring

from .conversations import Conversation, start_server
from .hosts import IGB, TWO_NODES
from .steering import FAR_MASK, steer, take_interrupts

READER_CPU = TWO_NODES.cpus_of(0)[0]
FAR_CPU = TWO_NODES.cpus_of(1)[0]
PORT = 5001
FLOWS = 8
ROUNDS = 20
MESSAGES = FLOWS * ROUNDS

# Frames that are not IP packets, such as ARP, and datagrams that a reader takes at the moment in
# which its socket reports them.
FEW = 8


@lab(topology=TWO_NODES, nics=IGB)
def test_groups_have_their_packets(host: Host) -> None:
    steer(host, FAR_MASK)
    with conversation(host) as talk:
        before = frames_by_queue(host)
        queues = measured(host, talk, "queue")
        after = frames_by_queue(host)
        processes = measured(host, talk, "process")
        cgroups = measured(host, talk, "cgroup")
        nodes = measured(host, talk, "node")
        flows = measured(host, talk, "flow", "--top", str(FLOWS))

    assert len(queues) > 1, queues
    for queue, packets in queues.items():
        assert 0 <= after[queue] - before[queue] - packets <= FEW, (queue, packets, before, after)
    python = [packets for name, packets in processes.items() if name.startswith("python3/")]
    assert len(python) == 1, processes
    assert MESSAGES - FEW <= python[0] <= MESSAGES, processes
    assert MESSAGES - FEW <= cgroups.get("/readers", 0) <= MESSAGES, cgroups
    assert nodes.keys() <= {"node 0", "node 1"}, nodes
    assert set(flows.values()) == {ROUNDS}, flows
    assert len(flows) == FLOWS
    assert all(name.startswith("UDP ") and name.endswith(f":{PORT}") for name in flows), flows


@lab(topology=TWO_NODES, nics=IGB)
def test_groups_have_their_locality(host: Host) -> None:
    # The reader is on the far node, so that packets leave their CPU.
    take_interrupts(host, FAR_CPU)
    with conversation(host) as talk:
        before = frames_by_queue(host)
        queues = locality(host, talk, "queue", "--dev", "nic0", "--direction", "rx")
        after = frames_by_queue(host)
        processes = locality(host, talk, "process")
        cgroups = locality(host, talk, "cgroup")

    assert len(queues) > 1, queues
    for queue, (rx, _) in queues.items():
        assert 0 <= after[queue] - before[queue] - rx["packets"] <= FEW, (queue, rx, before, after)
        assert rx["packets"] == rx["other_node"], (queue, rx)
    # Messages belong to the reader, and answers to the same process, which sends them.
    (python,) = [counts for name, counts in processes.items() if name.startswith("python3/")]
    for counts in (python, cgroups["/readers"]):
        for direction in counts:
            assert MESSAGES - FEW <= direction["packets"] <= MESSAGES, (processes, cgroups)
            assert direction["packets"] - direction["other_node"] <= FEW, (processes, cgroups)


@contextmanager
def conversation(host: Host) -> Iterator[Conversation]:
    """Flows over several queues, with the guest's end in its own cgroup."""
    # The hash includes ports.
    host.check("ethtool --config-nfc nic0 rx-flow-hash udp4 sdfn")
    server = start_server(host, str(READER_CPU), PORT)
    host.check("mkdir -p /tmp/cgroups && mount -t cgroup2 none /tmp/cgroups && mkdir /tmp/cgroups/readers")
    host.check("for task in $(pgrep -f AF_INET6); do echo $task >/tmp/cgroups/readers/cgroup.procs; done")
    assert server.running()
    with Conversation(host, "udp", host.machine.address(), PORT, FLOWS) as talk:
        talk.talk(1)
        yield talk


def locality(host: Host, talk: Conversation, per: str, *arguments: str) -> dict[str, list[dict[str, int]]]:
    """Received and sent packets by group while the peer sends; the groups add up to the whole."""
    which = ("--proto", "udp", "--port", str(PORT), *arguments)
    measuring = start_measuring(host, "measure", "locality", "--per", per, *which)
    talk.talk(ROUNDS)
    document = ended(measuring)
    assert document["method"] == "exact", document
    assert document["rx"]["packets"] >= MESSAGES - FEW, document
    for direction in ("rx", "tx"):
        for count, all_there_were in document[direction].items():
            assert sum(group[direction][count] for group in document["groups"]) == all_there_were, document
    return {group["name"]: [group["rx"], group["tx"]] for group in document["groups"]}


def measured(host: Host, talk: Conversation, per: str, *arguments: str) -> dict[str, int]:
    """Packets by group while the peer sends; the groups add up to the whole, for each span."""
    only = ("--dev", "nic0", "--direction", "rx", "--proto", "udp", "--dport", str(PORT))
    measuring = start_measuring(host, "measure", "stages", "--per", per, *arguments, *only)
    talk.talk(ROUNDS)
    document = ended(measuring)
    groups = document["groups"]
    assert sum(group["packets"] for group in groups) == document["packets"]["started"] == MESSAGES
    whole = counts(document["spans"])
    parts = [counts(group["spans"]) for group in groups]
    assert {span: sum(part.get(span, 0) for part in parts) for span in whole} == whole
    # A CPU may have ends of spans, but no packets.
    return {group["name"]: group["packets"] for group in groups if group["packets"]}


def counts(spans: list[dict[str, Any]]) -> dict[tuple[str, str], int]:
    return {(span["from"], span["to"]): span["count"] for span in spans}


def frames_by_queue(host: Host) -> dict[str, int]:
    """Packets that the NIC's driver received by each queue, with nearpath's names."""
    lines = [line.split(":") for line in host.check("ethtool -S nic0").splitlines()]
    frames = {}
    for name, *value in lines:
        words = name.split("_")
        if words[:2] == ["     rx", "queue"] and words[3:] == ["packets"]:
            frames[f"nic0 rx-{words[2]}"] = int(value[0])
    return frames
