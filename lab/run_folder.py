"""Temporary directories that live at most as long as the process that created them.

Input: a purpose. Output: an empty, locked directory. The kernel releases the lock when the process exits;
whoever creates the next directory detects unused ones by their lock, and removes them.
(They are not in the cache, since the path of a Unix socket has at most 107 bytes.)
"""

import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

PREFIX = "nearpath-lab-run-"


class RunFolder:
    """A directory for one purpose; in a `with` block, or until `remove`."""

    def __init__(self, purpose: str) -> None:
        _remove_abandoned()
        lock = None
        while lock is None:
            self.path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{purpose}-"))
            # Until it is locked it looks abandoned: another process may have removed it.
            lock = _lock(self.path)
        self.lock = lock

    def remove(self) -> None:
        """Removes the directory and its contents. Can be called twice."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self.lock >= 0:
            os.close(self.lock)
            self.lock = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.remove()


def _remove_abandoned() -> None:
    """Removes the directories of dead processes."""
    for old in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        lock = _lock(old)
        if lock is not None:
            shutil.rmtree(old, ignore_errors=True)
            os.close(lock)


def _lock(folder: Path) -> int | None:
    """A descriptor that locks one of our directories; `None` if it is in use or gone."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        opened = os.fstat(descriptor)
        if opened.st_uid == os.getuid() and os.path.samestat(opened, os.lstat(folder)):
            return descriptor
    except OSError:  # locked by another process, or just removed
        pass
    os.close(descriptor)
    return None
