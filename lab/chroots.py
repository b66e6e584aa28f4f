"""Clean root file systems of releases, to install packages in: chroots that leave nothing behind.

    with Chroot.enter("trixie") as chroot:
        chroot.copy(package, "/package.deb")
        chroot.check("dpkg -i /package.deb")

A release is built once into the cache. Each chroot is a layer in memory above it, in mount, PID and network
namespaces of its own: when their first process ends, the kernel removes layer, mounts and processes. That
process reads from a pipe of this one's, so it also ends when this one is killed.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from . import cache, distribution
from .distribution import Unavailable

# What the tests run in a chroot besides what is installed. No compiler is among it.
PACKAGES = ("bash-completion", "iproute2", "man-db", "systemd", "procps", "libcap2-bin")

PATIENCE_S = 120

# Mounts the layer and what programs expect, says so, and ends with its standard input.
HOLDER = """
set -e
ip link set lo up
mount -t tmpfs tmpfs "$2"
mkdir "$2/upper" "$2/work" "$2/root"
mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" "$2/root"
mount -t proc proc "$2/root/proc"
mount -t sysfs sysfs "$2/root/sys"
mount -t tracefs tracefs "$2/root/sys/kernel/tracing" || true
mount --bind /dev "$2/root/dev"
mount -t tmpfs tmpfs "$2/root/run"
echo ready
exec cat >/dev/null
"""


class Result(NamedTuple):
    """What a command in a chroot came to."""

    status: int
    out: str
    err: str


@dataclass(frozen=True)
class Chroot:
    """A root file system of a release, with namespaces of its own."""

    root: Path  # As seen from inside of the holder.
    holder: int  # The process that the namespaces last as long as.

    @classmethod
    @contextlib.contextmanager
    def enter(cls, suite: str) -> Iterator["Chroot"]:
        """A fresh chroot. Raises `Unavailable` where there can be none, with the reason."""
        base = _base(suite)
        folder = cache.folder() / "chroot-mounts"
        folder.mkdir(exist_ok=True)
        namespaces = ["unshare", "--mount", "--pid", "--net", "--fork", "--kill-child=KILL"]
        command = [*namespaces, "sh", "-c", HOLDER, "sh", str(base), str(folder)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(command, text=True, **pipes) as holder:  # type: ignore[call-overload]
            try:
                if holder.stdout.readline() != "ready\n":
                    raise Unavailable(f"no chroot: {holder.stderr.read().strip()}")
                children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text()
                yield cls(folder / "root", int(children.split()[0]))
            finally:
                holder.stdin.close()
                holder.kill()

    def run(self, command: str) -> Result:
        """Runs a shell command in it."""
        enter = ["nsenter", f"--target={self.holder}", "--mount", "--pid", "--net"]
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "HOME": "/root", "TERM": "dumb"}
        words = [*enter, "chroot", str(self.root), "/bin/bash", "-c", command]
        options = {"capture_output": True, "text": True, "timeout": PATIENCE_S, "stdin": subprocess.DEVNULL}
        done = subprocess.run(words, check=False, env=environment, **options)  # type: ignore[call-overload]
        return Result(done.returncode, done.stdout, done.stderr)

    def check(self, command: str) -> str:
        """Runs a shell command that must succeed; returns what it printed."""
        result = self.run(command)
        assert result.status == 0, f"{command}: status {result.status}\n{result.out}{result.err}"
        return result.out

    def copy(self, file: Path, to: str) -> None:
        """Puts a file of this machine into it."""
        # Through the holder, as the layer is mounted in its namespace alone.
        shutil.copyfile(file, f"/proc/{self.holder}/root{self.root}{to}")


def _base(suite: str) -> Path:
    """The unchanged root file system of a release."""
    if os.geteuid() != 0:
        raise Unavailable("chroots need root")
    versions = distribution.versions([suite], [*PACKAGES, "libc6"])

    def build(folder: Path) -> None:
        distribution.bootstrap(folder / "root", [suite], PACKAGES, "--variant=apt", "--format=directory")

    return cache.artifact(f"chroot-{suite}", [suite, versions], build) / "root"
