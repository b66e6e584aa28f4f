"""CPUs isolated without a reboot, and XPS by traffic class: applied, effective, verified, and undone to the byte.

What is effective is judged by the kernel: the CPUs that tasks of other cgroups may run on, and the queue that each
packet is sent on, as its trace events record it.
"""

import json
import re

from lab import Host
from lab.fixtures import lab

from . import packet_trace
from .changes import QUEUES
from .conversations import start_server
from .hosts import IGB, TWO_NODES
from .test_tune import tuned
from .test_tune_split import numbers

PORT = 5001
CGROUPS = "/sys/fs/cgroup"
SERVER = f"{CGROUPS}/app"
# Of the NIC's node: the first CPU is for the interrupts.
_, OWN = TWO_NODES.cpus_of(0)
OTHERS = set(range(TWO_NODES.cpus)) - {OWN}

# What isolation changes, every byte; the file in /etc is gone again.
STATE = (
    f"head -v -n -0 {SERVER}/cpuset.cpus {SERVER}/cpuset.mems {SERVER}/cpuset.cpus.partition"
    f" {CGROUPS}/cpuset.cpus.isolated /sys/devices/virtual/workqueue/cpumask /proc/irq/default_smp_affinity"
    " /proc/irq/*/smp_affinity_list /proc/sys/vm/stat_interval /proc/sys/kernel/timer_migration"
    " /sys/class/net/*/queues/*/?ps_cpus; ls /etc/default/grub.d"
)

# Datagrams from each CPU. Arguments: address, priority, bytes.
SENDER = """
import os, socket, sys

for cpu in sorted(os.sched_getaffinity(0)):
    os.sched_setaffinity(0, {cpu})
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, int(sys.argv[2]))
    for _ in range(20):
        sender.sendto(bytes(int(sys.argv[3])), (sys.argv[1], 9))
"""
PACKETS = 20
PRIORITIES = (0, 6)
# The two have lengths of their own.
PAYLOAD, HEADERS = 300, 14 + 20 + 8
SENT = re.compile(r"\[(\d+)\].*: net_dev_start_xmit: dev=nic0 queue_mapping=(\d+)")


@lab(topology=TWO_NODES, nics=IGB)
def test_a_partition_has_its_cpu_for_itself(host: Host) -> None:
    server = start_server(host, str(OWN), PORT)
    host.check(f"mountpoint -q {CGROUPS} || mount -t cgroup2 none {CGROUPS}; mkdir -p {SERVER} /etc/default/grub.d")
    host.check(f"echo +cpuset >{CGROUPS}/cgroup.subtree_control")
    host.check(f"echo {OWN} >{SERVER}/cpuset.cpus && echo 0 >{SERVER}/cpuset.mems")
    host.check(f"echo {server.pid} >{SERVER}/cgroup.procs")
    other = host.start(["sleep", "1000"])
    assert allowed(host, other.pid) == OTHERS | {OWN}
    before = host.run(STATE).out

    asked = ["--nic", "nic0", "--pid", str(server.pid), "--goal", "isolation", "--app-cpus", str(OWN), "--cpuset"]
    # A plan that changes the channels has nothing else for the NIC.
    asked += ["--channels", "keep"]
    plan = tuned(host, "plan", *asked)
    kinds = {change["kind"]: change for change in plan["changes"]}
    (partition,) = [change for change in plan["changes"] if change["target"].startswith("cpuset.cpus.partition")]
    assert (partition["before"], partition["after"]) == ("member", "isolated"), plan
    assert {"workqueue_cpumask", "default_smp_affinity"} <= kinds.keys(), plan
    assert host.run(STATE).out == before, "a plan changes nothing"

    host.write("/root/plan.json", json.dumps(plan).encode())
    tuned(host, "apply", "/root/plan.json")
    assert host.check(f"cat {CGROUPS}/cpuset.cpus.isolated").strip() == str(OWN)
    # The kernel moved the other task off it, and not the server.
    assert allowed(host, other.pid) == OTHERS
    assert allowed(host, server.pid) == {OWN}
    for mask in ("/sys/devices/virtual/workqueue/cpumask", "/proc/irq/default_smp_affinity"):
        assert int(host.check(f"cat {mask}").replace(",", ""), 16) & 1 << OWN == 0, mask
    assert host.check("sysctl -n vm.stat_interval kernel.timer_migration").split() == ["10", "0"]
    host.check("nearpath tune verify")
    # CPUs isolated in this way are in no file of /sys/devices/system/cpu.
    assert host.check("cat /sys/devices/system/cpu/isolated").strip() == ""
    assert tuned(host, "plan", *asked)["changes"] == [], "there is nothing left to do"

    host.check("nearpath tune rollback")
    assert host.run(STATE).out == before
    assert allowed(host, other.pid) == OTHERS | {OWN}
    assert tuned(host, "status")["journal"] == []


