"""Whole paths on each kernel: nearpath's own tests of them, run in a guest."""

from pathlib import Path

import pytest

from lab import Host
from lab.fixtures import lab, lengthy
from lab.payload import payload_of_tests

from .hosts import IGB, TWO_NODES

TEST = "kernel_paths"


@pytest.fixture(scope="module")
def payload(lab_here: None) -> Path:
    return payload_of_tests("nearpath-instruments", TEST)


@lengthy
@lab(turn=0, topology=TWO_NODES, nics=IGB)
def test_whole_paths(host: Host) -> None:
    status, out, err = host.run([TEST], timeout_s=300)
    assert status == 0 and "7 passed" in out, out + err
