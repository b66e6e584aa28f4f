"""The memory of a process that is a driver itself (`packet_driver.py`, on vfio and on uio) is never moved, and its
device loses no packet while the watchdog moves what drifts.

The truth comes from the process, which asks the kernel where its pages are, and from the numbers of the packets.
"""

import json
import time
from pathlib import Path
from typing import Any

from lab import Host, Job, Nic
from lab.fixtures import lab
from lab.vms import give
from lab.waiting import wait_until

from .hosts import TWO_NODES

DRIVER = Path(__file__).with_name("packet_driver.py").read_text()
NICS = (Nic("e1000e", node=0), Nic("e1000e", node=0))
MIB = 1 << 20
OWN_MIB = 24
# Packets per second and interface: a ring of the device holds those of 2.5 s.
RATE = 100

# Sends numbered frames on the interfaces until it is killed; every second it says how many it has sent.
SENDER = """
import socket, struct, sys, time
interfaces = []
for name in sys.argv[2:]:
    interface = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    interface.bind((name, 0))
    interfaces.append(interface)
begun, number = time.monotonic(), 0
while True:
    frame = b"\\xff" * 6 + b"\\x02" * 6 + b"\\x88\\xb5" + struct.pack(">I", number) + bytes(64)
    for interface in interfaces:
        interface.send(frame)
    number += 1
    time.sleep(max(0, begun + number / float(sys.argv[1]) - time.monotonic()))
"""


def start(host: Host, prefix: str, kind: str, *words: str) -> Job:
    """Starts a driver and waits until it has its memory."""
    log = f"/root/{kind}"
    job = host.start(f"exec {prefix} python3 /root/packet_driver.py {kind} {' '.join(words)} >{log} 2>&1")
    wait_until(lambda: "there" in host.run(f"cat {log}").out or not job.running(), f"the driver on {kind} runs")
    assert job.running(), host.check(f"cat {log}")
    return job


def ended(host: Host, job: Job, kind: str) -> dict[str, Any]:
    """Ends a driver; returns what it says."""
    job.kill()
    for _ in range(60):
        if not job.running():
            break
        host.check("sleep 1")
    stack = host.run(f"cat /proc/{job.pid}/wchan /proc/{job.pid}/stack /proc/{job.pid}/stat").out
    assert not job.running(), f"the driver on {kind} does not end: {stack}"
    said = host.check(f"cat /root/{kind}")
    assert said.startswith("there\n{"), said
    result: dict[str, Any] = json.loads(said.splitlines()[1])
    return result


def prepared(host: Host) -> tuple[str, str]:
    """Gives one device to vfio and one to uio; returns their addresses."""
    host.write("/root/packet_driver.py", DRIVER.encode())
    host.check("modprobe -a vfio-pci uio_pci_generic && modprobe vfio_iommu_type1 allow_unsafe_interrupts=1")
    host.check("echo 1 >/sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts")
    host.check("echo 4 >/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages")
    return give(host, "nic0", "vfio-pci"), give(host, "nic1", "uio_pci_generic")


def watched(host: Host) -> dict[int, dict[str, Any]]:
    """The last notice about each process."""
    lines = host.check("cat /root/watch.jsonl 2>/dev/null || true").splitlines()
    return {notice["pid"]: notice for notice in map(json.loads, lines)}


