"""A host whose packets go from the NIC's node to the other and back is planned, tuned, and undone.

The virtio NIC is on node 1; its interrupts and the server are put on node 0, and RPS sends packets
back to node 1.
"""

import json
from contextlib import ExitStack
from typing import Any

from lab import Host
from lab.fixtures import lab
from lab.waiting import ended, start_measuring

from .changes import IRQS
from .conversations import Conversation, start_server
from .hosts import TWO_NODES, VIRTIO
from .steering import FAR_MASK, steer

FAR_CPU, SERVER_CPU = TWO_NODES.cpus_of(0)
NEAR = set(TWO_NODES.cpus_of(1))
PORT = 5001
ROUNDS = 200
# Fewer may be of one packet that went astray before its queue's interrupt was moved.
FEW = 300

SETTINGS = (
    "head -v -n -0 /proc/irq/*/smp_affinity_list /sys/class/net/*/queues/*x-*/?ps_*"
    " /proc/sys/net/core/rps_sock_flow_entries 2>/dev/null"
)


def settings(host: Host, server: int) -> str:
    """Every byte of what may be changed."""
    affinity = host.check(f"grep -H Cpus_allowed_list /proc/{server}/task/*/status")
    # Reading XPS of a device with one queue is refused.
    return host.run(SETTINGS).out + affinity


def crossing(host: Host, talks: list[Conversation], port: int = PORT) -> dict[str, float]:
    """Of each kind of path, and each span, that was measured often, the share of packets that cross to another node.

    A span may be rare though all of its packets cross: a reader is woken, or finds the packet itself."""
    measuring = start_measuring(host, "measure", "stages", "--port", str(port))
    for talk in talks:
        talk.talk(ROUNDS)
    document = ended(measuring)
    paths = {path["kind"]: path for path in document["paths"]}
    spans = {f"{span['direction']} {span['from']} {span['to']}": span for span in document["spans"]}
    return {name: its["other_node"] for name, its in (paths | spans).items() if its["count"] >= FEW}


def tuned(host: Host, *words: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(host.check(["nearpath", "tune", *words, "--json"]))
    return document


@lab(topology=TWO_NODES, nics=VIRTIO)
def test_packets_stay_on_the_nics_node(host: Host) -> None:
    host.check(f"for irq in {IRQS}; do echo {FAR_CPU} >/proc/irq/$irq/smp_affinity_list || true; done")
    host.check("ovs-vsctl set Open_vSwitch . other_config:max-idle=600000")
    steer(host, FAR_MASK)
    server = start_server(host, str(SERVER_CPU), PORT)
    with ExitStack() as stack:
        address = host.machine.address()
        talks = [stack.enter_context(Conversation(host, kind, address, PORT, 4)) for kind in ("udp", "tcp")]
        misplaced = crossing(host, talks)
        assert max(misplaced.values()) > 0.5, misplaced
        # Each connection has its thread by now.
        before = settings(host, server.pid)

        asked = ["--nic", "nic0", "--port", str(PORT)]
        plan = tuned(host, "plan", *asked)
        assert plan["now"]["other_node"] > 0.5, plan
        assert plan["predicted"]["other_node"] == 0, plan
        kinds = {change["kind"] for change in plan["changes"]}
        assert {"irq_affinity", "rps_cpus", "xps_cpus", "thread_affinity"} <= kinds, plan
        assert settings(host, server.pid) == before, "a plan changes nothing"

        host.write("/root/plan.json", json.dumps(plan).encode())
        dry = tuned(host, "apply", "/root/plan.json", "--dry-run")
        assert not dry["applied"] and len(dry["changes"]) == len(plan["changes"])
        assert settings(host, server.pid) == before, "nor a dry run"
        made = tuned(host, "apply", "/root/plan.json")
        assert made["applied"] and len(made["changes"]) == len(plan["changes"]), made

        placed(host, server.pid)
        states = [entry["state"] for entry in tuned(host, "status")["journal"]]
        assert states == ["applied"] * len(plan["changes"])
        assert tuned(host, "plan", *asked)["changes"] == [], "there is nothing left to do"
        near = crossing(host, talks)
        assert max(near.values()) < 0.01, near

        host.check("nearpath tune rollback")
        assert settings(host, server.pid) == before
        assert tuned(host, "status")["journal"] == []


def placed(host: Host, server: int) -> None:
    """Interrupts, XPS, RPS and the server are on the NIC's node."""
    queues = [
        queue for queue in json.loads(host.check("nearpath show queues --json"))["queues"] if queue["nic"] == "nic0"
    ]
    affinities = {cpu for queue in queues for cpu in cpus(queue["affinity"] or "")}
    assert affinities == NEAR, queues
    assert {queue["rps_cpus"] for queue in queues if queue["rps_cpus"] is not None} == {""}, queues
    senders = [queue["xps_cpus"] for queue in queues if queue["xps_cpus"]]
    assert sorted(cpu for mask in senders for cpu in cpus(mask)) == [0, 1, 2, 3], queues
    threads = host.check(f"grep -h Cpus_allowed_list /proc/{server}/task/*/status").split("\n")
    allowed = [line.split()[1] for line in threads if line]
    assert allowed and all(set(cpus(mask)) <= NEAR for mask in allowed), threads


def cpus(text: str) -> list[int]:
    """The CPUs of a cpulist."""
    parts = [part.split("-") for part in text.split(",") if part]
    return [cpu for part in parts for cpu in range(int(part[0]), int(part[-1]) + 1)]
