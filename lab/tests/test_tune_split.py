"""Interrupts and the application apart, on a host of two nodes with two last-level caches each.

The NIC is on node 1. The channels are reduced to the CPUs for interrupts first; then interrupts and the server are put
on that node, each on CPUs of their own: in one cache if the server fits there beside a core for interrupts, else with
such a core in each cache. What shares a cache is read from the guest's sysfs.
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
NIC = (Nic("igb", node=1),)
PORT = 5001


def numbers(cpulist: str) -> set[int]:
    """The CPUs of a list."""
    spans = [part.split("-") for part in cpulist.split(",") if part]
    return {cpu for span in spans for cpu in range(int(span[0]), int(span[-1]) + 1)}


def caches(host: Host) -> set[frozenset[int]]:
    """The CPUs of each third-level cache, as the guest's kernel says."""
    lists = host.check("cat /sys/devices/system/cpu/cpu*/cache/index3/shared_cpu_list").split("\n")
    return {frozenset(numbers(line)) for line in lists if line}


@lab(topology=CACHES, nics=NIC)
@lab(topology=CACHES_SMT, nics=NIC)
def test_interrupts_and_server_apart(host: Host) -> None:
    far, near = (host.machine.topology.cpus_of(node) for node in range(2))
    host.check(f"for irq in {IRQS}; do echo {near.stop - 1} >/proc/irq/$irq/smp_affinity_list || true; done")
    host.check("ovs-vsctl set Open_vSwitch . other_config:max-idle=600000")
    # Threads that share a CPU need one; those that run on all CPUs of a node need one each.
    divided(host, f"{far.stop - 1}", PORT, fits=True)
    divided(host, f"{far.start}-{far.stop - 1}", PORT + 1, fits=False)


def divided(host: Host, cpus: str, port: int, *, fits: bool) -> None:
    """A server on these CPUs is divided from the interrupts, and put back."""
    topology = host.machine.topology
    near = set(topology.cpus_of(1))
    own, other = sorted((cache for cache in caches(host) if cache <= near), key=min)
    assert len(caches(host)) == 4 and own | other == near, caches(host)
    server = start_server(host, cpus, port)
    with ExitStack() as stack:
        talks = [stack.enter_context(Conversation(host, "udp", host.machine.address(), port, 2))]
        misplaced = crossing(host, talks, port)
        assert misplaced["receive"] > 0.99, misplaced
        # Each flow has its thread by now.
        before = (everything(host), settings(host, server.pid))

        queues = topology.threads if fits else 2 * topology.threads
        asked = ["--nic", "nic0", "--pid", str(server.pid), "--mode", "sq_split"]
        plan = tuned(host, "plan", *asked)
        (channels,) = [change for change in plan["changes"] if change["kind"] == "channels"]
        assert channels["after"] == f"combined {queues}", plan
        host.write("/root/plan.json", json.dumps(plan).encode())
        tuned(host, "apply", "/root/plan.json")
        assert f"Combined:\t{queues}" in host.check("ethtool -l nic0").split("Current")[1]

        plan = tuned(host, "plan", *asked)
        assert not [change for change in plan["changes"] if change["kind"] == "channels"], plan
        assert plan["now"]["other_node"] > 0.5 and plan["predicted"]["other_node"] == 0, plan
        assert (plan["predicted"]["other_llc"] == 0) == fits, plan
        host.write("/root/plan.json", json.dumps(plan).encode())
        tuned(host, "apply", "/root/plan.json")
        irqs, readers = placed(host, server.pid)
        assert len(irqs) == queues and readers and not irqs & readers, (irqs, readers)
        together = [cache for cache in (own, other) if irqs | readers <= cache]
        assert bool(together) == fits and irqs | readers <= near, (irqs, readers)
        for cache in (own, other):
            assert bool(irqs & cache) == bool(readers & cache), (irqs, readers)
        assert tuned(host, "plan", *asked)["changes"] == [], "there is nothing left to do"
        after = crossing(host, talks, port)
        assert after["receive"] < 0.01 and max(after.values()) < 0.01, after

        host.check("nearpath tune rollback")
        assert (everything(host), settings(host, server.pid)) == before
        assert tuned(host, "status")["journal"] == []


def placed(host: Host, server: int) -> tuple[set[int], set[int]]:
    """The CPUs that the NIC's interrupts go to, and those where the server may run."""
    queues = [q for q in json.loads(host.check("nearpath show queues --json"))["queues"] if q["nic"] == "nic0"]
    lines = host.check(f"grep -h Cpus_allowed_list /proc/{server}/task/*/status").split("\n")
    readers = {cpu for line in lines if line for cpu in numbers(line.split()[1])}
    return {cpu for queue in queues for cpu in numbers(queue["affinity"] or "")}, readers