@lab(topology=TWO_NODES, nics=IGB)
def test_each_class_of_mqprio_sends_from_all_cpus(host: Host) -> None:
    host.check(
        "tc qdisc replace dev nic0 root handle 100: mqprio num_tc 2"
        " map 0 0 0 0 0 0 1 1 0 0 0 0 0 0 0 0 queues 2@0 2@2 hw 0"
    )
    before = host.run(STATE).out
    plan = tuned(host, "plan", "--nic", "nic0")
    assert [change for change in plan["changes"] if change["kind"] == "xps_cpus"], plan
    host.write("/root/plan.json", json.dumps(plan).encode())
    tuned(host, "apply", "/root/plan.json")
    host.check("nearpath tune verify")
    masks = [int(host.check(f"cat {QUEUES}/tx-{queue}/xps_cpus").replace(",", ""), 16) for queue in range(4)]
    every = (1 << TWO_NODES.cpus) - 1
    for first, second in ((0, 1), (2, 3)):
        assert masks[first] | masks[second] == every and masks[first] & masks[second] == 0, masks

    sent = queues_of_packets(host)
    assert len(sent) == 2 * TWO_NODES.cpus, sent
    for (cpu, priority), queue in sent.items():
        assert queue in ((2, 3) if priority == 6 else (0, 1)), sent
        assert masks[queue] & 1 << cpu, (masks, sent)

    host.check("nearpath tune rollback")
    assert host.run(STATE).out == before
    assert "mqprio" in host.check("tc qdisc show dev nic0 root")


@lab(topology=TWO_NODES, nics=IGB)
def test_frequencies_that_nobody_sets_are_named(host: Host) -> None:
    plan = tuned(host, "plan", "--nic", "nic0", "--performance", "--wakeup-latency", "5")
    assert host.run("ls /sys/devices/system/cpu/cpufreq/policy*").status != 0
    assert any("no cpufreq" in note for note in plan["notes"]), plan["notes"]
    assert not [change for change in plan["changes"] if change["kind"] == "scaling_governor"], plan


def allowed(host: Host, pid: int) -> set[int]:
    """The CPUs that a process may run on, as the kernel says."""
    return numbers(host.check(f"grep Cpus_allowed_list /proc/{pid}/status").split()[1])


def queues_of_packets(host: Host) -> dict[tuple[int, int], int]:
    """Sends packets of two priorities from each CPU: the queue of nic0 that they left by."""
    found: dict[tuple[int, int], int] = {}
    for priority in PRIORITIES:
        packet_trace.start(host, ("net_dev_start_xmit",), PAYLOAD + priority + HEADERS)
        host.check(["python3", "-c", SENDER, host.peer.address(), str(priority), str(PAYLOAD + priority)])
        lines = SENT.findall(host.check(f"cat {packet_trace.TRACEFS}/trace"))
        assert len(lines) == PACKETS * TWO_NODES.cpus, lines
        for cpu, queue in lines:
            key = (int(cpu), priority)
            assert found.setdefault(key, int(queue)) == int(queue), f"packets of {key} left by several queues: {lines}"
    return found
