"""`nearpath measure vm` of a Linux guest whose interface a process serves (vhost-user): the host sees eventfds alone.

The judges are the kernel's own trace of writes to eventfds and of KVM, the guest's count of interrupts, and a backend
that counts what it writes, and the kicks that it gets.
"""

import re
from collections import Counter
from collections.abc import Callable
from statistics import median
from typing import Any

import pytest

from lab import Host, Job
from lab.fixtures import lab
from lab.waiting import ended, start_measuring

from . import dpdk
from .hosts import IGB, TWO_NODES
from .linux_guests import payload
from .test_vm_guest import probe
from .test_vm_late import SLOW, start_hog
from .test_vms import shown
from .vhost_user import (
    PMD_CPU,
    VCPU_CPU,
    Backend,
    Switched,
    in_guest,
    start_guest_of_ovs,
    start_guest_of_testpmd,
    start_served_guest,
)

__all__ = ["payload"]

# A process with an eventfd of its own.
OTHERS = """
import os, time
eventfd = os.eventfd(0)
while True:
    os.eventfd_write(eventfd, 1)
    os.eventfd_read(eventfd)
    time.sleep(0.001)
"""
INSTANCE = "/sys/kernel/tracing/instances/judge"
EVENT = re.compile(r"-(\d+) +\[\d+\] \S+ +([\d.]+): (\w+): (.*)")


class Trace:
    """Writes of a thread to eventfds, and what KVM does then, in the kernel's own trace."""

    def __init__(self, host: Host, writer: int, vcpu: int) -> None:
        self.host, self.writer, self.vcpu = host, writer, vcpu
        threads = f"common_pid == {writer} || common_pid == {vcpu}"
        host.check(
            "for probe in 'written eventfd_write' 'listened irqfd_wakeup';"
            ' do echo "p:judge/$probe" >>/sys/kernel/tracing/kprobe_events; done'
            f" && mkdir -p {INSTANCE} && cd {INSTANCE} && echo mono >trace_clock && echo 8192 >buffer_size_kb"
            " && for event in judge/written judge/listened kvm/kvm_apic_accept_irq kvm/kvm_inj_virq kvm/kvm_entry;"
            f" do echo '{threads}' >events/$event/filter && echo 1 >events/$event/enable; done"
        )

    def _events(self) -> list[tuple[int, float, str, str]]:
        """Thread, time in ns, name and fields."""
        lines = self.host.check(f"echo 0 >{INSTANCE}/tracing_on; cat {INSTANCE}/trace").splitlines()
        found = [EVENT.search(line) for line in lines]
        return [(int(event[1]), float(event[2]) * 1e9, event[3], event[4]) for event in found if event]

    def listened(self) -> Counter[str]:
        """How many writes KVM listened to, and how many interrupts it set then.

        A guest that moves an interrupt to another CPU has it detached: KVM sets what is written meanwhile afterwards.
        """
        return Counter(event for thread, _, event, _ in self._events() if thread == self.writer)

    def times(self) -> dict[int, list[float]]:
        """By vector, for each write the time until the vCPU is entered with its interrupt, in ns."""
        written = 0.0
        waiting: dict[int, list[float]] = {}
        injected: set[int] = set()
        times: dict[int, list[float]] = {}
        for thread, at, event, fields in self._events():
            if thread == self.writer and event == "written":
                written = at
            elif (
                thread == self.writer and event == "kvm_apic_accept_irq" and (vector := re.search(r"vec (\d+)", fields))
            ):
                # Of several that wait, the guest gets one.
                waiting.setdefault(int(vector[1]), []).append(written)
            elif thread == self.vcpu and event == "kvm_inj_virq" and (vector := re.search(r"0x(\w+)", fields)):
                injected.add(int(vector[1], 16))
            elif thread == self.vcpu and event == "kvm_entry":
                for number in injected & waiting.keys():
                    times.setdefault(number, []).extend(at - since for since in waiting.pop(number))
                injected.clear()
        return times


