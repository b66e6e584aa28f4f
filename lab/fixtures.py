"""The pytest plugin: the virtual hosts that a test needs, and the host that it gets.

    @lab(topology=TWO_NODES, nics=(Nic("igb"),))      # on each kernel of --kernels
    @lab(kernels=("5.10",), nics=(Nic("virtio"),))    # several marks: on each of them
    @lab(tiers=(smoke,), nics=(Nic("vmxnet3"),))      # in this tier on this host alone
    def test_something(host): ...

The tier of a test says when it is run; without one, in `make test-all`:

    @representative    of its feature: in `make test`
    @smoke             in `.ci/run` on the other kernels, too

A test of this machine's kernel that takes as long has the mark `kernel`, and its tier's. A test runs once; again only
if the emulator died (`EmulatorDied`), which is printed. Tests listed in tests/quarantine.txt run and do not decide.

Each test gets a host of its own, restored for it, with nearpath in it. When a test fails,
the host's console, dmesg and the commands that it ran are kept, and the report says where.
A test that requests `machine` instead of `host` gets only the description. All that need a
virtual host have the mark `virtual`; the others are pure, or have the mark `kernel`.
"""

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from . import images
from .distribution import Unavailable
from .host import Host
from .machine import Machine
from .payload import PROJECT, nearpath_payload
from .records import record_rerun, record_skip
from .requirements import check

lab = pytest.mark.lab
representative = pytest.mark.representative
smoke = pytest.mark.smoke
kernel = pytest.mark.kernel

USUAL_KERNEL = "6.12"


def quarantine() -> dict[str, str]:
    """The tests of tests/quarantine.txt: since when, and what is known."""
    lines = (PROJECT / "tests/quarantine.txt").read_text().splitlines()
    rows = [line.split("\t") for line in lines if line and not line.startswith("#")]
    return {test: f"since {since}: {known}" for test, since, known in rows}


UNRELIABLE = quarantine()

MARKS = (
    "lab(kernels, tiers, and the fields of Machine but kernel): the virtual host that the test wants",
    "representative: one test of each feature, run by `make test`",
    "smoke: run by `.ci/run` on the other kernels than the usual one",
    "kernel: runs on this machine's kernel, and takes as long as on a virtual host",
    "virtual: runs on a virtual host; set by the lab itself",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of the lab."""
    known = ", ".join(images.KERNELS)
    parser.addoption("--kernels", default=USUAL_KERNEL, help=f"for tests that do not say which; known: {known}")


def pytest_configure(config: pytest.Config) -> None:
    """Declares the marks, and rejects unknown kernels."""
    for mark in MARKS:
        config.addinivalue_line("markers", mark)
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
        tiers = wanted.pop("tiers", ())
        for series in kernels:
            machine = Machine(series, **wanted)
            machines.append(pytest.param(machine, id=machine.name, marks=tiers))
    metafunc.parametrize(wanting[0], machines, indirect=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what wants a virtual host, before -m selects, and what is unreliable."""
    for item in items:
        if "lab_here" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.virtual)
        if (known := UNRELIABLE.get(item.nodeid.partition("[")[0])) is not None:
            item.add_marker(pytest.mark.xfail(reason=f"quarantine: {known}", strict=False))


def _kernels(config: pytest.Config) -> list[str]:
    return str(config.getoption("--kernels")).split(",")


@pytest.fixture(scope="session")
def lab_here() -> None:
    """Skips the tests if virtual hosts are not available, with the reason."""
    try:
        check()
        images.root()
    except Unavailable as reason:
        pytest.skip(f"no virtual hosts: {reason}")


@pytest.fixture(scope="session")
def payload(lab_here: None) -> Path:
    """The payload of every guest: nearpath from this tree."""
    return nearpath_payload()


@pytest.fixture
def machine(request: pytest.FixtureRequest) -> Machine:
    """The machine that a test needs, not started."""
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
        began, waited_s = time.monotonic(), host.waited_s()
        yield host
        if request.node.stash.get(FAILED, False):
            waited_s, passed_s = host.waited_s() - waited_s, time.monotonic() - began
            print(f"in {passed_s:.0f} s the emulator's threads waited for this machine's CPUs for {waited_s:.1f} s")
            keep_evidence(host, request.node.nodeid.partition("::")[2])


def keep_evidence(host: Host, name: str) -> None:
    """Saves the evidence of a failed test, and prints where."""
    folder = PROJECT / "target/lab-failures" / re.sub(r"[^\w.+-]+", "_", name)
    shutil.rmtree(folder, ignore_errors=True)
    host.keep_evidence(folder)
    print(f"the virtual host's console, dmesg and commands are in {folder}")
    if last_words := host.last_words():
        print(last_words)


FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Iterator[None]:
    """Notes for `host` whether the test has failed, and for `make test` that it was skipped."""
    outcome: Any = yield
    report = outcome.get_result()
    if report.when == "setup":
        # It may be rerun.
        item.stash[FAILED] = False
    if report.failed:
        item.stash[FAILED] = True
    if report.skipped and not hasattr(report, "wasxfail"):
        record_skip(item.nodeid, report.longrepr[2].removeprefix("Skipped: "))


# For tests of nearpath's own that run in a guest: those that are left to `make test-all` run as well.
EVERY_CASE = "NEARPATH_LENGTHY=1"


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
    """Prints the reason of each rerun, whatever its result."""
    for report in terminalreporter.stats.get("rerun", []):
        crash = getattr(report.longrepr, "reprcrash", None)
        cause = crash.message if crash else str(report.longrepr)
        record_rerun(report.nodeid, cause)
        terminalreporter.write_line(f"(R) the emulator died: {report.nodeid}: {cause}")
