"""`nearpath measure vm --transmit`: answers of a virtual machine, from its guest's kick to the host's NIC; macvtaps.

The judges are the guest, which counts its answers and kicks and notes the TSC of each kick, the sender, which counts
answers, and the raw trace: of the guest's writes to its port, and of the NIC.
"""

import re
from bisect import bisect_left
from statistics import median
from typing import Any, NamedTuple

from lab import Host
from lab.fixtures import lab
from lab.vms import TAP, TinyVm, Vcpu, send, start_vm, start_vm_on_macvtap
from lab.waiting import ended, start_measuring

from .hosts import IGB, TWO_NODES
from .test_vm import VCPU_CPU

NIC = "nic0"
# Of the guest's kicks of its answers (TX_PORT in tinyvm.c).
PORT = 0x5002
WARM_UP = 5
INSTANCE = "/sys/kernel/tracing/instances/judge"


class Answered(NamedTuple):
    """What nearpath, the guest and the sender say of the same packets."""

    document: dict[str, Any]
    vcpu: Vcpu
    before: Vcpu  # What it had counted before.
    answers: int  # That have reached the sender.

    @property
    def queue(self) -> dict[str, Any]:
        """The only one."""
        (one,) = self.document["vms"]
        (queue,) = one["queues"]
        found: dict[str, Any] = queue
        return found

    @property
    def sent(self) -> int:
        """Answers of the guest."""
        return self.vcpu.sent - self.before.sent

    @property
    def kicks(self) -> list[int]:
        """The TSC of each kick of the guest because of answers."""
        return self.vcpu.kick_notes[self.before.tx_kicks :]

    @property
    def transmit(self) -> dict[str, Any]:
        """The transmit direction."""
        found: dict[str, Any] = self.queue["transmit"]
        return found

    def spans(self) -> dict[str, dict[str, Any]]:
        """Of the transmit direction, by name."""
        return {span["span"]: span for span in self.transmit["spans"]}


def answered(host: Host, vm: TinyVm, count: int, rate: float) -> Answered:
    """Measures while packets are sent to a virtual machine and answered, and ends it.

    The flows are known to Open vSwitch before: the first packets of a flow pass its daemon, and are others then.
    """
    host.check("ovs-vsctl set Open_vSwitch . other_config:max-idle=600000")
    assert send(host, WARM_UP, 20, answered=True) == WARM_UP
    measuring = start_measuring(host, "measure", "vm", "--transmit")
    answers = send(host, count, rate, answered=True)
    document = ended(measuring)
    (vcpu,) = vm.end().vcpus
    assert vcpu.numbered()[WARM_UP].number == 0
    notes = vcpu.notes[: vcpu.notes.index(vcpu.numbered()[WARM_UP])]
    first = vcpu.numbered()[WARM_UP].tsc
    kicks = [kick for kick in vcpu.kick_notes if kick < first]
    before = Vcpu(0, len(notes), 0, WARM_UP, 0, len(kicks), notes, kicks)
    assert document["not_available"] == []
    (one,) = document["vms"]
    (queue,) = one["queues"]
    assert (one["pid"], queue["tap"], queue["queue"]) == (vm.pid, TAP, 0)
    return Answered(document, vcpu, before, answers)


def assert_all_sent(seen: Answered, *, share: float = 1) -> None:
    """Every answer of the guest was followed to the NIC, and those that a kick announced from this kick."""
    transmit, spans = seen.transmit, seen.spans()
    assert transmit["sent"] == seen.sent
    assert share * transmit["sent"] <= transmit["reached_nic"] == spans["tap_to_nic"]["count"] <= transmit["sent"]
    assert share * seen.answers <= transmit["reached_nic"]
    assert spans["vhost_to_tap"]["count"] == transmit["sent"]
    # Kicks that come before the worker runs are one.
    assert 0 < transmit["kicks"] == spans["kick_to_vhost"]["count"] <= len(seen.kicks), (transmit, seen.kicks)
    assert share * transmit["kicked"] <= spans["whole"]["count"] <= transmit["kicked"] <= transmit["sent"]


def assert_all_received(seen: Answered) -> None:
    """Every packet that the guest has taken was followed to it."""
    numbered = len(seen.vcpu.numbered()) - WARM_UP
    # Packets of others may come from the moment that measuring starts, which is after the last packet to warm up.
    warm = seen.vcpu.notes.index(seen.vcpu.numbered()[WARM_UP - 1])
    strays = len(seen.vcpu.notes) - (warm + 1) - numbered
    (whole,) = [span for span in seen.queue["spans"] if span["span"] == "whole"]
    assert whole["count"] == seen.queue["taken"], seen.document
    assert numbered <= seen.queue["taken"] <= numbered + strays, seen.document


