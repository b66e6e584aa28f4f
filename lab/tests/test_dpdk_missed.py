"""Packets that a NIC drops because no worker of DPDK fetches them in time, and why.

The truth is what testpmd says that its port has missed, and what keeps its worker from polling. Only vmxnet3 counts
missed packets.
"""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from lab import Host, Nic
from lab.fixtures import lab
from lab.waiting import wait_until

from . import dpdk

(NEAR, NEXT), FAR = dpdk.TWO_NODES.cpus_of(1), dpdk.TWO_NODES.cpus_of(0)[1]
NICS = (Nic("igb", node=0), Nic("igb", node=1), Nic("vmxnet3", node=1))
# More than the worker can take, for longer than is measured.
FRAMES, RATE = 60_000, 1000

# What testpmd does with each packet, what runs beside its worker, the cause in the finding's title, and the check of
# the one finding that all others of this cause are symptoms of.
CAUSES = {
    "busy": (dpdk.SLOW, "", "workers busy", "worker_missed"),
    # Frames of another protocol than IP have no hash, and all come to one queue.
    "uneven": (f"--rxq=2 --txq=2 --nb-cores=2 {dpdk.SLOW}", "", "packets uneven, some workers idle", "worker_missed"),
    "away": (
        "",
        f"taskset -c {NEAR} chrt --fifo 1 sh -c 'while :; do :; done'",
        "workers disturbed",
        "worker_disturbed",
    ),
}


def missed(host: Host) -> dict[str, int]:
    """Missed packets of each port."""
    (process,) = dpdk.workers(host)["processes"]
    return {port["name"]: port["imissed"] for port in process["ports"]}


@pytest.mark.parametrize("cause", CAUSES)
@lab(kernels=("6.12",), topology=dpdk.TWO_NODES, nics=NICS, variant="dpdk", iommu=True)
def test_the_cause_of_missed_packets_is_named(host: Host, cause: str) -> None:
    forwarding, beside, named, headline = CAUSES[cause]
    dpdk.reserve_hugepages(host)
    devices = [dpdk.pci_address(host, nic) for nic in ("nic1", "nic2")]
    dpdk.bind(host, devices)
    eal = f"--lcores 0@{FAR},1@{NEAR},2@{NEXT} --main-lcore 0 --socket-mem 0,192"
    testpmd = dpdk.start_testpmd(
        host, eal, f"--total-num-mbufs=8192 --record-core-cycles --rxd=128 --txd=512 {forwarding}"
    )
    assert missed(host)[devices[1]] == 0

    if beside:
        host.start(f"{beside} >/dev/null 2>&1")
    with ThreadPoolExecutor() as pool:
        came = pool.submit(dpdk.send_through, host, 2, 1, FRAMES, rate=RATE)
        wait_until(lambda: missed(host)[devices[1]] > 0, "packets are missed")
        command = "nearpath diagnose --measure workers --for 5s --json"
        found: list[dict[str, Any]] = json.loads(host.check(command, dpdk.PATIENCE_S))["findings"]
        assert came.result() < FRAMES
    by_check = {of["check"]: of for finding in found for of in (finding, *finding.get("symptoms", ()))}
    of_loss = [
        of for of in found if "worker_missed" in (of["check"], *(each["check"] for each in of.get("symptoms", ())))
    ]
    # (That another task ran there for a moment is a finding of its own, and not why.)
    assert [finding["check"] for finding in of_loss] == [headline], found
    assert "worker_saturated" not in [finding["check"] for finding in found], found
    ours = [by_check["worker_missed"]]
    assert [finding["title"].split(": ")[-1] for finding in ours] == [named], found
    assert devices[1] in ours[0]["title"], ours

    counted = missed(host)[devices[1]]
    said = dpdk.stop_testpmd(host, testpmd)
    # "RX-packets: 1234  RX-dropped: 56  RX-total: 1290", of each port.
    dropped = [int(count) for count in re.findall(r"RX-dropped: (\d+)", said)]
    assert counted > 0 and counted in dropped, (counted, dropped)
