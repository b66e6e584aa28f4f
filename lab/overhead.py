"""The cost of measuring on packets through Open vSwitch: the program of `make bench-overhead` in a virtual host.

Input: options of that program. Output: its output. The host is emulated, so times are
those of the emulator: only their ratios are meaningful.
"""

import json
import os
import subprocess
from pathlib import Path

from .distribution import Unavailable
from .host import Host
from .machine import Machine, Nic, Topology
from .payload import PROJECT, pack
from .run_folder import RunFolder

# The first kernel with all tracepoints that the peers use.
KERNEL = "7.2"

# BCC for Python is not in the guests' root file system, but its dependencies are.
BCC = Path("/usr/lib/python3/dist-packages/bcc")
BCC_HEADER = Path("/usr/include/linux/bpf_common.h")

# A fiftieth of a real machine's work, since the guest is slower by that factor.
OPTIONS = ("--ovs", "--scale", "0.02", "--rounds", "2")

PATIENCE_S = 3600


def run(options: list[str]) -> None:
    """Builds the program, runs it in a guest and prints its output."""
    if not BCC.is_dir():
        raise Unavailable("missing packages: python3-bpfcc")
    with RunFolder("overhead") as folder:
        binary = folder.path / "overhead"
        subprocess.run(["strip", "-o", binary, _built()], check=True)
        files = {"/usr/local/bin/overhead": binary, str(BCC): BCC, str(BCC_HEADER): BCC_HEADER}
        payload = pack(files, folder.path)
        with Host.restore(Machine(KERNEL, Topology(), (Nic("igb"),)), payload) as host:
            status, out, err = host.run(["overhead", *OPTIONS, *options], PATIENCE_S)
    print(out, end="")
    if status != 0:
        raise RuntimeError(f"it ended with status {status} in the guest: {err}")


def _built() -> Path:
    """The program, built as by `cargo bench`."""
    cargo = os.environ.get("CARGO", "cargo")
    command = ["bench", "--quiet", "--no-run", "--package", "nearpath-instruments", "--bench", "overhead"]
    messages = subprocess.run(
        [cargo, *command, "--message-format=json"], cwd=PROJECT, check=True, stdout=subprocess.PIPE, text=True
    )
    built = (json.loads(line) for line in messages.stdout.splitlines())
    return next(Path(message["executable"]) for message in built if message.get("executable"))
