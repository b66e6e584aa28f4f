"""Packets that Open vSwitch sends to user space because its datapath has no flows are late for that reason:
their budgets name the handler that processed them.
"""

import json

from lab import Host
from lab.fixtures import lab
from lab.waiting import ended, start_measuring

from .hosts import IGB, TWO_NODES
from .test_upcalls import let_all_miss
from .traffic import PORT, send, start_reader

DATAGRAMS = 240
RATE = 60


@lab(topology=TWO_NODES, nics=IGB)
def test_the_handler_is_named(host: Host) -> None:
    let_all_miss(host)
    start_reader(host)
    options = ("--port", str(PORT), "--direction", "rx", "--slow", "300us", "--outliers", "2000")
    measuring = start_measuring(host, "measure", "stages", *options)
    send(host, flows=4, each=DATAGRAMS // 4, rate=RATE)
    outliers = ended(measuring)["outliers"]

    hit = [outlier for outlier in outliers if outlier["from"] == "ovs_dp_upcall"]
    named = [outlier for outlier in outliers if any(share["share"] == "upcall" for share in outlier["budget"])]
    found = [outlier for outlier in hit if outlier in named]
    # The handler's CPU may also be used for receiving packets, which is slow in emulation.
    first = [outlier for outlier in found if outlier["budget"][0]["share"] == "upcall"]
    print(
        f"upcalls: {len(found)} of {len(hit)} named, {len(first)} of them first,"
        f" {len(named) - len(found)} others, {len(outliers)} slow packets"
    )
    # In emulation an upcall usually takes longer.
    assert len(hit) >= DATAGRAMS / 3
    assert len(found) >= 0.95 * len(hit), [json.dumps(one["budget"]) for one in hit if one not in found]
    assert len(first) > len(hit) / 2
    assert len(named) == len(found)
    handlers = [share["who"]["comm"] for one in found for share in one["budget"] if share["share"] == "upcall"]
    assert all(comm.startswith("handler") for comm in handlers)
