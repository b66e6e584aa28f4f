"""Interrupts and the application apart, on a host of two nodes with two last-level caches each.

The NIC is on node 1. The channels are reduced to the CPUs for interrupts first; then interrupts and the server are put
into one cache of that node, each on CPUs of their own. What shares a cache is read from the guest's sysfs.
"""

import json
from contextlib import ExitStack

from lab import Host, Nic, Topology
from lab.fixtures import lab

from .changes import IRQS
from .conversations import Conversation, start_server
from .test_tune import crossing, settings, tuned
from .test_tune_ethtool import everything

CACHES = Topology(cores=(4, 4), llcs=2, memory_mib=320)
CACHES_SMT = Topology(cores=(4, 4), llcs=2, threads=2, memory_mib=320)
PORT = 5001


def numbers(cpulist: str) -> set[int]:
    """The CPUs of a list."""
    spans = [part.split("-") for part in cpulist.split(",") if part]
    return {cpu for span in spans for cpu in range(int(span[0]), int(span[-1]) + 1)}


def caches(host: Host) -> set[frozenset[int]]:
    """The CPUs of each third-level cache, as the guest's kernel says."""
    lists = host.check("cat /sys/devices/system/cpu/cpu*/cache/index3/shared_cpu_list").split("\n")
    return {frozenset(numbers(line)) for line in lists if line}


@lab(topology=CACHES, nics=(Nic("igb", node=1),))
@lab(topology=CACHES_SMT, nics=(Nic("igb", node=1),))
def test_interrupts_and_server_apart_in_one_cache(host: Host) -> None:
    topology = host.machine.topology
    assert len(caches(host)) == 4, caches(host)
    far = topology.cpus_of(0)
    host.check(f"for irq in {IRQS}; do echo {far.start} >/proc/irq/$irq/smp_affinity_list || true; done")
    host.check("ovs-vsctl set Open_vSwitch . other_config:max-idle=600000")
    server = start_server(host, str(far.stop - 1), PORT)
    with ExitStack() as stack:
        address = host.machine.address()
        talks = [stack.enter_context(Conversation(host, "udp", address, PORT, 2))]
        misplaced = crossing(host, talks)
        before = (everything(host), settings(host, server.pid))

        asked = ["--nic", "nic0", "--pid", str(server.pid), "--mode", "sq_split"]
        plan = tuned(host, "plan", *asked)
        (channels,) = [change for change in plan["changes"] if change["kind"] == "channels"]
        assert channels["after"] == f"combined {topology.threads}", plan
        host.write("/root/plan.json", json.dumps(plan).encode())
        tuned(host, "apply", "/root/plan.json")
        assert f"Combined:\t{topology.threads}" in host.check("ethtool -l nic0").split("Current")[1]

        plan = tuned(host, "plan", *asked)
        assert not [change for change in plan["changes"] if change["kind"] == "channels"], plan
        host.write("/root/plan.json", json.dumps(plan).encode())
        tuned(host, "apply", "/root/plan.json")
        queues = [q for q in json.loads(host.check("nearpath show queues --json"))["queues"] if q["nic"] == "nic0"]
        irqs = {cpu for queue in queues for cpu in numbers(queue["affinity"] or "")}
        lines = host.check(f"grep -h Cpus_allowed_list /proc/{server.pid}/task/*/status").split("\n")
        threads = {cpu for line in lines if line for cpu in numbers(line.split()[1])}
        assert irqs and threads and not irqs & threads, (irqs, threads)
        assert len(irqs) == topology.threads, queues
        together = [cache for cache in caches(host) if irqs | threads <= cache]
        assert together and together[0] <= set(topology.cpus_of(1)), (irqs, threads, caches(host))
        assert tuned(host, "plan", *asked)["changes"] == [], "there is nothing left to do"
        near = crossing(host, talks)
        assert max(near.values()) < 0.01 < max(misplaced.values()), (misplaced, near)

        host.check("nearpath tune rollback")
        assert (everything(host), settings(host, server.pid)) == before
        assert tuned(host, "status")["journal"] == []
