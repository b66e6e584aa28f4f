"""DPDK in a guest: packets go through testpmd, and nearpath shows its workers, ports and memory by node.

The truth is where testpmd says that its ports and cores are, how it was started, and the frames that came through.
"""

from lab import Host, Nic
from lab.fixtures import lab, representative

from . import dpdk

NEAR, FAR = dpdk.TWO_NODES.cpus_of(1)[0], dpdk.TWO_NODES.cpus_of(0)[1]
FRAMES = 200


@representative
@lab(
    kernels=("6.12",),
    topology=dpdk.TWO_NODES,
    nics=(Nic("igb", node=0), Nic("igb", node=1), Nic("vmxnet3", node=1)),
    variant="dpdk",
    iommu=True,
)
def test_testpmd_forwards_and_its_workers_are_shown(host: Host) -> None:
    """Whole NICs on vfio-pci, a worker on their node, the main lcore on the other."""
    dpdk.reserve_hugepages(host)
    devices = [dpdk.pci_address(host, nic) for nic in ("nic1", "nic2")]
    dpdk.bind(host, devices)
    # Lcore ids are not those of the CPUs.
    eal = f"--lcores 5@{FAR},9@{NEAR} --main-lcore 5 --socket-mem 0,192"
    testpmd = dpdk.start_testpmd(host, eal, "--total-num-mbufs=8192 --record-core-cycles")
    assert [dpdk.send_through(host, out, 3 - out, FRAMES) for out in (1, 2)] == [FRAMES, FRAMES]

    (process,) = dpdk.workers(host)["processes"]
    assert process["pid"] == testpmd.pid
    assert process["eal"][1:] == eal.split()
    lcores = {worker["lcore"]: worker for worker in process["workers"]}
    assert {id: (worker["cpus"], worker["node"], worker["role"]) for id, worker in lcores.items()} == {
        5: (str(FAR), 0, "main"),
        9: (str(NEAR), 1, "worker"),
    }
    assert 0 < lcores[9]["busy_percent"] < 100
    assert [port["name"] for port in process["ports"]] == devices
    assert all(port["node"] == 1 and port["rx_packets"] >= FRAMES for port in process["ports"]), process["ports"]
    assert process["heaps"]["1"] >= 192 << 20

    said = dpdk.stop_testpmd(host, testpmd)
    assert "Bye" in said, said
    assert dpdk.workers(host)["processes"] == []


@lab(kernels=("6.12",), topology=dpdk.TWO_NODES, nics=(Nic("igb", node=1),), variant="dpdk", iommu=True)
def test_virtual_functions_have_the_node_of_their_nic(host: Host) -> None:
    """Both ports are on one wire: frames to the first come back by the second."""
    dpdk.reserve_hugepages(host)
    devices = dpdk.add_virtual_functions(host, "nic0", 2)
    host.check("ip link set nic0 vf 0 mac 02:00:00:00:00:10 && ip link set nic0 vf 1 mac 02:00:00:00:00:11")
    dpdk.bind(host, devices)
    eal = f"--lcores 0@{FAR},1@{NEAR} --main-lcore 0 --socket-mem 0,192"
    testpmd = dpdk.start_testpmd(host, eal, "--total-num-mbufs=8192 --forward-mode=mac")
    assert dpdk.send_through(host, 0, 0, FRAMES, there="02:00:00:00:00:10") == FRAMES
    (process,) = dpdk.workers(host)["processes"]
    assert [(port["name"], port["node"]) for port in process["ports"]] == [(device, 1) for device in devices]
    dpdk.stop_testpmd(host, testpmd)