def written_to(document: dict[str, Any], vm: Job, backend: int) -> list[dict[str, Any]]:
    """The interrupts of the only virtual machine, which only this process writes."""
    (one,) = document["vms"]
    assert (one["pid"], one["queues"], document["lost"]) == (vm.pid, [], 0), document
    found: list[dict[str, Any]] = one["backend_interrupts"]
    assert {interrupt["pid"] for interrupt in found} == {backend}, found
    return found


def span(interrupt: dict[str, Any], kind: str) -> dict[str, Any]:
    """The times of a span."""
    (found,) = [span for span in interrupt["spans"] if span["span"] == kind]
    return dict(found)


def interrupts_in_guest(host: Host) -> Counter[str]:
    """The interrupts of the interface that the guest has counted, by queue."""
    said = host.check(in_guest("cat /proc/interrupts"))
    return Counter(
        {found[2]: int(found[1]) for found in re.finditer(r"(\d+) +PCI-MSI\S* .*(virtio\d+-\S+put.0)", said)}
    )


@pytest.mark.parametrize("start", [start_guest_of_testpmd, start_guest_of_ovs])
@lab(kernels=("6.12",), topology=dpdk.TWO_NODES, nics=IGB, variant="dpdk")
def test_interrupts_of_a_switch_are_followed_into_the_guest(host: Host, start: Callable[[Host], Switched]) -> None:
    comm, pid, worker, vm = start(host)
    assert probe(host, 10, "1s")["received"] >= 5
    (one,) = shown(host)["vms"]
    ((process, eventfds),) = [(backend["pid"], backend["eventfds"]) for backend in one["backends"]]
    assert (process, len(eventfds)) == (pid, 4), one
    assert f"vhost-user by {comm} {pid} (4 eventfds)" in host.check("nearpath show vms")
    (vcpu,) = [vcpu["thread"]["tid"] for vcpu in one["vcpus"]]

    before = interrupts_in_guest(host)
    trace = Trace(host, worker, vcpu)
    measuring = start_measuring(host, "measure", "vm", "--transmit")
    received = probe(host, 20, "10s")["received"]
    document = ended(measuring)
    times = trace.times()
    counted = interrupts_in_guest(host) - before

    found = written_to(document, vm, pid)
    print(received, counted, {vector: (len(all), median(all)) for vector, all in times.items()})
    # Of packets that are received, and of those that were sent.
    assert received >= 180 and [len(found), len(times)] == [2, 2], found
    # Numbers, vectors and names are in the order of the queues.
    for interrupt, (vector, of_trace), queue in zip(found, sorted(times.items()), sorted(counted), strict=True):
        whole = span(interrupt, "whole")
        print(interrupt["eventfd"], vector, interrupt["interrupts"], whole["count"], whole["p50_ns"])
        assert interrupt["eventfd"] in eventfds and interrupt["tid"] == worker, interrupt
        # The trace began before, and ended later; the guest's counts were read, too. Packets that come while the
        # guest takes others need no interrupt.
        assert interrupt["interrupts"] <= len(of_trace) <= interrupt["interrupts"] + 10, interrupt
        assert received / 2 <= interrupt["interrupts"] and len(of_trace) <= counted[queue], (interrupt, counted)
        assert interrupt["set"] == interrupt["interrupts"] == whole["count"], interrupt
        assert (set(interrupt["handled_on"]), set(interrupt["entered_on"])) == ({str(PMD_CPU)}, {str(VCPU_CPU)})
        # A bucket is 4.4% wide, and the trace's own probes run before and between nearpath's programs.
        assert abs(median(of_trace) - whole["p50_ns"]) < max(60_000, 0.2 * median(of_trace)), interrupt
    # The switch polls the rings.
    (kicks,) = document["vms"][0]["backend_kicks"]
    assert kicks == {"pid": pid, "comm": comm, "eventfds": {}}
    printed = host.check("nearpath measure vm --transmit --for 2s")
    assert f"0 kicks for {comm} {pid}: it polls the rings" in printed, printed


