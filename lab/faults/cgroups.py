"""Control groups with a limit, in the hierarchy that has the controller: version 1 or 2."""

import os
import re
from pathlib import Path


class Unsupported(RuntimeError):
    """Not supported on this machine."""


def _hierarchies() -> dict[str, tuple[Path, int]]:
    """The hierarchy of each controller, and its version."""
    found = {}
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, path, kind, options, *_ = line.split()
        if kind == "cgroup":
            for controller in options.split(","):
                found[controller] = (Path(path), 1)
        elif kind == "cgroup2":
            for controller in (Path(path) / "cgroup.controllers").read_text().split():
                found.setdefault(controller, (Path(path), 2))
    return found


class Group:
    """A group with one limit; tasks leave it for the root when it is closed."""

    def __init__(self, controller: str) -> None:
        hierarchy = _hierarchies().get(controller)
        if hierarchy is None:
            raise Unsupported(f"no cgroup hierarchy has the controller {controller}")
        root, self.version = hierarchy
        if self.version == 2:
            control = root / "cgroup.subtree_control"
            if controller not in control.read_text().split():
                control.write_text(f"+{controller}")
        _remove_abandoned(root)
        self.root, self.path = root, root / f"npfault-{os.getpid()}-{controller}"
        self.path.mkdir()

    def limit_cpu(self, quota_ns: int, period_ns: int) -> None:
        """Limits the CPU time in each period."""
        if self.version == 2:
            (self.path / "cpu.max").write_text(f"{quota_ns // 1000} {period_ns // 1000}")
        else:
            (self.path / "cpu.cfs_period_us").write_text(str(period_ns // 1000))
            (self.path / "cpu.cfs_quota_us").write_text(str(quota_ns // 1000))

    def limit_memory(self, size: int) -> None:
        """Above this limit its tasks must reclaim memory: `memory.high`, or version 1's only limit."""
        name = "memory.high" if self.version == 2 else "memory.limit_in_bytes"
        (self.path / name).write_text(str(size))

    def add(self, pid: int) -> None:
        """Moves a process into it, with all its threads."""
        (self.path / "cgroup.procs").write_text(str(pid))

    def close(self) -> None:
        """Removes the group."""
        _remove(self.root, self.path)


def _remove(root: Path, path: Path) -> None:
    for pid in (path / "cgroup.procs").read_text().split():
        try:
            (root / "cgroup.procs").write_text(pid)
        except ProcessLookupError:
            continue
    path.rmdir()


def _remove_abandoned(root: Path) -> None:
    for path in root.glob("npfault-*"):
        match = re.match(r"npfault-(\d+)-", path.name)
        if match and not Path(f"/proc/{match[1]}").exists():
            _remove(root, path)
