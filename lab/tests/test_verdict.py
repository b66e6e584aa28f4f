"""Packets arrive through Open vSwitch on one node, and are read on the other, as in the post on latency tails behind an
OVS port. The first line of the diagnosis names the cause and the fix, and the command below it is the fix."""

import re
from contextlib import ExitStack

from lab import Host
from lab.fixtures import lab

from .conversations import Conversation, start_server
from .hosts import IGB, TWO_NODES
from .steering import take_interrupts

NIC_CPU = TWO_NODES.cpus_of(0)[0]
FAR_CPU = TWO_NODES.cpus_of(1)[0]
PORT = 5001
COLUMNS, LINES = 100, 24
DIAGNOSE = "nearpath diagnose --measure stages --max-overhead none --for 4s"


@lab(topology=TWO_NODES, nics=IGB)
def test_the_first_line_names_the_cause_and_the_fix(host: Host) -> None:
    with ExitStack() as stack:
        take_interrupts(host, NIC_CPU)
        start_server(host, str(FAR_CPU), PORT)
        address = host.machine.address()
        talks = [stack.enter_context(Conversation(host, kind, address, PORT, 4)) for kind in ("tcp", "udp")]
        first, *rest = diagnosed(host, talks)
        host.log.write("\n".join([first, *rest]))

        pid = host.check("pgrep -of 'import select, socket'").strip()
        near = f"{TWO_NODES.cpus_of(0)[0]}-{TWO_NODES.cpus_of(0)[-1]}"
        cause = rf"python3\[{pid}\] on node 1 reads packets of node 0: pin it to CPUs {near}"
        assert re.fullmatch(rf"(WARNING|CRITICAL)  +{cause}  \[reader_placement\]", first), first
        assert len(rest) < LINES and all(len(line) <= COLUMNS for line in (first, *rest)), rest

        # The command that is printed ends it.
        [fix] = [line for line in rest if line.startswith("  fix ") and f" {pid} " in line]
        host.check(fix.removeprefix("  fix ").split("    (was")[0].strip())
        again = diagnosed(host, talks)
    assert "[reader_placement]" not in again[0], again


def diagnosed(host: Host, talks: list[Conversation]) -> list[str]:
    """The lines of a diagnosis under traffic."""
    diagnosing = host.start(DIAGNOSE)
    while diagnosing.running():
        for conversation in talks:
            conversation.talk(20)
    result = diagnosing.wait()
    assert result.status == 0, result
    return result.out.splitlines()