@lab(kernels=("6.1", "6.12", "7.2"), topology=TWO_NODES, nics=IGB)
def test_writes_and_kicks_of_a_backend_are_counted(host: Host) -> None:
    """Of other processes that write to eventfds, and of the virtual machine's own, none is counted."""
    backend = Backend(host)
    # From before the guest begins, so that all of its kicks are counted.
    host.check("modprobe kvm_amd")
    measuring = start_measuring(host, "measure", "vm", "--transmit")
    others = host.start(["python3", "-c", OTHERS])
    vm = start_served_guest(host)
    (vcpu,) = shown(host)["vms"][0]["vcpus"]
    trace = Trace(host, backend.job.pid, vcpu["thread"]["tid"])
    backend.ask("write 150 50 0")
    asked = backend.ask("write 40 50 1")
    host.check(["kill", str(others.pid)])
    document = ended(measuring)
    listened = trace.listened()
    print(listened, asked)

    assert asked["written"] == {"0": 150, "1": 40} and 180 <= listened["listened"] <= 190
    found = written_to(document, vm, backend.job.pid)
    # A program that is preempted by itself loses an event, and says so: the other process writes often.
    lost = document["events_lost"]
    assert lost <= 10 and len(found) == 2, (lost, found)
    assert listened["listened"] - lost <= sum(one["interrupts"] for one in found) <= listened["listened"], found
    assert listened["kvm_apic_accept_irq"] - lost <= sum(one["set"] for one in found), found
    for interrupt, count in zip(found, (150, 40), strict=True):
        whole = span(interrupt, "whole")
        assert (interrupt["comm"], interrupt["tid"]) == ("python3", backend.job.pid), interrupt
        assert count - 5 <= interrupt["interrupts"] <= count, interrupt
        assert interrupt["interrupts"] == interrupt["set"] + interrupt["deferred"], interrupt
        assert whole["count"] == interrupt["set"], interrupt
        assert set(interrupt["entered_on"]) == {str(VCPU_CPU)} and interrupt["vcpus"] == [0], interrupt
    (kicks,) = document["vms"][0]["backend_kicks"]
    now = backend.ask("counts")["kicked"]
    print(kicks, asked, now)
    assert (kicks["pid"], kicks["comm"]) == (backend.job.pid, "python3")
    # QEMU itself signals each ring once when it starts it. The guest may have kicked again at the end.
    counts = [kicks["eventfds"][number] for number in sorted(kicks["eventfds"], key=int)]
    assert len(counts) == 2, kicks
    for ring, count in enumerate(counts):
        assert asked["kicked"][str(ring)] <= count + 1 <= now[str(ring)], (kicks, asked, now)


@lab(kernels=("6.12",), topology=TWO_NODES, nics=IGB)
def test_what_delays_interrupts_of_a_backend_is_named(host: Host) -> None:
    backend = Backend(host)
    vm = start_served_guest(host)
    measuring = start_measuring(host, "measure", "vm", "--slow", SLOW)
    # A thread is known from its first interrupt on.
    backend.ask("write 5 40 0")
    hog = start_hog(host, VCPU_CPU)
    backend.ask("write 400 40 0")
    document = ended(measuring)
    host.check(["kill", str(hog.pid)])
    (interrupt,) = written_to(document, vm, backend.job.pid)
    assert 400 <= interrupt["interrupts"] <= 405
    late = interrupt["late"]
    print(late)
    packets = sum(part["packets"] for part in late["parts"])
    assert packets >= 50, "it takes the vCPU's CPU for half of the time"
    (named,) = [part for part in late["parts"] if part["part"] == "vcpu_waited"]
    assert named["packets"] >= 0.95 * packets and named["behind"]["hog"] >= 0.95 * packets, late
