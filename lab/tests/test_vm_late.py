"""`nearpath measure vm --slow`: why packets into a virtual machine are late.

The faults are set by the test, so that the cause of most late packets is known: a task that takes the CPU of the vhost
worker, or of the vCPU, for half of the time.
"""

from typing import Any

import pytest

from lab import Host, Job
from lab.fixtures import lab
from lab.vms import send, start_vm, wait_until_taken, worker_of
from lab.waiting import ended, start_measuring, wait_until

from .hosts import IGB, TWO_NODES
from .test_vm import VCPU_CPU, VHOST_CPU, packets_seen

# Longer than emulation needs for a packet, and shorter than what the fault takes at once.
SLOW = "100ms"
# Runs at real-time priority for 0.3 s of each 0.6 s: named hog, and not nearpath's or the guest's.
HOG = """
import ctypes, time
ctypes.CDLL(None).prctl(15, b"hog", 0, 0, 0)
open("/tmp/hog.runs", "w").close()
while True:
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        pass
    time.sleep(0.3)
"""


def start_hog(host: Host, cpu: int) -> Job:
    """Takes a CPU again and again."""
    host.check("rm -f /tmp/hog.runs")
    hog = host.start(["chrt", "-f", "50", "taskset", "-c", str(cpu), "python3", "-c", HOG])
    wait_until(lambda: host.run(["test", "-e", "/tmp/hog.runs"]).status == 0, "it has its name")
    return hog


def limit_cpu_time(host: Host, vm: int, quota: str) -> Job:
    """A quota for the virtual machine (`cpu.max`), which another task of its cgroup uses up."""
    group = "/sys/fs/cgroup/limited"
    host.check(f"echo +cpu >/sys/fs/cgroup/cgroup.subtree_control; mkdir {group}")
    host.check(f"echo '{quota}' >{group}/cpu.max; echo {vm} >{group}/cgroup.procs")
    # On a CPU that neither of the threads runs on.
    other = max(set(TWO_NODES.cpus_of(1)) - {VHOST_CPU, VCPU_CPU})
    return host.start(f"echo $$ >{group}/cgroup.procs && exec taskset -c {other} sh -c 'while :; do :; done'")


def late_of(host: Host, cpu: int | None, quota: str | None = None) -> tuple[dict[str, Any], int]:
    """The late packets of 200 while a CPU is taken, or a quota used up, and how many packets there were."""
    vm = start_vm(host, "-c", str(VCPU_CPU))
    host.check(f"taskset -p -c {VHOST_CPU} {worker_of(host, vm)}")
    measuring = start_measuring(host, "measure", "vm", "--slow", SLOW)
    # A thread is known from its first packet on.
    send(host, 5, 40)
    wait_until_taken(host)
    jobs = [start_hog(host, cpu)] if cpu is not None else []
    jobs += [limit_cpu_time(host, vm.pid, quota)] if quota else []
    send(host, 200, 40)
    wait_until_taken(host)
    document = ended(measuring)
    for job in jobs:
        host.check(["kill", str(job.pid)])
    guest = vm.end()
    assert document["not_available"] == []
    (one,) = document["vms"]
    (queue,) = one["queues"]
    assert len(guest.numbered()) == 205
    late: dict[str, Any] = queue["late"]
    print(late)
    return late, queue["taken"]


@pytest.mark.parametrize(("cpu", "part"), [(VHOST_CPU, "vhost_waited"), (VCPU_CPU, "vcpu_waited")])
@lab(kernels=("6.1", "6.12", "7.2"), topology=TWO_NODES, nics=IGB)
def test_a_task_on_the_cpu_of_vhost_or_the_vcpu_is_named(host: Host, cpu: int, part: str) -> None:
    late, _ = late_of(host, cpu)
    packets = sum(found["packets"] for found in late["parts"])
    assert packets >= 30, "it takes half of the time"
    (named,) = [found for found in late["parts"] if found["part"] == part]
    assert named["behind"].get("hog", 0) >= 0.95 * packets, late


@pytest.mark.parametrize("cpu", [VHOST_CPU, VCPU_CPU])
@lab(kernels=("6.12",), topology=TWO_NODES, nics=IGB)
def test_a_burst_that_waits_is_followed(host: Host, cpu: int) -> None:
    """Hundreds of packets wait at the tap, or with their interrupts for the vCPU."""
    vm = start_vm(host, "-c", str(VCPU_CPU))
    host.check(f"taskset -p -c {VHOST_CPU} {worker_of(host, vm)}")
    start_hog(host, cpu)
    seen = packets_seen(host, vm, 2000, 1e6)
    received = len(seen.guest.numbered())
    assert received >= 200, "the ring of the tap is full at times, but not always"
    assert seen.spans()["whole"]["count"] >= 0.99 * received, (received, seen.queue, seen.document)


@lab(kernels=("6.1", "6.12", "7.2"), topology=TWO_NODES, nics=IGB)
def test_a_quota_is_named(host: Host) -> None:
    """The CPUs of vhost and of the vCPU are idle meanwhile, so no other task can be blamed."""
    late, _ = late_of(host, None, "300000 600000")
    packets = sum(found["packets"] for found in late["parts"])
    assert packets >= 30, "it is used up for half of the time"
    throttled = sum(found["packets"] for found in late["parts"] if found["part"].endswith("_throttled"))
    assert throttled >= 0.95 * packets, late


@pytest.mark.parametrize("cpu", [VHOST_CPU, VCPU_CPU])
@lab(kernels=("6.1", "6.12", "7.2"), topology=TWO_NODES, nics=IGB)
def test_a_quota_too_short_to_make_packets_late_is_not_blamed(host: Host, cpu: int) -> None:
    """It takes 20 ms of each 100 ms, the task 300 ms at once: packets are late from 100 ms on."""
    late, _ = late_of(host, cpu, "80000 100000")
    packets = sum(found["packets"] for found in late["parts"])
    assert packets >= 30, "the task takes half of the time"
    named = sum(found["behind"].get("hog", 0) for found in late["parts"])
    assert named >= 0.95 * packets, late


@lab(kernels=("6.1", "6.12", "7.2"), topology=TWO_NODES, nics=IGB)
def test_without_a_fault_few_packets_wait_for_a_cpu(host: Host) -> None:
    late, taken = late_of(host, None)
    ends = ("_waited", "_throttled")
    waited = sum(found["packets"] for found in late["parts"] if found["part"].endswith(ends))
    assert waited <= 0.1 * taken, late
