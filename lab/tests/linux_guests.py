"""A Linux guest in the virtual host of a test, which imports `payload` to have its files."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import Host, Job, linux_guest
from lab.payload import nearpath_payload
from lab.run_folder import RunFolder
from lab.vms import ADDRESS, MAC, TAP
from lab.waiting import wait_until

# That of the first vCPU; the others follow.
VCPU_CPU = 2


@pytest.fixture(scope="module")
def payload(lab_here: None) -> Iterator[Path]:
    folder = RunFolder("linux-guest")
    try:
        yield nearpath_payload(linux_guest.files("6.12", folder.path))
    finally:
        folder.remove()


def start_guest(host: Host, tap: str = TAP, mac: str = MAC, address: str = ADDRESS, cpus: int = 1) -> Job:
    """Starts the guest on a tap in Open vSwitch, each vCPU on a CPU of its own and with a queue of its own, and waits
    until it answers.
    """
    host.check("modprobe -a tun kvm_amd vhost_net")
    several = " multi_queue" if cpus > 1 else ""
    host.check(
        f"ip tuntap add dev {tap} mode tap vnet_hdr{several}"
        f" && ip link set {tap} up && ovs-vsctl --may-exist add-port br0 {tap}"
    )
    return started(host, linux_guest.on_tap(tap, mac, cpus), address, cpus)


def start_guest_on_device(host: Host, device: str, address: str) -> Job:
    """The same with a device that vfio-pci has."""
    return started(host, linux_guest.by_vfio(device), address)


def started(host: Host, network: str, address: str, cpus: int = 1) -> Job:
    """The guest with QEMU's options of its interface."""
    job = host.start(f"exec {linux_guest.qemu(network, address, cpus=cpus)} >/tmp/guest.printed 2>&1")

    def is_up() -> bool:
        assert job.running(), host.run("cat /tmp/guest.printed /tmp/guest.console")
        return "answering UDP and TCP" in host.run("cat /tmp/guest.console").out

    wait_until(is_up, "the guest is up")
    for cpu in range(cpus):
        threads = host.check(f"grep -l 'CPU {cpu}/KVM' /proc/{job.pid}/task/*/comm").split("/")
        host.check(f"taskset -p -c {VCPU_CPU + cpu} {threads[-2]}")
    return job
