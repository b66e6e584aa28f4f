"""Interrupts that are suspended while a program busy-polls: of each NAPI instance, applied, verified and undone.

What the kernel has is read over netlink by a program of its own (`napi_parameters.py`).
"""

import json
from pathlib import Path
from typing import Any

from lab import Host
from lab.fixtures import lab

from .changes import QUEUES
from .hosts import IGB, TWO_NODES
from .test_tune import tuned

SCRIPT = Path(__file__).with_name("napi_parameters.py").read_text()
SUSPENDED = {"defer-hard-irqs": 2, "gro-flush-timeout": 20_000, "irq-suspend-timeout": 20_000_000}
ASKED = ("plan", "--nic", "nic0", "--napi", "suspend")


def instances(host: Host, *wanted: str) -> list[dict[str, Any]]:
    """The NAPI instances of nic0, by ascending id; after a parameter of one was set, if one is given."""
    return [json.loads(line) for line in host.check(["python3", "-c", SCRIPT, "nic0", *wanted]).splitlines()]


def of_napi(plan: dict[str, Any]) -> list[dict[str, Any]]:
    """Its changes of NAPI instances."""
    return [change for change in plan["changes"] if change["kind"] == "napi"]


@lab(kernels=("7.2",), topology=TWO_NODES, nics=IGB)
def test_interrupts_are_suspended_and_restored(host: Host) -> None:
    # One instance differs from the others before.
    host.check("echo 3000 >/sys/class/net/nic0/gro_flush_timeout")
    own = str(instances(host)[1]["id"])
    before = instances(host, own, "irq-suspend-timeout", "700000")
    plan = tuned(host, *ASKED)
    changes = of_napi(plan)
    # With few queues, igb has instances for its transmit queues alone: the second half.
    receiving = len(host.check(f"ls -d {QUEUES}/rx-*").split())
    assert len(before) == 2 * receiving, before
    assert [change["target"] for change in changes] == [f"napi nic0 {place}" for place in range(receiving)]
    assert changes[1]["before"] == "defer-hard-irqs 0 gro-flush-timeout 3000 irq-suspend-timeout 700000", changes
    # igb says which instance serves which queue, since 6.14.
    assert all(f"queue {place} of nic0" in change["why"] for place, change in enumerate(changes)), changes
    assert instances(host) == before, "a plan changes nothing"

    only = [word for change in changes for word in ("--only", change["id"])]
    host.write("/root/plan.json", json.dumps(plan).encode())
    tuned(host, "apply", "/root/plan.json", *only)
    suspended = [its | SUSPENDED if place < receiving else its for place, its in enumerate(before)]
    assert instances(host) == suspended
    assert of_napi(tuned(host, *ASKED)) == []
    assert [entry["state"] for entry in tuned(host, "status")["journal"]] == ["applied"] * receiving

    # Another program's value is drift, and stays.
    instances(host, own, "irq-suspend-timeout", "5")
    states = [entry["state"] for entry in tuned(host, "status")["journal"]]
    assert sorted(states) == ["applied"] * (receiving - 1) + ["drifted"], states
    assert host.run("nearpath tune rollback").status == 1
    assert instances(host) == [*before[:1], suspended[1] | {"irq-suspend-timeout": 5}, *before[2:]]
    host.check("nearpath tune rollback --force")
    assert instances(host) == before
    assert tuned(host, "status")["journal"] == []


@lab(kernels=("6.12",), topology=TWO_NODES, nics=IGB)
def test_older_kernels_say_what_they_lack(host: Host) -> None:
    plan = tuned(host, *ASKED)
    assert of_napi(plan) == []
    assert any("requires Linux 6.13" in note for note in plan["notes"]), plan["notes"]
