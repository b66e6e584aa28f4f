"""Each kernel, in seconds: nearpath starts, sees the host, and follows packets through it."""

import json

from lab import Host, kernels
from lab.fixtures import lab
from lab.images import KERNELS

from .hosts import IGB, TWO_NODES


@lab(kernels=tuple(KERNELS), topology=TWO_NODES, nics=IGB)
def test_shows_and_measures(host: Host) -> None:
    assert host.check(["uname", "-r"]).startswith(f"{host.machine.kernel}.")

    cpus = json.loads(host.check(["nearpath", "show", "cpus", "--json"]))
    assert [cpu["node"] for cpu in cpus["cpus"]] == [0, 0, 1, 1]

    measuring = host.start("nearpath measure stages --proto icmp --for 3s --json")
    pings = host.peer.run(["ping", "-c", "20", "-i", "0.2", host.machine.address()])
    assert pings.status == 0, pings
    result = measuring.wait()
    assert result.status == 0, result
    assert json.loads(result.out)["packets"]["completed"] > 0


@lab(kernels=tuple(KERNELS), topology=TWO_NODES, nics=IGB)
def test_observes_what_the_page_says(host: Host) -> None:
    assert kernels.column(host) == kernels.written(host.machine.kernel)
