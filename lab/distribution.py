"""Packages from the distribution: which there are, and how they get into a folder.

The lab takes everything from Debian, by the mirror that the machine itself uses, and
installs none of it on the machine: apt works here with lists and caches of its own.
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

# For how long the lists of packages are believed without asking the mirror again.
LISTS_AGE_S = 7 * 24 * 3600

# Old suites are no longer signed anew and mirrors stand still; signatures are checked all the same.
APT_OPTIONS = {
    "Acquire::Check-Valid-Until": "false",
    "Acquire::Retries": "3",
    "APT::Install-Recommends": "false",
    "APT::Sandbox::User": "root",
}


class Unavailable(Exception):
    """The lab cannot be built here; the message says why, in one line."""


def codename() -> str:
    """The machine's own suite (`bookworm`), which the guests use too: so a nearpath that was
    built on the machine finds in them the C library that it wants."""
    try:
        release = platform.freedesktop_os_release()
    except OSError as error:
        raise Unavailable(f"this distribution does not say what it is: {error}") from error
    if release.get("ID") != "debian" or "VERSION_CODENAME" not in release:
        name = release.get("PRETTY_NAME", "an unknown distribution")
        raise Unavailable(f"virtual hosts are built from Debian's packages, on Debian; this is {name}")
    return release["VERSION_CODENAME"]


def bootstrap(target: Path, suites: Sequence[str], packages: Sequence[str], *options: str) -> None:
    """Fills a folder with packages and all that they depend on, by mmdebstrap.

    The first suite is the base; the last one is preferred where several have a package.
    """
    prefer = {"APT::Default-Release": suites[-1]}
    apt = [f'--aptopt={key} "{value}"' for key, value in {**APT_OPTIONS, **prefer}.items()]
    included = f"--include={','.join(packages)}"
    command = ["mmdebstrap", "--quiet", "--mode=root", *apt, included, *options]
    _output([*command, suites[0], str(target), "-"], stdin="".join(map(_source, suites)))


def versions(suites: Sequence[str], packages: Sequence[str]) -> dict[str, str]:
    """The versions of packages that `bootstrap` would take.

    The mirror is asked again when what it said is a week old (or with `forget`).
    """
    stamp = _home(suites) / "asked"
    # What was found is kept, too: apt takes a second to look it up.
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
    # Whole from the first moment on, as another process may look.
    part = kept.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps(found))
    part.replace(kept)
    return found


def unpack(suites: Sequence[str], package: str, target: Path) -> None:
    """Unpacks one package into a folder, without what it depends on."""
    apt = _apt(suites)
    with tempfile.TemporaryDirectory() as downloaded:
        _output(["apt-get", "-qq", *apt, "download", package], folder=downloaded)
        for archive in Path(downloaded).glob("*.deb"):
            _output(["dpkg", "-x", str(archive), str(target)])


def forget() -> None:
    """Makes `versions` ask the mirror again."""
    for stamp in (cache.folder() / "apt").glob("*/asked"):
        stamp.unlink()


def _modified(file: Path) -> float:
    """When a file was last written; 0 if it is not there."""
    return file.stat().st_mtime if file.exists() else 0.0


def _home(suites: Sequence[str]) -> Path:
    return cache.folder() / "apt" / "+".join(suites)


def _apt(suites: Sequence[str]) -> list[str]:
    """The options that make apt work apart from the machine's own packages."""
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
    """What a program of the distribution's prints; `Unavailable` with its complaint if it fails."""
    try:
        result = subprocess.run(command, input=stdin, capture_output=True, check=False, text=True, cwd=folder)
    except FileNotFoundError as error:
        raise Unavailable(f"{command[0]} is missing") from error
    if result.returncode != 0:
        words = (result.stderr.strip() or result.stdout.strip() or "no reason given").splitlines()
        complaint = next((line for line in words if line.startswith("E: ")), words[-1])
        raise Unavailable(f"{command[0]} failed: {complaint}")
    return result.stdout
