"""Folders in the temp dir that last as long as the process that made them, at most.

Goes in: a purpose. Comes out: an empty folder, locked. The lock goes with the process, however
it ends; so whoever makes the next folder knows those that nobody uses any more, and removes them.
(They are not in the cache, as the path of a Unix socket has 107 bytes at most.)
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
    """A folder for files of one purpose; in a `with` block, or until `remove`."""

    def __init__(self, purpose: str) -> None:
        _remove_abandoned()
        lock = None
        while lock is None:
            self.path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{purpose}-"))
            # Before it is locked it looks abandoned to others: they may have taken it.
            lock = _lock(self.path)
        self.lock = lock

    def remove(self) -> None:
        """Removes the folder and all in it. Can be called twice."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self.lock >= 0:
            os.close(self.lock)
            self.lock = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.remove()


def _remove_abandoned() -> None:
    """Removes the folders of processes that have died."""
    for old in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        lock = _lock(old)
        if lock is not None:
            shutil.rmtree(old, ignore_errors=True)
            os.close(lock)


def _lock(folder: Path) -> int | None:
    """The descriptor that holds a folder of ours locked; `None` if it is another's or gone."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        opened = os.fstat(descriptor)
        if opened.st_uid == os.getuid() and os.path.samestat(opened, os.lstat(folder)):
            return descriptor
    except OSError:  # locked by another, or removed meanwhile
        pass
    os.close(descriptor)
    return None
