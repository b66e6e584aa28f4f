"""`nearpath demo locality` on eight CPUs in two nodes: step by step, packets and connections stay on
the CPU that they arrive on, as far as the kernel supports the demonstration."""

import json
from typing import Any

from lab import Host, Nic
from lab.fixtures import lab

from .hosts import SMT

STEPS = ["as found", "workers pinned", "queues pinned", "steering", "RPS off", "XPS"]
CPUS = "0-7"

# Loading programs and connecting are slow in emulation.
PATIENCE_S = 600
EACH = "4s"

# Packets in flight when a step is applied may be misplaced.
ALL = 0.99


@lab(topology=SMT, nics=(Nic("igb", node=1),))
def test_packets_and_connections_end_up_on_their_cpu(host: Host) -> None:
    said = host.run(["nearpath", "demo", "locality", "--json", "--for", EACH], PATIENCE_S)
    assert said.status == 0, said
    document = json.loads(said.out)
    assert (document["cpus"], document["method"]) == (CPUS, "exact"), document
    assert document["not_made"] == [], document
    steps = {step["name"]: step for step in document["steps"]}
    assert list(steps) == STEPS
    for name, step in steps.items():
        print(name, shares(step), "of", step["rx"]["packets"], "and", step["tx"]["packets"], step["not_followed"])
    for step in steps.values():
        assert step["rx"]["packets"] > 100 and step["tx"]["packets"] > 100, step
        # An exact measurement follows all but those from before it.
        assert step["not_followed"] <= 0.02 * (step["rx"]["packets"] + step["tx"]["packets"]), step
    # By chance: one in eight, and on the other node half of them.
    assert shares(steps["queues pinned"])["accepts"] < 0.5, steps["queues pinned"]
    assert steps["queues pinned"]["rx"]["other_node"] > 0, steps["queues pinned"]
    assert shares(steps["steering"])["accepts"] >= ALL, steps["steering"]
    last = shares(steps["XPS"])
    assert min(last.values()) >= ALL, (last, steps["XPS"])
    # Nothing remains of it.
    assert "demo-" not in host.check("ip -all netns exec ip link; ip link; ps -eo comm")


def shares(step: dict[str, Any]) -> dict[str, float]:
    """The local shares of a step."""
    counts = {"rx": step["rx"], "tx": step["tx"]}
    local = {name: count["same_cpu"] / count["packets"] for name, count in counts.items()}
    return {**local, "accepts": step["accepts"]["same_cpu"] / step["accepts"]["accepts"]}
