"""The pytest plugin: which virtual hosts a test wants, and the host that it gets.

    @lab(topology=TWO_NODES, nics=(Nic("igb"),))      # on each kernel of --kernels
    @lab(kernels=("5.10",), nics=(Nic("virtio"),))    # several marks: on each of them
    @lab(once=True, nics=(Nic("igb"),))               # on the last of the usual kernels alone
    @lab(turn=0, nics=(Nic("igb"),))                  # on one of the usual kernels: 0 the first, 1 the next, ...
    @lengthy                                          # not in `make test`, but in `make test-lengthy`
    def test_something(host): ...

Each test gets a host of its own, restored for it, with nearpath in it. When a test fails,
the host's console, dmesg and the commands that it ran are kept, and the report says where.
A test that asks for `machine` instead of `host` gets the description alone.
"""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from . import images
from .distribution import Unavailable
from .host import Host
from .machine import Machine
from .payload import PROJECT, nearpath_payload
from .requirements import check

lab = pytest.mark.lab
lengthy = pytest.mark.lengthy

# The kernels of `make test`, which has some tests on the last of them alone; `make test-kernels` has all.
USUAL_KERNELS = "6.1,6.12"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of the lab."""
    known = ", ".join(images.KERNELS)
    parser.addoption("--kernels", default=USUAL_KERNELS, help=f"for tests that do not say which; known: {known}")


def pytest_configure(config: pytest.Config) -> None:
    """Tells pytest of the mark, and refuses kernels that nobody knows."""
    config.addinivalue_line(
        "markers", "lab(kernels, once, turn, topology, nics, number): the virtual host that the test wants"
    )
    config.addinivalue_line("markers", "lengthy: left out unless asked for with -m")
    for series in _kernels(config):
        if series not in images.KERNELS:
            raise pytest.UsageError(f"no such kernel: {series}; known: {', '.join(images.KERNELS)}")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each machine that its marks name."""
    wanting = [fixture for fixture in ("host", "machine") if fixture in metafunc.fixturenames]
    if not wanting:
        return
    machines = []
    for mark in reversed(list(metafunc.definition.iter_markers("lab"))):
        wanted = dict(mark.kwargs)
        kernels = wanted.pop("kernels", _kernels(metafunc.config))
        once, turn = wanted.pop("once", False), wanted.pop("turn", None)
        if kernels == USUAL_KERNELS.split(","):
            if once:
                kernels = kernels[-1:]
            elif turn is not None:
                kernels = [kernels[turn % len(kernels)]]
        for series in kernels:
            machines.append(Machine(series, **wanted))
    metafunc.parametrize(wanting[0], machines, indirect=True, ids=[machine.name for machine in machines])


def _kernels(config: pytest.Config) -> list[str]:
    return str(config.getoption("--kernels")).split(",")


@pytest.fixture(scope="session")
def lab_here() -> None:
    """Skips the tests where virtual hosts cannot be had, and says why."""
    try:
        check()
        images.root()
    except Unavailable as reason:
        pytest.skip(f"no virtual hosts: {reason}")


@pytest.fixture(scope="session")
def payload(lab_here: None) -> Path:
    """What goes into every guest: nearpath of this tree."""
    return nearpath_payload()


@pytest.fixture
def machine(request: pytest.FixtureRequest) -> Machine:
    """The machine that a test wants, not started."""
    wanted: Machine = request.param
    return wanted


@pytest.fixture
def host(request: pytest.FixtureRequest, payload: Path) -> Iterator[Host]:
    """The virtual host of a test."""
    try:
        host = Host.restore(request.param, payload)
    except Unavailable as reason:
        pytest.skip(f"no virtual host with kernel {request.param.kernel}: {reason}")
    with host:
        yield host
        if request.node.stash.get(FAILED, False):
            keep_evidence(host, request.node.nodeid.partition("::")[2])


def keep_evidence(host: Host, name: str) -> None:
    """Keeps what tells why a test failed, and says where."""
    folder = PROJECT / "target/lab-failures" / re.sub(r"[^\w.+-]+", "_", name)
    shutil.rmtree(folder, ignore_errors=True)
    host.keep_evidence(folder)
    print(f"the virtual host's console, dmesg and commands are in {folder}")


FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Iterator[None]:
    """Notes for `host` whether the test has failed, and for `make test` that it was skipped."""
    outcome: Any = yield
    report = outcome.get_result()
    if report.when == "setup":
        # It may be run again.
        item.stash[FAILED] = False
    if report.failed:
        item.stash[FAILED] = True
    if report.skipped:
        record_skip(item.nodeid, report.longrepr[2].removeprefix("Skipped: "))


def record_skip(test: str, reason: str) -> None:
    """Notes for `make test` that a test was skipped."""
    if log := os.environ.get("NEARPATH_SKIP_LOG"):
        with Path(log).open("a", encoding="utf-8") as file:
            file.write(f"{test}\t{reason}\n")


def skips_in_guest(host: Host, said: str) -> list[str]:
    """What tests of nearpath's own, run in a guest, say on standard error of those that are skipped on its kernel: a
    reason for each, noted as if the test had been skipped here."""
    skips = [
        line.removeprefix("skipped: ").split(": ", 1) for line in said.splitlines() if line.startswith("skipped: ")
    ]
    for test, reason in skips:
        record_skip(f"{test} on {host.machine.kernel}", reason)
    return [f"{test}: {reason}" for test, reason in skips]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Says of each test that was run again why, whatever came of it then."""
    for report in terminalreporter.stats.get("rerun", []):
        crash = getattr(report.longrepr, "reprcrash", None)
        terminalreporter.write_line(f"(R) run again: {report.nodeid}: {crash.message if crash else report.longrepr}")
