"""The check of a virtual machine's queues, on QEMU's own: the judge is its command line."""

import json

import pytest

from lab import Host, linux_guest
from lab.fixtures import lab
from lab.vms import ADDRESS, MAC, TAP
from lab.waiting import wait_until

from .hosts import IGB, TWO_NODES
from .linux_guests import payload

__all__ = ["payload"]


@lab(kernels=("6.12",), topology=TWO_NODES, nics=IGB)
@pytest.mark.parametrize(("queues", "vcpus", "found"), [(2, 1, ["2 queues for 1 vCPU"]), (2, 2, []), (1, 2, [])])
def test_queues_are_compared_with_vcpus(host: Host, queues: int, vcpus: int, found: list[str]) -> None:
    """One queue for two vCPUs is enough for a guest with little traffic."""
    host.check("modprobe -a tun kvm_amd vhost_net")
    several = " multi_queue" if queues > 1 else ""
    host.check(f"ip tuntap add dev {TAP} mode tap vnet_hdr{several} && ip link set {TAP} up")
    command = linux_guest.qemu(linux_guest.on_tap(TAP, MAC, queues), ADDRESS, cpus=vcpus)
    vm = host.start(f"exec {command} >/tmp/guest.printed 2>&1")
    # The last vCPU's thread, and the tap in use.
    running = f"grep -q 'CPU {vcpus - 1}/KVM' /proc/{vm.pid}/task/*/comm && ip link show {TAP} | grep -q LOWER_UP"
    wait_until(lambda: host.run(running).status == 0, "its vCPUs and its tap are there")
    (one,) = json.loads(host.check("nearpath show vms --json"))["vms"]
    assert ([tap["queues"] for tap in one["taps"]], len(one["vcpus"])) == ([queues], vcpus), one
    findings = json.loads(host.check("nearpath diagnose --measure tcp --for 1s --json"))["findings"]
    titles = [finding["title"] for finding in findings if finding["check"] == "vm_queues"]
    assert titles == [f"web1 ({vm.pid}): {TAP} has {said}" for said in found], titles
