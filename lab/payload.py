"""What goes into the guests from this tree, as an archive: nearpath, or one of its tests."""

import atexit
import json
import os
import subprocess
import tarfile
from pathlib import Path

from .run_folder import RunFolder

PROJECT = Path(__file__).parents[1]


def nearpath_payload(release: bool = False) -> Path:
    """Builds nearpath and makes an archive with it, which is removed when this process ends.

    Without symbols: they are most of it, and guests have little memory.
    """
    cargo = os.environ.get("CARGO", "cargo")
    kind = ["--release"] if release else []
    subprocess.run([cargo, "build", "--quiet", "--package", "nearpath", *kind], cwd=PROJECT, check=True)
    target = Path(os.environ.get("CARGO_TARGET_DIR", PROJECT / "target")) / ("release" if release else "debug")
    return _payload({"nearpath": target / "nearpath"})


def payload_of_tests(package: str, *tests: str) -> Path:
    """The same with integration tests of a crate, which are called as the tests are."""
    cargo = os.environ.get("CARGO", "cargo")
    wanted = [word for test in tests for word in ("--test", test)]
    build = [cargo, "test", "--no-run", "--message-format", "json", "--package", package, *wanted]
    said = subprocess.run(build, cwd=PROJECT, check=True, stdout=subprocess.PIPE, text=True).stdout
    built = [message for line in said.splitlines() if (message := json.loads(line)).get("executable")]
    return _payload({message["target"]["name"]: Path(message["executable"]) for message in built})


def _payload(programs: dict[str, Path]) -> Path:
    folder = RunFolder("payload")
    atexit.register(folder.remove)
    for name, program in programs.items():
        subprocess.run(["strip", "-o", folder.path / name, program], check=True)
    return pack({f"/usr/local/bin/{name}": folder.path / name for name in programs}, folder.path / "payload.tar")


def pack(files: dict[str, Path], archive: Path) -> Path:
    """Makes a payload: a tar archive of files by their paths in the guest."""
    with tarfile.open(archive, "w") as tar:
        for path, file in files.items():
            tar.add(file, path.lstrip("/"))
    return archive
