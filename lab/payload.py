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
    return _program(target / "nearpath", "nearpath")


def payload_of_test(package: str, test: str) -> Path:
    """The same with an integration test of a crate, which is called as the test is."""
    cargo = os.environ.get("CARGO", "cargo")
    build = [cargo, "test", "--no-run", "--message-format", "json", "--package", package, "--test", test]
    said = subprocess.run(build, cwd=PROJECT, check=True, stdout=subprocess.PIPE, text=True).stdout
    built = [message for line in said.splitlines() if (message := json.loads(line)).get("executable")]
    (found,) = [message["executable"] for message in built if message["target"]["name"] == test]
    return _program(Path(found), test)


def _program(program: Path, name: str) -> Path:
    folder = RunFolder("payload")
    atexit.register(folder.remove)
    binary = folder.path / name
    subprocess.run(["strip", "-o", binary, program], check=True)
    return pack({f"/usr/local/bin/{name}": binary}, folder.path / "payload.tar")


def pack(files: dict[str, Path], archive: Path) -> Path:
    """Makes a payload: a tar archive of files by their paths in the guest."""
    with tarfile.open(archive, "w") as tar:
        for path, file in files.items():
            tar.add(file, path.lstrip("/"))
    return archive
