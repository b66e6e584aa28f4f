"""The cache directory: build artifacts of the lab, which are rebuilt when their inputs change.

An *artifact* is a directory named `NAME-HASH`, where the hash covers all its
inputs. It is built in a temporary directory and renamed when it is complete, so that an
interrupted build leaves nothing that looks finished.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

# Number of artifacts with the same name to keep: the current one, and those of other branches.
KEPT = 3

# Pattern of the end of an artifact's name.
HASH = "[0-9a-f]" * 12


def folder() -> Path:
    """The cache directory: `NEARPATH_LAB_DIR`, by default `~/.cache/nearpath-lab`. Created if missing."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    path = Path(os.environ.get("NEARPATH_LAB_DIR") or f"{home}/nearpath-lab").expanduser().absolute()
    path.mkdir(parents=True, exist_ok=True)
    return path


def clean() -> None:
    """Removes the lab's files from the cache directory, and the directory if it is then empty."""
    path = folder()
    for pattern in (f"*-{HASH}", ".building-*", "apt"):
        for built in path.glob(pattern):
            shutil.rmtree(built)
    for lock in path.glob("*.lock"):
        lock.unlink()
    with contextlib.suppress(OSError):  # it contains other files
        path.rmdir()


def say(line: str) -> None:
    """Prints progress on standard error."""
    print(f"lab: {line}", file=sys.stderr, flush=True)


def artifact(name: str, inputs: object, build: Callable[[Path], None]) -> Path:
    """The directory of an artifact, built with `build(folder)` if it does not exist.

    The result depends only on `inputs`; its `repr` is hashed, so it must be plain data.
    If two processes need the same artifact, the second one waits for the first to build it.
    """
    key = hashlib.sha256(repr(inputs).encode()).hexdigest()[:12]
    path = folder() / f"{name}-{key}"
    if not path.exists():
        with locked(folder() / f"{name}.lock"):
            if not path.exists():
                _make(path, name, build)
                _forget_old(name)
    os.utime(path)  # marks it as used: the least recently used ones are removed first
    return path


def _make(path: Path, name: str, build: Callable[[Path], None]) -> None:
    start = time.monotonic()
    building = Path(tempfile.mkdtemp(prefix=f".building-{name}-", dir=folder()))
    try:
        building.chmod(0o755)
        build(building)
        os.utime(building)  # packages set their own times, and _forget_old compares them
        building.rename(path)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    say(f"built {name} in {time.monotonic() - start:.1f} s")


def _forget_old(name: str) -> None:
    """Removes all but the most recently used artifacts of this name, and interrupted builds."""
    there = sorted(folder().glob(f"{name}-{HASH}"), key=lambda path: path.stat().st_mtime)
    # Eight characters, as mkdtemp adds: other names may start with this one, and their builds must stay.
    for path in [*there[:-KEPT], *folder().glob(f".building-{name}-{'?' * 8}")]:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds an exclusive lock on a file; the kernel releases it if the process dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def file_hash(path: Path) -> str:
    """SHA-256 of a file's contents, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def tree_hash(path: Path) -> str:
    """SHA-256 over the names, modes and contents of the files below a directory, in hex."""
    files = sorted(file for file in path.rglob("*") if file.is_file())
    parts = [(str(file.relative_to(path)), file.stat().st_mode, file_hash(file)) for file in files]
    return hashlib.sha256(repr(parts).encode()).hexdigest()
