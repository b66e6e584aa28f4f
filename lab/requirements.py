"""Requirements of the lab on the machine, checked before anything is built."""

import os
import platform
import shutil
import subprocess
from pathlib import Path

from . import cache
from .distribution import KEYRING, Unavailable, codename

# Programs of the machine itself, and their Debian packages.
PROGRAMS = {
    "mmdebstrap": "mmdebstrap",
    "apt-get": "apt",
    "dpkg": "dpkg",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "strip": "binutils",
}

# Needed to create taps.
TUN = Path("/dev/net/tun")

# The size of the tools, the root file system, four kernels and the tests' snapshots, plus a reserve.
DISK_BYTES = 12 << 30


def check() -> None:
    """Raises `Unavailable` with the first reason why virtual hosts are not available here."""
    if platform.machine() != "x86_64":
        raise Unavailable(f"the guests are x86-64, this machine is {platform.machine()}")
    codename()
    if os.geteuid() != 0:
        raise Unavailable("building and connecting them needs root")
    missing = {package for program, package in PROGRAMS.items() if shutil.which(program) is None}
    if not KEYRING.exists():
        missing.add("debian-archive-keyring")
    if missing:
        raise Unavailable(f"missing packages: {' '.join(sorted(missing))}")
    if not TUN.exists():
        raise Unavailable(f"there is no {TUN} for their network")
    if subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False).returncode != 0:
        raise Unavailable("this process may not make network namespaces")
    free = shutil.disk_usage(cache.folder()).free + sum(_sizes(cache.folder()))
    if free < DISK_BYTES:
        raise Unavailable(f"{cache.folder()} has room for {free >> 30} GiB, and {DISK_BYTES >> 30} are needed")


def _sizes(folder: Path) -> list[int]:
    """Bytes on disk of the existing files below a directory."""
    return [file.lstat().st_blocks * 512 for file in folder.glob("*/*") if file.is_file()]
