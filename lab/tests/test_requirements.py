"""If virtual hosts are not available, the lab prints the reason in one line, and skips its tests with it.

Pure: the machine's properties are replaced, or removed.
"""

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lab import distribution, requirements
from lab.distribution import Unavailable
from lab.payload import PROJECT

DEBIAN = {"ID": "debian", "VERSION_CODENAME": "bookworm"}


@pytest.fixture(autouse=True)
def programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine on which nothing is missing; returns the directory of its programs."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for program in (*requirements.PROGRAMS, "unshare"):
        install(folder / program, "exit 0")
    for name in ("tun", "keyring"):
        (tmp_path / name).touch()
        monkeypatch.setattr(requirements, name.upper(), tmp_path / name)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("NEARPATH_LAB_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: DEBIAN)
    monkeypatch.setattr(requirements, "DISK_BYTES", 1)
    return folder


def install(file: Path, script: str) -> None:
    """Creates a program from a shell command."""
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


def reason() -> str:
    with pytest.raises(Unavailable) as raised:
        requirements.check()
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_nothing_is_missing() -> None:
    requirements.check()


def test_another_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert reason() == "the guests are x86-64, this machine is aarch64"


def test_another_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    fedora = {"ID": "fedora", "PRETTY_NAME": "Fedora Linux 43", "VERSION_CODENAME": ""}
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: fedora)
    assert reason() == "virtual hosts are built from Debian's packages, on Debian; this is Fedora Linux 43"

    def none() -> dict[str, str]:
        raise OSError("no os-release")

    monkeypatch.setattr(platform, "freedesktop_os_release", none)
    assert reason() == "unknown distribution: no os-release"


def test_a_user() -> None:
    # In another process, which drops root if it has it.
    script = """
import os
from lab import requirements
if os.geteuid() == 0:
    os.setresuid(65534, 65534, 65534)
requirements.codename = lambda: None
requirements.check()
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == "lab.distribution.Unavailable: building and connecting them needs root"


def test_missing_packages(programs: Path, tmp_path: Path) -> None:
    for program in ("mmdebstrap", "nsenter", "setpriv"):
        (programs / program).unlink()
    assert reason() == "missing packages: mmdebstrap util-linux"
    (tmp_path / "keyring").unlink()
    assert reason() == "missing packages: debian-archive-keyring mmdebstrap util-linux"


def test_no_network(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(programs / "unshare", "exit 1")
    assert reason() == "this process may not make network namespaces"
    monkeypatch.setattr(requirements, "TUN", programs / "tun")
    assert reason() == f"there is no {programs}/tun for their network"


def test_no_room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(requirements, "DISK_BYTES", 1 << 60)
    room = r" has room for \d+ GiB, and 1073741824 are needed"
    assert re.fullmatch(re.escape(f"{tmp_path}/cache") + room, reason())


def test_an_unreachable_mirror(programs: Path) -> None:
    install(programs / "apt-get", "echo W: slow; echo 'E: Unable to connect' >&2; exit 100")
    with pytest.raises(Unavailable, match="^apt-get failed: E: Unable to connect$"):
        distribution.versions(("bookworm",), ("bash",))
    install(programs / "apt-get", "echo trixie http://mirror.invalid/debian")
    with pytest.raises(Unavailable, match="^apt has no source for bookworm"):
        distribution.versions(("bookworm",), ("bash",))


def test_tests_are_skipped_with_the_reason(tmp_path: Path) -> None:
    log = tmp_path / "skipped"
    # Not the fixture's programs, but none at all.
    environment = {**os.environ, "PATH": "/nonexistent", "NEARPATH_SKIP_LOG": str(log)}
    command = [sys.executable, "-m", "pytest", "lab/tests/test_smoke.py", "--kernels=6.12"]
    done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    skipped = [line.split("\t") for line in log.read_text().splitlines()]
    assert skipped and all(test.startswith("lab/tests/test_smoke.py::") for test, _ in skipped)
    (why,) = {why for _, why in skipped}
    assert why.startswith("no virtual hosts: ") and why in done.stdout
    assert f"{len(skipped)} skipped" in done.stdout and "passed" not in done.stdout
