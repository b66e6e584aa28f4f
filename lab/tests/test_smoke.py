"""Each kernel, in seconds: nearpath starts, sees the host, and follows packets through it."""

import json

from lab import Host, kernels
from lab.fixtures import lab, smoke
from lab.waiting import ended

from .hosts import IGB, TWO_NODES


@smoke
@lab(topology=TWO_NODES, nics=IGB)
def test_shows_and_observes(host: Host) -> None:
    assert host.check(["uname", "-r"]).startswith(f"{host.machine.kernel}.")

    cpus = json.loads(host.check(["nearpath", "show", "cpus", "--json"]))
    assert [cpu["node"] for cpu in cpus["cpus"]] == [0, 0, 1, 1]

    measuring = kernels.start_observing(host, "--proto", "icmp")
    pings = host.peer.run(["ping", "-c", "5", "-i", "0.2", host.machine.address()])
    assert pings.status == 0, pings
    # Everything on the page is observed, in the way that it says.
    assert kernels.column(host) == kernels.written(host.machine.kernel)
    assert ended(measuring)["packets"]["completed"] >= 5
