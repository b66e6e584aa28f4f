"""Causes of slow packets on each kernel: what a test of nearpath's own puts in the way of datagrams that come
all the time must be named. Here are the queueing disciplines that the machine's own kernel may lack, and kernels
that show wake-ups, switches and stacks by older tracepoints.
"""

from pathlib import Path

import pytest

from lab import Host
from lab.fixtures import lab
from lab.payload import payload_of_tests

from .hosts import TWO_NODES

TEST = "kernel_causes"
# In emulation everything takes longer, and so must what is to be called slow.
SCALE = "NEARPATH_FAULT_SCALE=4"


@pytest.fixture(scope="module")
def payload(lab_here: None) -> Path:
    return payload_of_tests("nearpath-instruments", TEST)


@lab(topology=TWO_NODES)
@pytest.mark.parametrize(
    "cause",
    [
        "readers::packets_behind_a_task_epoll",
        "readers::a_lock_that_another_thread_holds",
        "readers::a_reader_in_a_page_fault",
        "readers::a_reader_that_is_stopped",
        "queues::pacing",
        "queues::a_delay",
        "queues::a_token_bucket",
        "tcp::data_that_is_missing",
        "tcp::a_socket_that_its_reader_holds_locked",
    ],
)
def test_a_cause_is_named(host: Host, cause: str) -> None:
    host.run("modprobe -a veth sch_tbf sch_fq sch_netem sch_htb")
    status, out, err = host.run(["env", SCALE, TEST, "--exact", cause, "--nocapture"], timeout_s=300)
    print(out)
    assert status == 0, err
