"""Which tests a tier has, what is tried again, and what is recorded."""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from lab.fixtures import UNRELIABLE
from lab.payload import PROJECT
from lab.records import LONGEST_REASON, record_rerun, record_skip

HAS_RERUNS = importlib.util.find_spec("pytest_rerunfailures") is not None


def chosen(marks: str, *options: str) -> list[str]:
    """The tests that pytest selects."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", marks, *options, "lab/tests"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 5), done.stdout
    return [line for line in done.stdout.splitlines() if "::" in line]


def test_make_test_has_one_kernel_and_what_needs_no_host() -> None:
    tests = chosen("representative or not (virtual or kernel)")
    on_hosts = [test for test in tests if "6.12-" in test]
    assert on_hosts and not any(f"{kernel}-" in test for test in tests for kernel in ("5.10", "6.1", "7.2"))
    assert any(test.startswith("lab/tests/test_cache.py::") for test in tests)


def test_smoke_tests_run_on_each_kernel_given() -> None:
    """Except where a test says that it takes a newer one."""
    kernels = ("5.10", "6.1", "7.2")
    tests = chosen("smoke", f"--kernels={','.join(kernels)}")
    oldest, old, new = (
        {test.replace(f"{kernel}-", "") for test in tests if f"{kernel}-" in test} for kernel in kernels
    )
    assert oldest and old == new
    # Of virtual machines: modules have no types there.
    assert oldest <= old and all("/test_vm_" in test for test in old - oldest), old - oldest


def test_the_quarantine_is_short_and_names_tests_that_exist() -> None:
    assert len(UNRELIABLE) <= 10
    sources = subprocess.run(
        ["git", "ls-files", "crates/*.rs", "lab/tests/*.py"], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    texts = [(PROJECT / file).read_text() for file in sources.stdout.split()]
    for test, known in UNRELIABLE.items():
        assert re.match(r"since 20\d\d-\d\d-\d\d: .", known), known
        function = rf"\b(fn|def) {test.rpartition('::')[2]}\("
        assert any(re.search(function, text) for text in texts), f"no test {test}"


def test_what_is_unreliable_runs_and_does_not_decide(tmp_path: Path) -> None:
    fails = "def test_it():\n    assert False\n"
    file = tmp_path / "test_unreliable.py"
    file.write_text(fails)
    plugin = tmp_path / "listed.py"
    plugin.write_text(
        f"import lab.fixtures\nlab.fixtures.UNRELIABLE = {{'{file.name}::test_it': 'since today: a test'}}\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "lab.fixtures", "-p", "no:cacheprovider", "-rx", file.name]
    environment = os.environ | {"PYTHONPATH": f"{PROJECT}:{tmp_path}", "NEARPATH_SKIP_LOG": str(tmp_path / "skips")}
    for listed, status, said in (([], 1, "1 failed"), (["-p", "listed"], 0, "1 xfailed")):
        done = subprocess.run(
            [*command, *listed], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == status and said in done.stdout, done.stdout
    assert "quarantine: since today: a test" in done.stdout
    assert not (tmp_path / "skips").exists(), "it was not skipped"


def test_only_an_emulator_that_died_is_tried_again(tmp_path: Path) -> None:
    file = tmp_path / "test_tries.py"
    file.write_text(
        "from pathlib import Path\nfrom lab.agent import EmulatorDied\n"
        "def tried(name):\n    with Path(__file__).with_name(name).open('a') as file:\n        file.write('x')\n"
        "def test_dies():\n    tried('dies')\n    raise EmulatorDied('QEMU closed its socket')\n"
        "def test_fails():\n    tried('fails')\n    assert not 'lab.agent.EmulatorDied: in what was compared'\n"
    )
    if not HAS_RERUNS:
        pytest.skip("no pytest-rerunfailures")
    # The options of scripts/lab.
    options = re.search(r"^together=\((.*)\)$", (PROJECT / "scripts/lab").read_text(), re.MULTILINE)
    assert options
    words = [word for word in shlex.split(options[1]) if word not in ("-n", "$workers")]
    command = [sys.executable, "-m", "pytest", "-q", *words, "-p", "no:cacheprovider", str(file)]
    environment = os.environ | {"PYTHONPATH": str(PROJECT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout
    assert ((tmp_path / "dies").read_text(), (tmp_path / "fails").read_text()) == ("xx", "x"), done.stdout


def test_a_record_is_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for log, record in (("NEARPATH_SKIP_LOG", record_skip), ("NEARPATH_RERUN_LOG", record_rerun)):
        monkeypatch.setenv(log, str(tmp_path / log))
        record("a::test", "two\nlines\tand a tab")
        record("b", "x" * 1000)
        first, second = (tmp_path / log).read_text().splitlines()
        assert first == "a::test\ttwo lines and a tab"
        assert second == "b\t" + "x" * LONGEST_REASON


OUTPUT = """\
test a_pure_one ... ok
test group::wrong ... FAILED
test stands ... FAILED

failures:

---- group::wrong stdout ----

thread 'group::wrong' (7) panicked at tests/kernel_a.rs:1:2:
5 packets\tof 6
note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace

---- stands stdout ----
Error: "refused"

error: test failed, to rerun pass `-p nearpath --test kernel_a`
test late ... FAILED

thread 'late' (8) panicked at tests/kernel_b.rs:1:2:
too early: the heading of the test is missing
error: test failed, to rerun pass `-p nearpath-host --test kernel_b`
error: test failed, to rerun pass `-p nearpath-host --lib`
error: could not compile `nearpath` (lib) due to 1 previous error
"""


def test_failed_tests_are_found_in_the_output_of_cargo(tmp_path: Path) -> None:
    listed = tmp_path / "quarantine.txt"
    listed.write_text("# A comment\nkernel_a::stands\t2026-01-01\tnothing is known\n")
    command = [PROJECT / "scripts/failed-tests", listed, "/dev/stdin"]
    done = subprocess.run(command, input=OUTPUT, capture_output=True, text=True, check=True)
    assert [line.split("\t") for line in done.stdout.splitlines()] == [
        ["failed", "kernel_a::group::wrong", "5 packets of 6"],
        ["quarantined", "kernel_a::stands", ""],
        ["failed", "kernel_b::late", ""],
        ["failed", "nearpath-host::?", "no test failed"],
        ["failed", "?", "error: could not compile `nearpath` (lib) due to 1 previous error"],
    ]
