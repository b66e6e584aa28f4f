"""DPDK in a guest: its memory, its ports, testpmd, and packets that a peer sends through it.

Guests need `variant="dpdk"`, an IOMMU and 1 GiB a node: see `TWO_NODES`.
"""

import json
from collections.abc import Sequence
from typing import Any

from lab import Host, Job, Topology
from lab.waiting import wait_until

TWO_NODES = Topology(cores=(2, 2), memory_mib=1024)

# EAL and testpmd start in 10 to 20 s.
PATIENCE_S = 90

# testpmd asks at its end, and reads an end of file as the end of itself.
LOG, STDIN = "/run/testpmd.log", "/run/testpmd.stdin"

# The Ethernet type of the frames: for local experiments.
FRAME_TYPE = 0x88B5

# Options of testpmd: each packet takes so long that hundreds a second are too many.
SLOW = "--forward-mode=noisy --noisy-lkup-memory=4 --noisy-lkup-num-reads=50000"

# Arguments: the tap to send on, its frames' destination, the tap to receive on, how many frames and how many a second.
# Prints how many came. Frames are of 64 bytes, as short as they can be.
THROUGH = f"""
import socket, struct, sys, time
out, there, back, count, rate = *sys.argv[1:4], *map(int, sys.argv[4:])
receiver = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons({FRAME_TYPE}))
receiver.bind((back, {FRAME_TYPE}))
receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
sender.bind((out, 0))
head = bytes.fromhex(there.replace(":", "")) + bytes.fromhex("020000000001") + struct.pack("!H", {FRAME_TYPE})
start = time.monotonic()
for number in range(count):
    time.sleep(max(0, start + number / rate - time.monotonic()))
    sender.send(head + struct.pack("!I", number) + bytes(46))
seen = set()
receiver.settimeout(5)
try:
    while len(seen) < count:
        frame, (_, _, kind, *_) = receiver.recvfrom(2048)
        if kind != socket.PACKET_OUTGOING:
            seen.add(struct.unpack_from("!I", frame, 14))
except TimeoutError:
    pass
print(len(seen))
"""


def reserve_hugepages(host: Host, pages: Sequence[int] = (192, 192)) -> None:
    """Reserves pages of 2 MiB on each node, and mounts their file system."""
    folder = "/sys/devices/system/node/node{}/hugepages/hugepages-2048kB/nr_hugepages"
    for node, count in enumerate(pages):
        host.write(folder.format(node), str(count).encode())
        assert int(host.read(folder.format(node))) == count, f"node {node} has no {count} hugepages"
    host.check("mkdir -p /dev/hugepages && mount -t hugetlbfs hugetlbfs /dev/hugepages")


def pci_address(host: Host, nic: str) -> str:
    """The PCI address of a network interface."""
    return host.check(f"basename $(readlink -f /sys/class/net/{nic}/device)").strip()


def add_virtual_functions(host: Host, nic: str, count: int) -> list[str]:
    """Creates virtual functions of an igb; returns their PCI addresses. A snapshot cannot hold them."""
    device = f"/sys/class/net/{nic}/device"
    host.write(f"{device}/sriov_numvfs", str(count).encode())
    return host.check(f"for f in {device}/virtfn*; do basename $(readlink $f); done").split()


def bind(host: Host, devices: Sequence[str], driver: str = "vfio-pci") -> None:
    """Gives PCI devices to a driver."""
    host.check("modprobe vfio_iommu_type1 allow_unsafe_interrupts=1 && modprobe -a vfio-pci uio_pci_generic")
    for device in devices:
        place = f"/sys/bus/pci/devices/{device}"
        host.check(
            f"echo {driver} >{place}/driver_override"
            f" && (test ! -e {place}/driver || echo {device} >{place}/driver/unbind)"
            f" && echo {device} >/sys/bus/pci/drivers_probe"
        )
        assert host.check(f"basename $(readlink {place}/driver)").strip() == driver, device


