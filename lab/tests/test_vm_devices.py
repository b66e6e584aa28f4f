"""`nearpath measure vm` of a virtual machine with a NIC of its own (VFIO): of its packets the host sees the interrupts.

The judges are the kernel's own counts and trace of the interrupt, whose clock is the TSC, and the guest, which is the
NIC's driver and notes the TSC of each packet.
"""

import re
from bisect import bisect_right
from statistics import median
from typing import Any

import pytest

from lab import Host, Nic
from lab.fixtures import lab
from lab.vms import Ended, pass_through, send, start_vm_on_device
from lab.waiting import ended, start_measuring

from .hosts import TWO_NODES
from .show import cpus
from .test_checks import commands, diagnosed
from .test_vm_late import SLOW, limit_cpu_time, start_hog

E1000E = (Nic("e1000e"), Nic("e1000e"))
IRQ_CPU, VCPU_CPU = 1, 2
INSTANCE = "/sys/kernel/tracing/instances/judge"


class Trace:
    """The interrupts of the device, and KVM's entries, in the kernel's trace."""

    def __init__(self, host: Host, irq: int) -> None:
        self.host = host
        host.check(
            f"mkdir -p {INSTANCE} && cd {INSTANCE} && echo x86-tsc >trace_clock && echo 8192 >buffer_size_kb"
            f" && echo 'irq == {irq}' >events/irq/irq_handler_entry/filter"
            " && echo 1 >events/irq/irq_handler_entry/enable && echo 1 >events/kvm/kvm_entry/enable"
        )
        self.mhz = float(re.findall(r"tsc: Detected ([\d.]+) MHz", host.check("dmesg"))[-1])

    def events(self, name: str) -> list[int]:
        """The times of an event so far, in TSC cycles."""
        lines = self.host.check(["cat", f"{INSTANCE}/trace"]).splitlines()
        return sorted(int(event[1]) for line in lines if (event := re.search(rf"\s(\d+): {name}: ", line)))

    def handled(self) -> int:
        """How often the interrupt's handler was called.

        /proc/interrupts may have fewer: an interrupt that arrives while another CPU is in the handler, as its affinity
        is changed, is not counted, and the handler is called again (handle_edge_irq(), kernel/irq/chip.c).
        """
        return len(self.events("irq_handler_entry"))

    def times(self, guest: Ended) -> list[float]:
        """For each interrupt with packets of `send` the time until the entry before the guest's handler, in ns."""
        raised, entries = self.events("irq_handler_entry"), self.events("kvm_entry")
        times = []
        for tsc in sorted({note.tsc for note in guest.numbered()}):
            entry = entries[bisect_right(entries, tsc) - 1]
            times.append((entry - raised[bisect_right(raised, entry) - 1]) * 1000 / self.mhz)
        return times


def interrupt_of(host: Host, device: str) -> tuple[int, int]:
    """The number of the device's interrupt and how often the kernel has counted it."""
    (line,) = [line for line in host.check("cat /proc/interrupts").splitlines() if f"({device})" in line]
    number, *counts = line.split()
    return int(number.rstrip(":")), sum(map(int, counts[: TWO_NODES.cpus]))


def only_interrupt(document: dict[str, Any], pid: int) -> dict[str, Any]:
    """The interrupt of the only virtual machine."""
    (vm,) = document["vms"]
    assert (vm["pid"], vm["queues"]) == (pid, []), vm
    (interrupt,) = vm["device_interrupts"]
    result: dict[str, Any] = interrupt
    return result


@lab(kernels=("6.1", "6.12", "7.2"), topology=TWO_NODES, nics=E1000E, iommu=True)
def test_interrupts_of_a_device_are_followed_into_the_guest(host: Host) -> None:
    device = pass_through(host, "nic0")
    vm = start_vm_on_device(host, device, "-c", str(VCPU_CPU))
    irq, _ = interrupt_of(host, device)
    host.write(f"/proc/irq/{irq}/smp_affinity_list", str(IRQ_CPU).encode())
    trace = Trace(host, irq)
    # Neither a tap nor vhost is there: their modules are not even loaded.
    measuring = start_measuring(host, "measure", "vm")
    send(host, 100, 20)
    document = ended(measuring)
    handled = trace.handled()
    guest = vm.end()

    assert len(guest.numbered()) == 100
    seen = only_interrupt(document, vm.pid)
    assert (seen["irq"], seen["device"]) == (irq, device) and device in seen["name"], seen
    with_packets = len({note.irq for note in guest.numbered()})
    # The network has some packets of its own, before and after the measurement, too.
    assert with_packets <= seen["interrupts"] <= handled, (with_packets, seen, handled)
    spans = {span["span"]: span for span in seen["spans"]}
    assert seen["set"] == spans["interrupt_to_kvm"]["count"] == seen["interrupts"], seen
    assert spans["whole"]["count"] == spans["kvm_to_guest"]["count"] == seen["set"], seen
    # An interrupt moves when it comes the next time.
    assert seen["handled_on"][str(IRQ_CPU)] >= 0.9 * seen["interrupts"], seen
    assert set(seen["entered_on"]) == {str(VCPU_CPU)}, seen
    assert seen["vcpus"] == [0] and seen["deferred"] == seen["posted"] == seen["lost"] == 0, seen

    entered, told = median(trace.times(guest)), spans["whole"]["p50_ns"]
    print(f"interrupt to entry: trace {entered:.0f} ns, nearpath {told} ns")
    # A bucket is 4.4% wide, and programs run between the events: more than 10 µs where emulation takes milliseconds.
    assert abs(entered - told) < max(10_000, 0.15 * entered), (entered, told)


