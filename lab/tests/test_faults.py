"""Faults that nearpath's own test injects in a guest: those that are only visible if programs can
be attached to functions. Each must be named by the budgets of the packets that it delayed.
"""

import os
from pathlib import Path

import pytest

from lab import Host
from lab.fixtures import EVERY_CASE, lab
from lab.payload import payload_of_tests

from .hosts import IGB, TWO_NODES

TEST = "kernel_faults"

# In emulation everything takes longer, so the threshold of slow packets is higher.
SCALE = "NEARPATH_FAULT_SCALE=4"
ROUNDS = int(os.environ.get("NEARPATH_FAULT_ROUNDS", "40"))


@pytest.fixture(scope="module")
def payload(lab_here: None) -> Path:
    return payload_of_tests("nearpath-instruments", TEST)


@lab(topology=TWO_NODES, nics=IGB)
def test_a_quota_is_named(host: Host) -> None:
    if host.machine.kernel == "7.2":
        pytest.skip("since Linux 6.18 a quota holds a task when it returns to user space: with the packet")
    inject(host, "a_quota_that_is_used_up")


# So that tasks compete with the receiving thread: else the kernel continues softirqs at the next interrupt.
THREADS = {"kernels": ("6.12",), "parameters": ("thread_backlog_napi",), "topology": TWO_NODES, "nics": IGB}


@lab(**THREADS)
def test_a_real_time_task_ahead_of_the_receiving_thread_is_named(host: Host) -> None:
    inject(host, "a_real_time_task_before_the_thread_that_receives")


@lab(**THREADS)
def test_a_task_competing_with_the_receiving_thread_is_named(host: Host) -> None:
    # The scheduler makes the thread wait in at most a third of the rounds.
    inject(host, "a_task_beside_the_thread_that_receives", 3 * ROUNDS)


def inject(host: Host, fault: str, rounds: int = ROUNDS) -> None:
    """Runs one of the program's tests; its figures are shown if it fails."""
    host.check("modprobe veth")
    status, out, err = host.run(
        ["env", EVERY_CASE, SCALE, f"NEARPATH_FAULT_ROUNDS={rounds}", TEST, "--exact", fault, "--nocapture"],
        timeout_s=300,
    )
    print(out)
    assert status == 0, err
    assert "precision" in out, "the test was skipped"
