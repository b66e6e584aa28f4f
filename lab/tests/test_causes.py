"""Causes of slow packets on each kernel: an obstacle that nearpath's own test puts in the way of continuous
datagrams must be named. Here on a kernel that shows wake-ups, switches and stacks by older tracepoints.
"""

from pathlib import Path

import pytest

from lab import Host
from lab.fixtures import EVERY_CASE, lab
from lab.payload import payload_of_tests

from .hosts import TWO_NODES

TEST = "kernel_causes"
# In emulation everything takes longer, so the threshold of slow packets is higher.
SCALE = "NEARPATH_FAULT_SCALE=4"


@pytest.fixture(scope="module")
def payload(lab_here: None) -> Path:
    return payload_of_tests("nearpath-instruments", TEST)


@lab(kernels=("5.10",), topology=TWO_NODES)
@pytest.mark.parametrize("cause", ["readers::a_lock_that_another_thread_holds"])
def test_a_cause_is_named(host: Host, cause: str) -> None:
    host.run("modprobe -a veth")
    status, out, err = host.run(["env", EVERY_CASE, SCALE, TEST, "--exact", cause, "--nocapture"], timeout_s=300)
    print(out)
    assert status == 0, err