def keeps_every_packet(host: Host, seconds: float) -> None:
    """Both have all their packets and pages; a process that drifts beside them is moved."""
    vfio, uio = prepared(host)
    near = ",".join(map(str, TWO_NODES.cpus_of(0)))
    prefix = f"numactl --physcpubind={near} --preferred=1"
    drivers = {kind: start(host, prefix, kind, device, str(OWN_MIB)) for kind, device in (("vfio", vfio), ("uio", uio))}
    devices = json.loads(host.check("nearpath show devices --json"))["devices"]
    shown = {function["address"]: function["driver"] for function in devices}
    assert (shown[vfio], shown[uio]) == ("vfio-pci", "uio_pci_generic"), shown
    memory = json.loads(host.check("nearpath show memory --all --json"))["processes"]
    for kind, job in drivers.items():
        (process,) = (process for process in memory if process["pid"] == job.pid)
        assert process["dma_mapped"] is True and process["device_nodes"] == [0], (kind, process)
    host.check("sleep 1")
    sender = host.peer.start(["python3", "-c", SENDER, str(RATE), "tap0", "tap1"])
    watch = host.start(
        "exec nearpath tune watch --memory 10MB --interval 1s --json >/root/watch.jsonl 2>/root/watch.log"
    )
    begun = time.monotonic()
    # What it may move, it does, meanwhile.
    drifting = host.start(
        f"exec {prefix} python3 -c 'import time; x = bytearray(b\"x\" * {OWN_MIB * MIB}); time.sleep(999)'"
    )
    jobs = {*(job.pid for job in drivers.values()), drifting.pid}
    wait_until(lambda: jobs <= watched(host).keys(), "it says what it does with each")
    time.sleep(max(0, begun + seconds - time.monotonic()))
    sender.kill()
    sender.communicate()
    # The packets that are on their way.
    host.check("sleep 1")
    for kind, job in drivers.items():
        notice = watched(host)[job.pid]
        assert notice["event"] == "memory_not_moved" and "start it bound" in notice["reason"], notice
        said = ended(host, job, kind)
        (numbers,) = said["times"]
        assert numbers == list(range(len(numbers))) and len(numbers) >= 0.5 * seconds * RATE, (kind, len(numbers))
        assert said["moved"] == 0, said["moved"]
        assert said["nodes"][1] == OWN_MIB * MIB // 4096, (kind, said["nodes"])
    moved = watched(host)[drifting.pid]
    assert moved["event"] == "memory_moved" and moved["remote_bytes_after"] < 10_000_000, moved
    for job in (watch, drifting):
        job.kill()


@lab(topology=TWO_NODES, nics=NICS, iommu=True)
def test_memory_of_drivers_stays_and_no_packet_is_lost(host: Host) -> None:
    keeps_every_packet(host, 10)


@lab(topology=TWO_NODES, nics=NICS, iommu=True)
def test_memory_of_drivers_stays_and_no_packet_is_lost_for_a_minute(host: Host) -> None:
    keeps_every_packet(host, 60)


@lab(topology=TWO_NODES, nics=NICS, iommu=True)
def test_no_packet_is_lost_by_drivers_that_map_and_unmap_their_devices(host: Host) -> None:
    """While they have no device, the one with ordinary memory may be moved; never while it has one."""
    vfio, uio = prepared(host)
    near = ",".join(map(str, TWO_NODES.cpus_of(0)))
    prefix = f"numactl --physcpubind={near} --preferred=1"
    sender = host.peer.start(["python3", "-c", SENDER, str(RATE), "tap0", "tap1"])
    watch = host.start(
        "exec nearpath tune watch --memory 10MB --interval 100ms --json >/root/watch.jsonl 2>/root/watch.log"
    )
    wait_until(lambda: "watching" in host.run("cat /root/watch.log").out, "it watches")
    drivers = {
        kind: start(host, prefix, kind, device, str(OWN_MIB), "0.3") for kind, device in (("vfio", vfio), ("uio", uio))
    }
    host.check("sleep 60")
    sender.kill()
    sender.communicate()
    host.check("sleep 1")
    for kind, job in drivers.items():
        said = ended(host, job, kind)
        times = [numbers for numbers in said["times"] if numbers]
        assert len(times) > 20, (kind, said["times"])
        for numbers in times:
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), (kind, numbers)
        assert said["moved"] == 0, (kind, said["moved"])
        if kind == "uio":
            assert said["nodes"][1] == OWN_MIB * MIB // 4096, said["nodes"]
        print(f"{kind}: {len(times)} times, {sum(map(len, times))} packets, nodes {said['nodes']}", file=host.log)
    watch.kill()
    assert watched(host), "it looked at them"
