"""A plan with channels, rings, RSS, interrupts and queues on a real driver is undone to the byte.

The scenes are tests in Rust, which run in the guest.
"""

from pathlib import Path

import pytest

from lab import Host
from lab.fixtures import lab, lengthy, skips_in_guest
from lab.payload import payload_of_tests

from .hosts import IGB, TWO_NODES

TEST = "kernel_tune_nic"


@pytest.fixture(scope="module")
def payload(lab_here: None) -> Path:
    """The test, and nearpath, which it runs."""
    return payload_of_tests("nearpath", TEST)


def run_scenes(host: Host, *names: str) -> None:
    """Runs scenes of the test, none of which may be skipped."""
    test = ["env", "NEARPATH_TUNE_NIC=nic0", TEST, "--exact", *names, "--nocapture", "--test-threads", "1"]
    status, out, err = host.run(test, timeout_s=900)
    print(out)
    assert status == 0, out + err
    assert f"{len(names)} passed" in out
    assert skips_in_guest(host, err) == []


@lab(turn=1, topology=TWO_NODES, nics=IGB)
def test_undone_to_the_byte(host: Host) -> None:
    """Whole plans, applied and undone."""
    run_scenes(
        host,
        "a_plan_is_applied_and_undone_to_the_byte",
        "interrupts_after_rings_are_no_drift_and_both_come_back",
    )


@lengthy
@lab(once=True, topology=TWO_NODES, nics=IGB)
def test_killed_at_any_time_it_is_undone(host: Host) -> None:
    """Killed while it applies and while it undoes."""
    run_scenes(host, "a_kill_while_applying_or_undoing_loses_nothing")


@lengthy
@lab(once=True, topology=TWO_NODES, nics=IGB)
def test_undone_after_a_cpu_was_offline(host: Host) -> None:
    """While it is offline the kernel moves its interrupts, and leaves them there."""
    run_scenes(host, "a_cpu_that_goes_and_comes_back_is_no_drift")
