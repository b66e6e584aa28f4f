"""What a driver holds for its link: found where it is milliseconds, bounded, and undone.

The kernel keeps the limit at `limit_min` bytes at least: with that it grows as with large segments on a slow link.
"""

import json

from lab import Host
from lab.fixtures import lab

from .changes import QUEUES
from .hosts import IGB, TWO_NODES
from .test_tune import tuned

# Of 1 Gb/s: 2.4 ms.
HELD = 300_000
LIMITS = f"{QUEUES}/tx-*/byte_queue_limits"
# Without a connection it does not learn that nothing listens.
SENDER = """
import socket, sys
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
while True:
    sender.sendto(bytes(100), (sys.argv[1], 9))
"""
# In one interval: at each, the kernel patches code that emulation may just execute (as in test_priorities).
DIAGNOSE = "nearpath diagnose --for 5 --interval 10m --json >/root/found.json"


def bounds(host: Host) -> list[int]:
    return [int(bound) for bound in host.check(f"cat {LIMITS}/limit_max").split()]


@lab(topology=TWO_NODES, nics=IGB)
def test_a_driver_that_holds_milliseconds_is_bounded(host: Host) -> None:
    before = bounds(host)
    assert "1000" in host.check("cat /sys/class/net/nic0/speed")
    host.check(f"for file in {LIMITS}/limit_min; do echo {HELD} >$file; done")
    sender = host.start(["python3", "-c", SENDER, host.peer.address()])
    host.check(DIAGNOSE, timeout_s=120)
    assert sender.running(), sender.result
    sender.kill()
    findings = json.loads(host.read("/root/found.json"))["findings"]
    found = [finding for finding in findings if finding["check"] == "byte_queue_limit"]
    assert len(found) == 1 and found[0]["severity"] == "warning", findings
    assert "2.40ms" in found[0]["title"], found

    plan = tuned(host, "plan", "--nic", "nic0", "--findings", "/root/found.json")
    changes = [change for change in plan["changes"] if change["kind"] == "byte_queue_limit"]
    assert changes and {change["after"] for change in changes} == {"125000"}, plan["changes"]
    only = [word for change in changes for word in ("--only", change["id"])]
    host.write("/root/plan.json", json.dumps(plan).encode())
    tuned(host, "apply", "/root/plan.json", *only)
    assert bounds(host).count(125_000) == len(changes)
    host.check("nearpath tune rollback")
    assert bounds(host) == before
