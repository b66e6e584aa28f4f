"""The cache folder: what the lab builds is kept there, and built anew when its inputs change.

An *artifact* is a folder named `NAME-HASH`, where the hash is that of everything that went
into it. It is made in a temporary folder and renamed when it is whole, so that a build that
was interrupted leaves nothing that looks finished.
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

# Artifacts of the same name that are kept: today's, and those of other branches of one's work.
KEPT = 3

# The end of an artifact's name, as a pattern.
HASH = "[0-9a-f]" * 12


def folder() -> Path:
    """The cache folder: `NEARPATH_LAB_DIR`, by default `~/.cache/nearpath-lab`. Made if missing."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    path = Path(os.environ.get("NEARPATH_LAB_DIR") or f"{home}/nearpath-lab").expanduser().absolute()
    path.mkdir(parents=True, exist_ok=True)
    return path


def clean() -> None:
    """Removes what the lab has put into the cache folder, and the folder if that was all."""
    path = folder()
    for pattern in (f"*-{HASH}", ".building-*", "apt"):
        for built in path.glob(pattern):
            shutil.rmtree(built)
    for lock in path.glob("*.lock"):
        lock.unlink()
    with contextlib.suppress(OSError):  # somebody has other things in it
        path.rmdir()


def say(line: str) -> None:
    """Tells a person what the lab is at, on standard error."""
    print(f"lab: {line}", file=sys.stderr, flush=True)


def artifact(name: str, inputs: object, build: Callable[[Path], None]) -> Path:
    """The folder of an artifact, built with `build(folder)` unless it is there already.

    `inputs` is all that the result depends on; its `repr` is hashed, so it must be plain data.
    Two processes that want the same artifact do not build it twice: the second one waits.
    """
    key = hashlib.sha256(repr(inputs).encode()).hexdigest()[:12]
    path = folder() / f"{name}-{key}"
    if not path.exists():
        with locked(folder() / f"{name}.lock"):
            if not path.exists():
                _make(path, name, build)
                _forget_old(name)
    os.utime(path)  # used today: older ones of the name go first
    return path


def _make(path: Path, name: str, build: Callable[[Path], None]) -> None:
    start = time.monotonic()
    building = Path(tempfile.mkdtemp(prefix=f".building-{name}-", dir=folder()))
    try:
        building.chmod(0o755)
        build(building)
        os.utime(building)  # packages bring times of their own, and _forget_old goes by them
        building.rename(path)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    say(f"built {name} in {time.monotonic() - start:.1f} s")


def _forget_old(name: str) -> None:
    """Removes all but the artifacts of this name that were used last, and broken-off builds."""
    there = sorted(folder().glob(f"{name}-{HASH}"), key=lambda path: path.stat().st_mtime)
    # Eight marks, as mkdtemp adds: names may begin with this one, and their builds are not to be touched.
    for path in [*there[:-KEPT], *folder().glob(f".building-{name}-{'?' * 8}")]:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds an exclusive lock on a file; the kernel gives it up if the process dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def file_hash(path: Path) -> str:
    """SHA-256 of a file's contents, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def tree_hash(path: Path) -> str:
    """SHA-256 over the names, modes and contents of the files below a folder, in hex."""
    files = sorted(file for file in path.rglob("*") if file.is_file())
    parts = [(str(file.relative_to(path)), file.stat().st_mode, file_hash(file)) for file in files]
    return hashlib.sha256(repr(parts).encode()).hexdigest()
