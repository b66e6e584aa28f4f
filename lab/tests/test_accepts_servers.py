"""Accepts and datagrams that nearpath's own tests drive in a guest: their servers report the CPU on which the kernel
received what they accept or read.
"""

from pathlib import Path

import pytest

from lab import Host, Nic
from lab.fixtures import lab
from lab.payload import payload_of_tests

from .hosts import IGB, SMT, TWO_NODES

URING = "kernel_accepts_uring"
DATAGRAMS = "kernel_accepts_datagrams"
ACCEPTS = "kernel_accepts"


@pytest.fixture(scope="module")
def payload(lab_here: None) -> Path:
    return payload_of_tests("nearpath-instruments", URING, DATAGRAMS, ACCEPTS)


@lab(topology=TWO_NODES, nics=IGB)
def test_accepts_are_counted(host: Host) -> None:
    assert len(figures(host, ACCEPTS)) == 2, "some were skipped"


@lab(topology=TWO_NODES, nics=IGB)
def test_accepts_of_io_uring_are_counted(host: Host) -> None:
    if host.machine.kernel == "5.10":
        pytest.skip("before Linux 6.0 io_uring does not report which request is completed")
    # A line for each ring and kind of accept.
    assert len(figures(host, URING)) == 7, "some were skipped"


@lab(topology=SMT, nics=(Nic("igb", node=1),))
def test_datagrams_are_counted(host: Host) -> None:
    # A line for each of two workers that sleep, of IPv4 and of IPv6, and of two that spin.
    assert len(figures(host, DATAGRAMS)) >= 6, "some were skipped"


def figures(host: Host, test: str) -> list[str]:
    """Runs the tests of a program; returns the lines that compare nearpath and the servers."""
    status, out, err = host.run([test, "--nocapture"], timeout_s=300)
    print(out)
    assert status == 0, out + err
    return [line for line in out.splitlines() if "the server says" in line or "the worker says" in line]
