"""Each kernel, in seconds: nearpath starts, sees the host, and follows packets through it."""

import json

from lab import Host, kernels
from lab.fixtures import lab
from lab.images import KERNELS

from .hosts import IGB, TWO_NODES
from .waiting import ended, start_measuring


@lab(kernels=tuple(KERNELS), topology=TWO_NODES, nics=IGB)
def test_shows_and_measures(host: Host) -> None:
    assert host.check(["uname", "-r"]).startswith(f"{host.machine.kernel}.")

    cpus = json.loads(host.check(["nearpath", "show", "cpus", "--json"]))
    assert [cpu["node"] for cpu in cpus["cpus"]] == [0, 0, 1, 1]

    measuring = start_measuring(host, "measure", "stages", "--proto", "icmp")
    pings = host.peer.run(["ping", "-c", "5", "-i", "0.2", host.machine.address()])
    assert pings.status == 0, pings
    assert ended(measuring)["packets"]["completed"] >= 5


@lab(kernels=tuple(KERNELS), topology=TWO_NODES, nics=IGB)
def test_observes_what_the_page_says(host: Host) -> None:
    assert kernels.column(host) == kernels.written(host.machine.kernel)
