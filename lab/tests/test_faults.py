"""Faults that a test of nearpath injects in a guest: of those that this machine's own kernel does not
let be seen, too, each must be named by the budgets of the packets that it made late.
"""

import re
from pathlib import Path

import pytest

from lab import Host
from lab.fixtures import lab
from lab.payload import payload_of_test

from .hosts import IGB, TWO_NODES

TEST = "kernel_faults"


@pytest.fixture(scope="module")
def payload(lab_here: None) -> Path:
    return payload_of_test("nearpath-instruments", TEST)


@lab(topology=TWO_NODES, nics=IGB)
def test_each_fault_is_named(host: Host) -> None:
    host.check("modprobe veth")
    status, out, err = host.run([TEST, "--test-threads=1", "--nocapture"])
    assert status == 0, out + err
    print(out)
    figures = re.findall(r"^(?:test \w+ \.\.\. )?(.+): precision .*recall", out, re.MULTILINE)
    assert len(figures) >= 7, out
