"""The cache builds missing artifacts once, and keeps no broken ones; run folders end with their process.

Pure: the cache and the temporary directory are the test's own.
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab import cache
from lab.payload import PROJECT
from lab.run_folder import RunFolder
from lab.waiting import wait_until


@pytest.fixture(autouse=True)
def folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Gives the test and its child processes a private cache and temporary directory."""
    monkeypatch.setenv("NEARPATH_LAB_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture
def script() -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Starts Python in another process that can import the lab."""
    started = []

    def start(text: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", text], cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def says(text: str) -> Callable[[Path], None]:
    """A build that creates a file."""

    def build(path: Path) -> None:
        (path / "file").write_text(text)

    return build


def never(path: Path) -> None:
    raise AssertionError(f"built again: {path}")


def artifacts() -> list[str]:
    """Everything in the cache except locks."""
    return sorted(path.name for path in cache.folder().iterdir() if path.suffix != ".lock")


def test_an_artifact_is_built_when_its_inputs_change() -> None:
    first = cache.artifact("thing", ("6.1", 1), says("one"))
    assert (first / "file").read_text() == "one"
    assert cache.artifact("thing", ("6.1", 1), never) == first
    second = cache.artifact("thing", ("6.1", 2), says("two"))
    assert second != first and (second / "file").read_text() == "two"
    assert cache.artifact("thing", ("6.1", 1), never) == first
    assert artifacts() == sorted([first.name, second.name])


def test_a_build_that_fails_leaves_nothing() -> None:
    def fails(path: Path) -> None:
        (path / "half").write_text("of it")
        raise RuntimeError("no disk")

    with pytest.raises(RuntimeError, match="no disk"):
        cache.artifact("thing", 1, fails)
    assert artifacts() == []
    assert (cache.artifact("thing", 1, says("whole")) / "file").exists()


def test_the_most_recently_used_are_kept() -> None:
    longer = cache.artifact("thing-2", 0, says("0"))
    made = [cache.artifact("thing", number, says(str(number))) for number in range(cache.KEPT)]
    for age, path in enumerate(made):
        os.utime(path, (1000 - age, 1000 - age))
    cache.artifact("thing", 0, never)  # now the most recent; the last one is the oldest
    new = cache.artifact("thing", "new", says("new"))
    assert artifacts() == sorted(path.name for path in [longer, *made[:-1], new])


BUILDER = """
from lab import cache
def build(path):
    print("building", flush=True)
    (path / "file").write_text(input())
print(cache.artifact("thing", 1, build), flush=True)
"""


def test_two_processes_build_once(script: Callable[[str], subprocess.Popen[str]]) -> None:
    first = script(BUILDER)
    assert first.stdout and first.stdout.readline() == "building\n"
    second = script(BUILDER)
    wait_until(lambda: waits_for_a_lock(second.pid), "the second process waits for the first")
    path, _ = first.communicate("first\n")
    assert second.communicate("second\n")[0] == path
    assert (Path(path.strip()) / "file").read_text() == "first"


def test_a_killed_build_is_restarted(script: Callable[[str], subprocess.Popen[str]]) -> None:
    other = script(BUILDER.replace('"thing"', '"thing-2"'))
    killed = script(BUILDER)
    for process in (other, killed):
        assert process.stdout and process.stdout.readline() == "building\n"
    killed.kill()
    killed.wait()
    assert len(artifacts()) == 2
    path = cache.artifact("thing", 1, says("whole"))
    # The other build continues, although its name starts with this one's.
    assert other.communicate("other\n")[0].startswith(f"{cache.folder()}/thing-2-")
    assert (path / "file").read_text() == "whole"
    assert len(artifacts()) == 2 and not any(name.startswith(".") for name in artifacts())


def waits_for_a_lock(pid: int) -> bool:
    """Whether a process waits for a file lock: `1: -> FLOCK ADVISORY WRITE PID ...`."""
    locks = (line.split() for line in Path("/proc/locks").read_text().splitlines())
    return any("->" in words and str(pid) in words for words in locks)


def test_cleaning_keeps_foreign_files(tmp_path: Path) -> None:
    cache.artifact("thing", 1, says("one"))
    (cache.folder() / "apt/lists").mkdir(parents=True)
    cache.clean()
    assert not (tmp_path / "cache").exists()
    cache.artifact("thing", 1, says("one"))
    (cache.folder() / "letters-of-my-aunt").mkdir()
    cache.clean()
    assert artifacts() == ["letters-of-my-aunt"]


def test_a_tree_hash_covers_names_modes_and_contents(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "folder").mkdir(parents=True)
    file = tree / "folder/init"
    file.write_text("#!/bin/sh\n")
    hashes = [cache.tree_hash(tree)]
    file.chmod(0o755)
    hashes.append(cache.tree_hash(tree))
    file.write_text("#!/bin/sh -e\n")
    hashes.append(cache.tree_hash(tree))
    file.rename(tree / "init")
    hashes.append(cache.tree_hash(tree))
    assert len(set(hashes)) == 4
    assert cache.tree_hash(tree) == hashes[-1]


HOLDER = """
from lab.run_folder import RunFolder
folder = RunFolder("test")
(folder.path / "file").touch()
print(folder.path, flush=True)
input()
"""


def test_a_run_folder_ends_with_its_process(script: Callable[[str], subprocess.Popen[str]], tmp_path: Path) -> None:
    mine = tmp_path / "nearpath-lab-notes"
    mine.mkdir()
    holder = script(HOLDER)
    assert holder.stdout
    path = Path(holder.stdout.readline().strip())
    assert path.parent == tmp_path and (path / "file").exists()
    with RunFolder("test") as other:
        assert other.path.is_dir() and path.exists()
    assert not other.path.exists() and path.exists()
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert path.exists()
    with RunFolder("test"):
        assert not path.exists()
    assert mine.exists()
