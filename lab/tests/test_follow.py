"""Packets that are hard to follow, on kernels that allow attaching programs to functions: the same tests as on the
machine's own kernel, where programs are attached only to tracepoints.
"""

from pathlib import Path

import pytest

from lab import Host
from lab.fixtures import lab, skips_in_guest
from lab.payload import payload_of_tests

from .hosts import IGB, TWO_NODES

TEST = "kernel_follow"


@pytest.fixture(scope="module")
def payload(lab_here: None) -> Path:
    return payload_of_tests("nearpath-instruments", TEST)


@lab(topology=TWO_NODES, nics=IGB)
def test_packets_are_followed_by_functions(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    host.check("modprobe -a veth tun macvlan sch_tbf")
    status, out, err = host.run([TEST, "--nocapture", "--test-threads", "1"], timeout_s=400)
    print(out, err)
    skips = skips_in_guest(host, err)
    with capsys.disabled():
        for skip in skips:
            print(f"\nskipped on {host.machine.kernel}: {skip}")
    assert status == 0, err
    # Newer kernels have everything that the tests need.
    assert not skips or host.machine.kernel == "5.10", skips
