"""A misplaced host is distinguished from a well placed one: the NIC's packets on its node, then moved by RPS
to the other one, away from their reader."""

import time
from contextlib import ExitStack
from typing import Any

from lab import Host
from lab.fixtures import lab
from lab.waiting import EVERY_PACKET, ended, printed, start_measuring

from .conversations import Conversation, start_server
from .hosts import IGB, TWO_NODES
from .steering import FAR_MASK, NO_MASK, steer, take_interrupts

NIC_CPU, READER_CPU = TWO_NODES.cpus_of(0)
PORT = 5001
ROUNDS = 200

# Seconds in each that the emulator's threads wait for this machine's CPUs, from which the guest's packets are late by
# that: 0.17 on a machine of two CPUs without other work, 0.70 beside two busy tasks.
STARVED = 0.35

# Checks that report packets, their NIC or their reader in the wrong place.
PLACEMENT = {"nic_irq_node", "reader_placement", "rps_placement"}
# Checks of what packets go through, none of which is wrong here: emulation is slow in all of it.
ON_THE_WAY = {"packet_drops", "stack_time", "tcp_reader"}


@lab(topology=TWO_NODES, nics=IGB)
def test_rps_to_the_other_node_is_named_first(host: Host) -> None:
    with ExitStack() as stack:
        talks = conversations(host, stack)
        near = diagnosed(host, talks)
        # (A reader on the NIC's node but not on its CPU is only information.)
        bad = [finding for finding in near["findings"] if finding["severity"] != "info"]
        assert not (PLACEMENT | ON_THE_WAY) & {finding["check"] for finding in bad}, bad

        steer(host, FAR_MASK)
        began, waited_s = time.monotonic(), host.waited_s()
        far = diagnosed(host, talks)
        waited = (host.waited_s() - waited_s) / (time.monotonic() - began)

    findings = far["findings"]
    if waited > STARVED:
        # CPUs of the guest stand still in the middle of tasks: its packets are truly late by them.
        findings = [finding for finding in findings if finding["check"] != "slow_packets"]
    first = findings[0]
    assert first["check"] == "rps_placement" and first["severity"] != "info", far["findings"]
    assert "node" in first["title"] + " ".join(first["evidence"]), first
    fixed = {change["target"]: change["after"] for change in first["changes"] if "rps_cpus" in change["target"]}
    queues = host.check("ls -d /sys/class/net/nic0/queues/rx-*").split()
    assert set(fixed) == {f"{queue}/rps_cpus" for queue in queues}
    assert all(mask != FAR_MASK for mask in fixed.values())

    # Its advice fixes it.
    for target, mask in fixed.items():
        host.write(target, mask.encode())
    assert fixed[f"{queues[0]}/rps_cpus"] == NO_MASK or int(fixed[f"{queues[0]}/rps_cpus"], 16) & int(FAR_MASK, 16) == 0


@lab(topology=TWO_NODES, nics=IGB)
def test_it_is_named_first_whichever_look_saw_the_packets(host: Host) -> None:
    plain = ("diagnose", "--measure", "stages", "--max-overhead", "none")
    with ExitStack() as stack:
        talks = conversations(host, stack)
        steer(host, FAR_MASK)

        # Until its end, during both looks.
        diagnosing = start_measuring(host, *plain, duration="8s")
        while diagnosing.job.running():
            for conversation in talks:
                conversation.talk(20)
        both = printed(diagnosing)

        diagnosing = start_measuring(host, *plain)
        for conversation in talks:
            conversation.talk(20)
        early = ended(diagnosing)

    for document in (both, early):
        first = document["findings"][0]
        assert first["check"] == "rps_placement" and first["severity"] != "info", document["findings"]
        assert first["cost"]["share_percent"] > 90, first
    closer, coarse = (set(both[look]["stages"]) for look in ("measurement", "other_look"))
    assert coarse < closer, (coarse, closer)
    assert all(both[look]["packets"]["started"] >= 100 for look in ("measurement", "other_look")), both
    assert set(early["measurement"]["stages"]) == coarse


def conversations(host: Host, stack: ExitStack) -> list[Conversation]:
    """A reader on the NIC's node, and its traffic."""
    take_interrupts(host, NIC_CPU)
    start_server(host, str(READER_CPU), PORT)
    return [
        stack.enter_context(Conversation(host, protocol, host.machine.address(), PORT, 4))
        for protocol in ("udp", "tcp")
    ]


def diagnosed(host: Host, talks: list[Conversation]) -> dict[str, Any]:
    """nearpath's diagnosis of some traffic."""
    diagnosing = start_measuring(host, "diagnose", "--measure", "stages", *EVERY_PACKET)
    for conversation in talks:
        conversation.talk(ROUNDS)
    return ended(diagnosing)
