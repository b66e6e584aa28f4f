"""Packages from the distribution: looks up versions, and unpacks packages into a directory.

The lab uses Debian's packages, from the machine's own mirror, and
installs nothing on the machine: apt runs with separate lists and caches.
"""

import hashlib
import json
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from . import cache

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")

# How long package lists are used before they are refreshed from the mirror.
LISTS_AGE_S = 7 * 24 * 3600

# Old suites are no longer re-signed, and mirrors may be outdated; signatures are still checked.
APT_OPTIONS = {
    "Acquire::Check-Valid-Until": "false",
    "Acquire::Retries": "3",
    "APT::Install-Recommends": "false",
    "APT::Sandbox::User": "root",
}


class Unavailable(Exception):
    """The lab cannot be built here; the message says why, in one line."""


def codename() -> str:
    """The machine's own suite (`bookworm`), which the guests also use, so that a nearpath
    built on the machine finds the right C library in them."""
    try:
        release = platform.freedesktop_os_release()
    except OSError as error:
        raise Unavailable(f"unknown distribution: {error}") from error
    if release.get("ID") != "debian" or "VERSION_CODENAME" not in release:
        name = release.get("PRETTY_NAME", "an unknown distribution")
        raise Unavailable(f"virtual hosts are built from Debian's packages, on Debian; this is {name}")
    return release["VERSION_CODENAME"]


def bootstrap(target: Path, suites: Sequence[str], packages: Sequence[str], *options: str) -> None:
    """Installs packages and their dependencies into a directory with mmdebstrap.

    The first suite is the base; the last one is preferred if several have a package.
    """
    prefer = {"APT::Default-Release": suites[-1]}
    apt = [f'--aptopt={key} "{value}"' for key, value in {**APT_OPTIONS, **prefer}.items()]
    included = f"--include={','.join(packages)}"
    command = ["mmdebstrap", "--quiet", "--mode=root", *apt, included, *options]
    _output([*command, suites[0], str(target), "-"], stdin="".join(map(_source, suites)))


def versions(suites: Sequence[str], packages: Sequence[str]) -> dict[str, str]:
    """The versions of packages that `bootstrap` would install.

    Package lists are refreshed if they are older than a week (or after `forget`).
    """
    stamp = _home(suites) / "asked"
    # The result is cached, too: apt takes a second for the lookup.
    kept = _home(suites) / f"versions-{hashlib.sha256(repr(packages).encode()).hexdigest()[:12]}.json"
    asked = _modified(stamp)
    if time.time() - asked <= LISTS_AGE_S and _modified(kept) >= asked:
        known: dict[str, str] = json.loads(kept.read_text())
        return known
    apt = _apt(suites)
    if time.time() - asked > LISTS_AGE_S:
        _output(["apt-get", "-qq", *apt, "update"])
        stamp.touch()
    found = {}
    for record in _output(["apt-cache", *apt, "show", "--no-all-versions", *packages]).split("\n\n"):
        fields = dict(line.split(": ", 1) for line in record.splitlines() if ": " in line[1:])
        if "Package" in fields:
            found[fields["Package"]] = fields["Version"]
    # Written atomically, since another process may read it.
    part = kept.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps(found))
    part.replace(kept)
    return found


def unpack(suites: Sequence[str], package: str, target: Path) -> None:
    """Unpacks one package into a directory, without its dependencies."""
    apt = _apt(suites)
    with tempfile.TemporaryDirectory() as downloaded:
        _output(["apt-get", "-qq", *apt, "download", package], folder=downloaded)
        for archive in Path(downloaded).glob("*.deb"):
            _output(["dpkg", "-x", str(archive), str(target)])


def forget() -> None:
    """Makes `versions` refresh the package lists."""
    for stamp in (cache.folder() / "apt").glob("*/asked"):
        stamp.unlink()


def _modified(file: Path) -> float:
    """When a file was last written; 0 if it does not exist."""
    return file.stat().st_mtime if file.exists() else 0.0


def _home(suites: Sequence[str]) -> Path:
    return cache.folder() / "apt" / "+".join(suites)


def _apt(suites: Sequence[str]) -> list[str]:
    """The options that separate apt from the machine's own packages."""
    home = _home(suites)
    for folder in ("archives/partial", "lists/partial"):
        (home / folder).mkdir(parents=True, exist_ok=True)
    sources = home / "sources.list"
    sources.write_text("".join(map(_source, suites)))
    settings = {
        **APT_OPTIONS,
        "APT::Default-Release": suites[-1],
        "Dir::State": home,
        "Dir::State::lists": home / "lists",
        "Dir::State::status": "/dev/null",
        "Dir::Cache": home,
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::preferences": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null",
    }
    return [part for key, value in settings.items() for part in ("-o", f"{key}={value}")]


def _source(suite: str) -> str:
    """The line of a sources.list for a suite, with the mirror of the machine's own suite."""
    form = "$(CODENAME) $(REPO_URI)"
    listing = _output(["apt-get", "indextargets", "--format", form, "Created-By: Packages"])
    for line in listing.splitlines():
        name, _, uri = line.partition(" ")
        if name == codename():
            return f"deb [signed-by={KEYRING}] {uri} {suite} main\n"
    raise Unavailable(f"apt has no source for {codename()} (see apt-get indextargets)")


def _output(command: Sequence[str], stdin: str = "", folder: str | None = None) -> str:
    """The output of a program of the distribution; `Unavailable` with its error if it fails."""
    try:
        result = subprocess.run(command, input=stdin, capture_output=True, check=False, text=True, cwd=folder)
    except FileNotFoundError as error:
        raise Unavailable(f"{command[0]} is missing") from error
    if result.returncode != 0:
        words = (result.stderr.strip() or result.stdout.strip() or "no reason given").splitlines()
        complaint = next((line for line in words if line.startswith("E: ")), words[-1])
        raise Unavailable(f"{command[0]} failed: {complaint}")
    return result.stdout