@lab(kernels=("6.12",), topology=TWO_NODES, nics=E1000E, iommu=True)
def test_interrupts_off_the_node_of_the_vcpus_are_found_and_moved(host: Host) -> None:
    """Each way round: the finding's own command ends it, and it is not there before."""
    device = pass_through(host, "nic0")
    vm = start_vm_on_device(host, device, "-c", str(VCPU_CPU))
    irq, _ = interrupt_of(host, device)
    affinity = f"/proc/irq/{irq}/smp_affinity_list"

    def titles() -> list[str]:
        # An interrupt moves when it comes the next time.
        send(host, 20, 20)
        return [f["title"] for f in diagnosed(host) if f["check"] == "vm_device_irqs"]

    host.write(affinity, str(VCPU_CPU + 1).encode())
    assert titles() == []
    host.write(affinity, str(IRQ_CPU).encode())
    assert titles() == [f"tinyvm ({vm.pid}): 1 interrupt of its devices off the node of its vCPUs"]
    fixes = commands(host.run("nearpath diagnose --measure tcp --for 1s -v").out, "vm_device_irqs")
    assert [affinity in fix for fix in fixes] == [True], fixes
    host.check(["bash", "-c", fixes[0]])
    assert cpus(host.check(["cat", affinity]).strip()) <= set(TWO_NODES.cpus_of(1))
    assert titles() == []
    # The same with the vCPU on the other node.
    thread = host.check(f"grep -l KVM /proc/{vm.pid}/task/*/comm").split("/")[-2]
    host.check(["taskset", "-p", "-c", str(IRQ_CPU), thread])
    assert titles() == [f"tinyvm ({vm.pid}): 1 interrupt of its devices off the node of its vCPUs"]


@lab(kernels=("6.12",), topology=TWO_NODES, nics=E1000E, iommu=True, parameters=("threadirqs",))
def test_interrupts_that_threads_handle_are_followed_from_their_begin(host: Host) -> None:
    """A task keeps the thread of the interrupt from its CPU: the time from the interrupt to KVM has this."""
    device = pass_through(host, "nic0")
    vm = start_vm_on_device(host, device, "-c", str(VCPU_CPU))
    irq, _ = interrupt_of(host, device)
    thread = host.check(f"pgrep '^irq/{irq}-'").strip()
    host.write(f"/proc/irq/{irq}/smp_affinity_list", str(IRQ_CPU).encode())
    # Below the hog's priority.
    host.check(f"chrt -f -p 10 {thread} && taskset -p -c {IRQ_CPU} {thread}")
    _, before = interrupt_of(host, device)
    measuring = start_measuring(host, "measure", "vm")
    send(host, 20, 20)
    hog = start_hog(host, IRQ_CPU)
    send(host, 200, 20)
    document = ended(measuring)
    host.check(["kill", str(hog.pid)])
    _, after = interrupt_of(host, device)
    guest = vm.end()
    assert len(guest.numbered()) == 220
    seen = only_interrupt(document, vm.pid)
    assert len({note.irq for note in guest.numbered()}) <= seen["interrupts"] <= after - before, seen
    assert seen["set"] == seen["interrupts"], seen
    spans = {span["span"]: span for span in seen["spans"]}
    assert spans["whole"]["count"] == seen["set"], seen
    # The hog runs for 0.3 s of each 0.6 s, and interrupts come while it runs.
    late = sum(count for upper, count in spans["interrupt_to_kvm"]["buckets"] if upper >= 100_000_000)
    print(f"{late} of {seen['interrupts']} interrupts were late at their thread")
    assert late >= 5, spans["interrupt_to_kvm"]


@pytest.mark.parametrize(("fault", "part"), [("a task", "vcpu_waited"), ("a quota", "vcpu_throttled")])
@lab(kernels=("6.12",), topology=TWO_NODES, nics=E1000E, iommu=True)
def test_what_delays_interrupts_is_named(host: Host, fault: str, part: str) -> None:
    """In half of the time. The device waits for the guest: of each time one interrupt is late."""
    vm = start_vm_on_device(host, pass_through(host, "nic0"), "-c", str(VCPU_CPU))
    measuring = start_measuring(host, "measure", "vm", "--slow", SLOW)
    # A thread is known from its first interrupt on.
    send(host, 5, 40)
    job = start_hog(host, VCPU_CPU) if fault == "a task" else limit_cpu_time(host, vm.pid, "300000 600000")
    send(host, 400, 40)
    document = ended(measuring)
    host.check(["kill", str(job.pid)])
    assert len(vm.end().numbered()) == 405
    late = only_interrupt(document, vm.pid)["late"]
    print(late)
    interrupts = sum(found["packets"] for found in late["parts"])
    assert interrupts >= 10, late
    (named,) = [found for found in late["parts"] if found["part"] == part]
    assert named["packets"] >= 0.95 * interrupts, late
    # The parts add up to the whole: the largest of nine is at least a ninth.
    assert all(found["time_ns"] >= found["packets"] * 100_000_000 / 9 for found in late["parts"]), late
    if fault == "a task":
        assert named["behind"]["hog"] >= 0.95 * interrupts, late