@lab(kernels=("6.12",), topology=TWO_NODES, nics=IGB)
def test_every_answer_is_followed_to_the_nic(host: Host) -> None:
    assert_every_answer_followed(host)


@lab(kernels=("6.1", "7.2"), topology=TWO_NODES, nics=IGB)
def test_every_answer_is_followed_on_another_kernel(host: Host) -> None:
    assert_every_answer_followed(host)


def assert_every_answer_followed(host: Host) -> None:
    """As many as the guest has sent, the peer has received and nearpath has followed."""
    vm = start_vm(host, "-e", "-c", str(VCPU_CPU))
    seen = answered(host, vm, 100, 50)
    assert seen.answers == seen.sent == 100, seen
    assert_all_received(seen)
    assert_all_sent(seen)
    assert seen.transmit["cpus"]["kick"] == {str(VCPU_CPU): seen.transmit["kicks"]}
    assert seen.transmit["workers"] == seen.queue["workers"]
    # Few come while the worker runs: most were announced.
    assert seen.transmit["kicked"] >= 50, seen.transmit


@lab(kernels=("6.1", "6.12", "7.2"), topology=TWO_NODES, nics=IGB)
def test_of_a_burst_nearly_all_answers_are_followed(host: Host) -> None:
    vm = start_vm(host, "-e", "-c", str(VCPU_CPU))
    seen = answered(host, vm, 2000, 1e6)
    assert seen.sent >= 200, "the emulated NIC drops most of a burst at times, but not all"
    assert_all_sent(seen, share=0.99)
    assert seen.transmit["kicks"] < seen.transmit["sent"], "one kick for many packets"


@lab(kernels=("6.1", "6.12", "7.2"), topology=TWO_NODES, nics=IGB)
def test_packets_of_a_macvtap_are_followed_both_ways(host: Host) -> None:
    vm = start_vm_on_macvtap(host, NIC, "-e", "-c", str(VCPU_CPU))
    seen = answered(host, vm, 100, 50)
    assert seen.answers == seen.sent == 100, seen
    assert_all_received(seen)
    assert_all_sent(seen)
    # Most were brought by an interrupt of the NIC.
    spans = {span["span"]: span["count"] for span in seen.queue["spans"]}
    assert spans["handler_to_vhost"] >= 95 and spans["interrupt_to_handler"] >= 50, spans


@lab(kernels=("6.12",), topology=TWO_NODES, nics=IGB)
def test_the_way_from_the_kick_agrees_with_the_trace(host: Host) -> None:
    vm = start_vm(host, "-e", "-c", str(VCPU_CPU))
    host.check(
        f"mkdir -p {INSTANCE} && cd {INSTANCE} && echo x86-tsc >trace_clock && echo 8192 >buffer_size_kb"
        " && echo 1 >events/kvm/kvm_pio/enable && echo 1 >events/net/net_dev_start_xmit/enable"
    )
    mhz = float(re.findall(r"tsc: Detected ([\d.]+) MHz", host.check("dmesg"))[-1])
    seen = answered(host, vm, 100, 20)
    assert_all_sent(seen)
    lines = host.check(["cat", f"{INSTANCE}/trace"]).splitlines()
    kicks = [int(at[1]) for line in lines if (at := re.search(rf"\s(\d+): kvm_pio: pio_write at {PORT:#x} ", line))]
    nic = sorted(int(at[1]) for line in lines if (at := re.search(rf"\s(\d+): net_dev_start_xmit: dev={NIC} ", line)))
    assert len(kicks) == len(seen.vcpu.kick_notes), "the trace has each kick of the guest"
    kicks = sorted(kicks)[-len(seen.kicks) :]
    times = [(nic[bisect_left(nic, kick)] - kick) * 1000 / mhz for kick in kicks]
    before = [(kick - note) * 1000 / mhz for kick, note in zip(kicks, seen.kicks, strict=True)]
    told, traced = seen.spans()["whole"]["p50_ns"], median(times)
    print(f"nearpath {told} ns; trace {traced:.0f} ns; the guest's exit before it {median(before):.0f} ns")
    assert all(ns > 0 for ns in before), "the guest's own clock"
    # A bucket of the histogram is 4.4% wide, and KVM notes the write before it signals vhost.
    assert abs(traced - told) < max(20_000, 0.15 * traced), (told, traced)
