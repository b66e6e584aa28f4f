"""The kernel's interface of an application on DPDK: a virtio-user port, whose packets vhost threads move.

Document 003's table of KNI, which virtio-user replaces: latency and bandwidth, idle and with an overloaded data plane.
The truth is what iperf3 and ping say, where the kernel lets the vhost thread run, and the task that is bound to a CPU.
"""

import json
import math
from typing import Any

from lab import Host, Nic
from lab.fixtures import lab

from . import dpdk

FAR = dpdk.TWO_NODES.cpus_of(0)[1]
NEAR = dpdk.TWO_NODES.cpus_of(1)
NICS = (Nic("igb", node=0), Nic("igb", node=1), Nic("vmxnet3", node=1))
OURS, THEIRS = "10.98.7.2", "10.98.7.1"

# The data plane: two ports that have packets at all times, or none.
BUSY, IDLE = (" ".join(f"--vdev=net_null{port}{rx}" for port in (0, 1)) for rx in ("", ",no-rx=1"))
# The kernel's interface on one side, and the wire to the peer on the other.
KERNEL_PORT = "--vdev=net_af_packet0,iface=west --vdev=virtio_user0,path=/dev/vhost-net,queue_size=1024,iface=vh0"


def slow(reads: int) -> str:
    """testpmd's options with which each packet costs so many reads of memory."""
    return f"--forward-mode=noisy --noisy-lkup-memory=4 --noisy-lkup-num-reads={reads}"


def command_line(data_plane: str, options: str = "") -> str:
    """The command line, without lcores."""
    own = f"--auto-start --stats-period 1000 --total-num-mbufs=8192 {options}"
    return f"dpdk-testpmd --no-pci {data_plane} {KERNEL_PORT} --socket-mem 0,192 -- {own}"


def prepare(host: Host) -> None:
    """An interface of the kernel that remains when testpmd ends, a peer, and a reflector with iperf3."""
    dpdk.reserve_hugepages(host)
    host.check(
        "modprobe -a tun vhost_net"
        f" && ip tuntap add dev vh0 mode tap vnet_hdr && ip address add {OURS}/24 dev vh0 && ip link set vh0 up"
        " && ip netns add red && ip link add dev end netns red type veth peer name west"
        f" && ip -n red address add {THEIRS}/24 dev end && ip -n red link set end up && ip link set west up"
        " && ip netns exec red ethtool -K end tx off rx off"
    )
    host.start(f"nearpath bench reflect --bind {OURS} --load >/dev/null 2>&1")


def compare(host: Host, nic: str, options: str, command: str) -> dict[tuple[str, bool], dict[str, Any]]:
    """The rows of `bench scenarios --dpdk`, by scenario and whether it was overloaded."""
    address = dpdk.pci_address(host, nic)
    said = host.check(
        f"nearpath bench scenarios --dpdk --address {OURS} --from red --nic {address} --cycles 1 --block 3s"
        f" --warm-up 1s --rate 50 --bandwidth {options} --json -- {command}",
        timeout_s=900,
    )
    return {(row["scenario"], row["is_overloaded"]): row for row in json.loads(said)["scenarios"]}


def median_and_bits(row: dict[str, Any]) -> tuple[float, float]:
    """An overloaded application may answer no probe, and carry no stream."""
    return row["percentiles"].get("50", math.inf), row["bits_per_s"] or 0


@lab(kernels=("6.12",), topology=dpdk.TWO_NODES, nics=NICS, variant="dpdk", iommu=True)
def test_virtio_user_idle_and_overloaded(host: Host) -> None:
    """Each of four rows has latency and bandwidth; the vhost thread runs where the main lcore does."""
    prepare(host)
    host.start(f"taskset -c {FAR} sh -c 'while :; do :; done' >/dev/null 2>&1")
    overloaded = f"--overloaded '{command_line(BUSY, slow(5000))}'"
    rows = compare(host, "nic2", overloaded, command_line(IDLE))
    assert len(rows) == 4
    for (scenario, _), row in rows.items():
        assert row["count"] > 0 and (row["is_overloaded"] or row["bits_per_s"] > 0), row
        main, worker = (0, FAR) if scenario == "without_plan" else NEAR
        # The kernel starts it with the affinity of the thread that opened /dev/vhost-net.
        assert (row["vhost"]["threads"], row["vhost"]["cpus"]) == (1, str(main)), row
        assert row["vhost"]["ran_percent"] > 0, row
        (disturbed,) = row["workers"]
        assert (disturbed["cpus"], disturbed["vhost_percent"]) == (str(worker), 0), row
        # The task has half of the CPU.
        named = {other["name"]: other["percent"] for other in disturbed["others"]}
        assert (named.get("sh", 0) > 25) == (scenario == "without_plan"), row
    # An overloaded worker is what the kernel's interface waits for.
    (idle, bits), (overloaded_median, overloaded_bits) = (
        median_and_bits(rows["with_plan", is_overloaded]) for is_overloaded in (False, True)
    )
    assert overloaded_median > idle and overloaded_bits < bits, rows


@lab(kernels=("6.12",), topology=dpdk.TWO_NODES, nics=NICS, variant="dpdk", iommu=True)
def test_a_worker_for_the_kernel_interface_keeps_it_responsive(host: Host) -> None:
    """Document 003's conclusion: it protects the kernel's traffic from the load of the data plane."""
    prepare(host)
    shared = compare(host, "nic0", "--workers 1", command_line(BUSY, slow(20_000)))
    own = compare(host, "nic0", "--workers 2", command_line(BUSY, f"--nb-cores=2 {slow(20_000)}"))
    of_plan = [rows["with_plan", False] for rows in (shared, own)]
    assert [len(row["workers"]) for row in of_plan] == [1, 2]
    (shared_median, shared_bits), (own_median, own_bits) = map(median_and_bits, of_plan)
    assert shared_median > own_median and shared_bits < own_bits, of_plan
