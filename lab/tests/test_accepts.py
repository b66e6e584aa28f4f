"""Accepts of io_uring, which nearpath's own test drives in a guest: the server there tells where the kernel
received each connection. (That of accept(2) and of steered servers is in test_steer.py.)
"""

from pathlib import Path

import pytest

from lab import Host
from lab.fixtures import lab
from lab.payload import payload_of_test

from .hosts import IGB, TWO_NODES

TEST = "kernel_accepts_uring"
# Rings and ways to accept that the test has, each with a line of figures.
RINGS = 7


@pytest.fixture(scope="module")
def payload(lab_here: None) -> Path:
    return payload_of_test("nearpath-instruments", TEST)


@lab(once=True, topology=TWO_NODES, nics=IGB)
def test_accepts_of_io_uring_are_counted(host: Host) -> None:
    status, out, err = host.run([TEST, "--nocapture"], timeout_s=300)
    print(out)
    assert status == 0, out + err
    figures = [line for line in out.splitlines() if "as the server says" in line]
    assert len(figures) == RINGS, "some were skipped"