def start_testpmd(host: Host, eal: str, options: str) -> Job:
    """Starts testpmd with options of EAL and its own, forwarding; waits until it does."""
    host.check(f"mkfifo {STDIN}")
    # Written line by line, to be read meanwhile. Opened for reading and writing, so that there is no end of file.
    words = f"dpdk-testpmd {eal} -- {options} --auto-start"
    testpmd = host.start(f"exec stdbuf -oL {words} <>{STDIN} >{LOG} 2>&1")

    def forwards() -> bool:
        # Its shell may not have begun yet.
        said = host.run(f"cat {LOG}").out
        assert testpmd.running(), said
        return "Press enter to exit" in said

    wait_until(forwards, "testpmd forwards")
    return testpmd


def stop_testpmd(host: Host, testpmd: Job) -> str:
    """Ends testpmd; returns what it has printed, with its counters at the end."""
    testpmd.kill("INT")
    testpmd.wait(PATIENCE_S)
    host.check(f"rm {STDIN}")
    return host.check(f"cat {LOG}")


def start_ovs(host: Host, config: str, memory: str = "256,256") -> None:
    """Restarts Open vSwitch with DPDK and more of its configuration; waits until it has taken it."""
    host.check("modprobe tun && ovs-appctl -t ovs-vswitchd exit")
    # It removes the file when it ends, which would be the next one's.
    wait_until(lambda: host.run("test -e /run/openvswitch/ovs-vswitchd.pid").status == 1, "ovs-vswitchd has ended")
    memory = f"other_config:dpdk-socket-mem='\"{memory}\"'"
    host.check(f"ovs-vsctl --no-wait set Open_vSwitch . other_config:dpdk-init=true {memory} {config}")
    log = "--log-file=/run/openvswitch/ovs-vswitchd.log"
    # By its usual name, which is that of its sockets.
    host.check("update-alternatives --set ovs-vswitchd /usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk")
    host.check(f"ovs-vswitchd --pidfile --detach {log}", PATIENCE_S)
    assert host.check("ovs-vsctl get Open_vSwitch . dpdk_initialized", PATIENCE_S).strip() == "true"


def add_ovs_port(host: Host, bridge: str, port: str, device: str, options: str = "") -> None:
    """Adds a PCI device to a bridge of Open vSwitch, which is created."""
    host.check(
        f"ovs-vsctl --may-exist add-br {bridge} -- set bridge {bridge} datapath_type=netdev -- add-port {bridge} {port}"
        f" -- set Interface {port} type=dpdk options:dpdk-devargs={device} {options}",
        PATIENCE_S,
    )
    assert host.check(f"ovs-vsctl get Interface {port} error").strip() == "[]"


def ovs_queues(host: Host) -> dict[tuple[str, int], tuple[int, int]]:
    """CPU and node of each queue, as Open vSwitch shows them."""
    cpu = node = -1
    queues = {}
    for line in host.check("ovs-appctl dpif-netdev/pmd-rxq-show").splitlines():
        words = line.split()
        if line.startswith("pmd thread"):
            node, cpu = int(words[3]), int(words[5].rstrip(":"))
        elif words and words[0] == "port:":
            queues[words[1], int(words[3])] = (cpu, node)
    return queues


def send_through(host: Host, out: int, back: int, count: int, *, rate: int = 200, there: str = "") -> int:
    """Sends frames to a NIC, by its index and MAC address, and returns how many come back by another."""
    there = there or host.machine.mac(out)
    words = [THROUGH, f"tap{out}", there, f"tap{back}", str(count), str(rate)]
    result = host.peer.run(["python3", "-c", *words], timeout_s=30 + count / rate)
    assert result.status == 0, result
    return int(result.out)


def workers(host: Host, *options: str) -> dict[str, Any]:
    """What nearpath shows of workers."""
    document: dict[str, Any] = json.loads(host.check(["nearpath", "show", "workers", "--json", *options]))
    return document
