"""A plan with channels, rings, RSS, interrupts and queues on a real driver is undone to the byte.

The scenes are tests in Rust, which run in the guest.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from lab import Host
from lab.fixtures import lab, representative, skips_in_guest, smoke
from lab.payload import payload_of_tests

from .changes import IRQS
from .hosts import IGB, TWO_NODES, VIRTIO

TEST = "kernel_tune_nic"


@pytest.fixture(scope="module")
def payload(lab_here: None) -> Path:
    """The test, and nearpath, which it runs."""
    return payload_of_tests("nearpath", TEST)


# At how many steps of applying, and of undoing, something goes wrong.
SOME, MANY = 1, 3
# In how many parts all steps are taken, each within 900 s.
FAILING_SHARDS, KILLED_SHARDS, HOTPLUG_SHARDS = 8, 4, 8
FAILING = "steps::a_write_that_fails_loses_nothing"
KILLED = "steps::a_kill_at_a_step_loses_nothing"
HOTPLUG = "steps::a_cpu_that_goes_meanwhile_loses_nothing"


def run_scenes(host: Host, *names: str, steps: int = SOME, shard: str = "") -> None:
    """Runs scenes of the test, none of which may be skipped, at so many steps or at those of a shard."""
    at = f"NEARPATH_TUNE_SHARD={shard}" if shard else f"NEARPATH_TUNE_STEPS={steps}"
    variables = ["NEARPATH_TUNE_NIC=nic0", at]
    test = ["env", *variables, TEST, "--exact", *names, "--nocapture", "--test-threads", "1"]
    status, out, err = host.run(test, timeout_s=900)
    print(out)
    assert status == 0, out + err
    assert f"{len(names)} passed" in out
    assert skips_in_guest(host, err) == []


@representative
@smoke
@lab(topology=TWO_NODES, nics=IGB)
def test_undone_to_the_byte(host: Host) -> None:
    """Whole plans, applied and undone."""
    run_scenes(
        host,
        "a_plan_is_applied_and_undone_to_the_byte",
        "interrupts_after_rings_are_no_drift_and_both_come_back",
    )


@lab(topology=TWO_NODES, nics=IGB)
def test_killed_at_any_time_it_is_undone(host: Host) -> None:
    """Killed while it applies and while it undoes."""
    run_scenes(host, "a_kill_while_applying_or_undoing_loses_nothing")


@lab(topology=TWO_NODES, nics=IGB)
def test_undone_after_a_cpu_was_offline(host: Host) -> None:
    """While it is offline the kernel moves its interrupts, or drops a move that is pending, and leaves them there."""
    run_scenes(host, "a_cpu_that_goes_and_comes_back_is_no_drift")


@lab(topology=TWO_NODES, nics=IGB)
def test_undone_from_some_steps(host: Host) -> None:
    """A write fails in the middle of applying and of undoing."""
    run_scenes(host, FAILING)


@lab(topology=TWO_NODES, nics=IGB)
def test_undone_from_many_steps(host: Host) -> None:
    """A write fails, a CPU goes and comes back, or nearpath is killed, at steps spread over the whole."""
    run_scenes(host, FAILING, KILLED, HOTPLUG, steps=MANY)


def shards(stride: int) -> list[str]:
    """All steps, in so many parts."""
    return [f"{offset}/{stride}" for offset in range(stride)]


@pytest.mark.parametrize("shard", shards(FAILING_SHARDS))
@lab(topology=TWO_NODES, nics=IGB)
def test_undone_from_every_step(host: Host, shard: str) -> None:
    """Each write fails, once and for good."""
    run_scenes(host, FAILING, shard=shard)


@pytest.mark.parametrize("shard", shards(KILLED_SHARDS))
@lab(topology=TWO_NODES, nics=IGB)
def test_undone_after_a_kill_at_every_step(host: Host, shard: str) -> None:
    """Killed at each write."""
    run_scenes(host, KILLED, shard=shard)


@pytest.mark.parametrize("shard", shards(HOTPLUG_SHARDS))
@lab(topology=TWO_NODES, nics=IGB)
def test_undone_after_a_cpu_went_at_every_step(host: Host, shard: str) -> None:
    """A CPU goes and comes back before each write."""
    run_scenes(host, HOTPLUG, shard=shard)


def affinities(host: Host) -> dict[str, str]:
    """The affinity of each interrupt of the NIC's device."""
    said = host.check(f"for irq in {IRQS}; do echo $irq $(cat /proc/irq/$irq/smp_affinity_list); done")
    return dict(line.split(" ", 1) for line in said.splitlines())


def tune(host: Host, *words: str) -> dict[str, Any]:
    """What nearpath says of it."""
    document: dict[str, Any] = json.loads(host.check(["nearpath", "tune", *words, "--json"]))
    return document


@lab(topology=TWO_NODES, nics=VIRTIO)
def test_interrupts_that_virtio_net_sets_as_a_cpu_goes(host: Host) -> None:
    """It sets those of all queues: what the plan named is undone, and the others stay as they are, unnamed."""
    host.check(f"for irq in {IRQS}; do echo 0-1 >/proc/irq/$irq/smp_affinity_list || true; done")
    plan = tune(host, "plan", "--nic", "nic0")
    irqs = [change for change in plan["changes"] if change["kind"] == "irq_affinity"]
    # Half of them, in the order of the queues.
    plan["changes"] = irqs[: len(irqs) // 2]
    named = {change["target"].split("/")[3]: change["after"] for change in plan["changes"]}
    assert 2 <= len(named) < len(irqs), plan
    before = affinities(host)
    host.write("/root/plan.json", json.dumps(plan).encode())
    host.check("nearpath tune apply /root/plan.json")
    applied = affinities(host)
    assert {irq: applied[irq] for irq in named} == named

    far = TWO_NODES.cpus_of(0)[-1]
    online = f"/sys/devices/system/cpu/cpu{far}/online"
    host.check(f"echo 0 >{online} && echo 1 >{online}")
    driven = affinities(host)
    moved = {irq for irq in driven if driven[irq] != applied[irq]}
    assert moved & set(named) and moved - set(named), (applied, driven)
    journal = {entry["target"].split("/")[3]: entry for entry in tune(host, "status")["journal"]}
    assert set(journal) == set(named), journal
    for irq, entry in journal.items():
        assert entry["state"] == ("drifted" if irq in moved else "applied"), (entry, driven)
        assert irq not in moved or "a CPU went offline" in entry["reason"], entry

    host.check("nearpath tune rollback")
    assert tune(host, "status")["journal"] == []
    now = affinities(host)
    assert {irq: now[irq] for irq in named} == {irq: before[irq] for irq in named}
    assert all(now[irq] == driven[irq] for irq in now if irq not in named), (driven, now)
