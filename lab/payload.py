"""Files for the guests from this tree, as a disk: nearpath, or one of its tests."""

import atexit
import json
import os
import shutil
import subprocess
from pathlib import Path

from . import images
from .run_folder import RunFolder

PROJECT = Path(__file__).parents[1]


def nearpath_payload(files: dict[str, Path] | None = None, *, release: bool = False) -> Path:
    """Builds nearpath and a disk with it and other files, by their paths, which is removed when this process ends.

    Symbols are stripped: they are most of its size, and guests have little memory.
    """
    cargo = os.environ.get("CARGO", "cargo")
    kind = ["--release"] if release else []
    subprocess.run([cargo, "build", "--quiet", "--package", "nearpath", *kind], cwd=PROJECT, check=True)
    target = Path(os.environ.get("CARGO_TARGET_DIR", PROJECT / "target")) / ("release" if release else "debug")
    return _payload({"nearpath": target / "nearpath"}, files or {})


def payload_of_tests(package: str, *tests: str) -> Path:
    """The same with integration tests of a crate, under the tests' names."""
    cargo = os.environ.get("CARGO", "cargo")
    wanted = [word for test in tests for word in ("--test", test)]
    build = [cargo, "test", "--no-run", "--message-format", "json", "--package", package, *wanted]
    said = subprocess.run(build, cwd=PROJECT, check=True, stdout=subprocess.PIPE, text=True).stdout
    built = [message for line in said.splitlines() if (message := json.loads(line)).get("executable")]
    return _payload({message["target"]["name"]: Path(message["executable"]) for message in built})


def _payload(programs: dict[str, Path], others: dict[str, Path] | None = None) -> Path:
    folder = RunFolder("payload")
    atexit.register(folder.remove)
    for name, program in programs.items():
        subprocess.run(["strip", "-o", folder.path / name, program], check=True)
    built = {f"/usr/local/bin/{name}": folder.path / name for name in programs}
    return pack({**built, **(others or {})}, folder.path)


def pack(files: dict[str, Path], folder: Path) -> Path:
    """Creates a payload in a directory: a disk with files, or directories of them, by their paths in the guest. It is
    larger than others if they need it."""
    contents, disk = folder / "contents", folder / "payload"
    for path, file in files.items():
        place = contents / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        if file.is_dir():
            shutil.copytree(file, place, symlinks=True, dirs_exist_ok=True)
        else:
            shutil.copy(file, place)
    # Blocks and inodes, and what the file system needs for itself.
    sizes = [4096 + (0 if file.is_symlink() else file.stat().st_size) for file in contents.rglob("*")]
    needed = sum(sizes) * 5 // 4
    size = images.PAYLOAD_SIZE if needed < images.PAYLOAD_SIZE else -(-needed >> 20) << 20
    images.make_disk(contents, disk, size)
    return disk
