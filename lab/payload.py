"""What goes into the guests from this tree: nearpath, as an archive."""

import atexit
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
    folder = RunFolder("payload")
    atexit.register(folder.remove)
    binary = folder.path / "nearpath"
    subprocess.run(["strip", "-o", binary, target / "nearpath"], check=True)
    return pack({"/usr/local/bin/nearpath": binary}, folder.path / "payload.tar")


def pack(files: dict[str, Path], archive: Path) -> Path:
    """Makes a payload: a tar archive of files by their paths in the guest."""
    with tarfile.open(archive, "w") as tar:
        for path, file in files.items():
            tar.add(file, path.lstrip("/"))
    return archive
