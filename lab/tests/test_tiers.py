"""Which tests a tier has, and that reruns and skips are recorded."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lab.payload import PROJECT
from lab.records import LONGEST_REASON, record_rerun, record_skip


def chosen(marks: str, *options: str) -> list[str]:
    """The tests that pytest selects."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", marks, *options, "lab/tests"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 5), done.stdout
    return [line for line in done.stdout.splitlines() if "::" in line]


def test_a_test_is_in_one_tier_of_cost() -> None:
    assert chosen("(lengthy and (representative or ci or smoke)) or (representative and ci)") == []


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


def test_changes_of_a_host_are_tested_first() -> None:
    tests = chosen("not lengthy")
    tuned = [place for place, test in enumerate(tests) if test.startswith("lab/tests/test_tune")]
    assert tuned and tuned == list(range(len(tuned)))


def test_nothing_begins_on_a_virtual_host_after_the_deadline() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-m", "representative", "lab/tests/test_snapshot.py"]
    environment = os.environ | {"NEARPATH_DEADLINE": "1", "NEARPATH_SKIP_LOG": os.devnull}
    done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "no time left before NEARPATH_DEADLINE" in done.stdout, done.stdout
    assert " passed" not in done.stdout.splitlines()[-1]


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


def test_failed_tests_are_found_in_the_output_of_cargo() -> None:
    command = [PROJECT / "scripts/failed-tests"]
    done = subprocess.run(command, input=OUTPUT, capture_output=True, text=True, check=True)
    assert [line.split("\t") for line in done.stdout.splitlines()] == [
        ["-p nearpath --test kernel_a", "group::wrong", "5 packets of 6"],
        ["-p nearpath --test kernel_a", "stands", ""],
        ["-p nearpath-host --test kernel_b", "late", ""],
        ["-p nearpath-host --lib", "?", "no test failed"],
        ["", "?", "error: could not compile `nearpath` (lib) due to 1 previous error"],
    ]
