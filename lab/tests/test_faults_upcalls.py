"""Packets that Open vSwitch sends to user space, since its datapath has no flows, are late for that reason:
their budgets name the handler that had them.
"""

import json

from lab import Host
from lab.fixtures import lab, lengthy
from lab.waiting import ended, start_measuring

from .hosts import IGB, TWO_NODES
from .test_upcalls import let_all_miss
from .traffic import PORT, send, start_reader

DATAGRAMS = 240
RATE = 60


@lengthy
@lab(once=True, topology=TWO_NODES, nics=IGB)
def test_the_handler_is_named(host: Host) -> None:
    let_all_miss(host)
    start_reader(host)
    options = ("--port", str(PORT), "--direction", "rx", "--slow", "300us", "--outliers", "2000")
    measuring = start_measuring(host, "measure", "stages", *options)
    send(host, flows=4, each=DATAGRAMS // 4, rate=RATE)
    outliers = ended(measuring)["outliers"]

    hit = [outlier for outlier in outliers if outlier["from"] == "ovs_dp_upcall"]
    named = [outlier for outlier in outliers if outlier["budget"][0]["share"] == "upcall"]
    found = [outlier for outlier in hit if outlier in named]
    print(f"upcalls: {len(found)} of {len(hit)} named, {len(named) - len(found)} others, {len(outliers)} slow packets")
    # Emulation makes an upcall take longer, as a rule.
    assert len(hit) >= DATAGRAMS / 3
    assert len(found) >= 0.95 * len(hit), [json.dumps(one["budget"]) for one in hit if one not in found]
    assert len(named) == len(found)
    assert all(one["budget"][0]["who"]["comm"].startswith("handler") for one in found)
