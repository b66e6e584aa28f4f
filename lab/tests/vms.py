"""A virtual machine in a virtual host: `lab/vm/tinyvm.c`, on a tap in Open vSwitch, and packets to it from the peer."""

import json
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from lab import Host, Job
from lab.payload import PROJECT
from lab.run_folder import RunFolder
from lab.waiting import wait_until

TAP = "tap0"
MAC = "52:54:00:aa:00:01"
ADDRESS = "10.9.0.50"
PORT = 9000

# Numbered datagrams at a rate: what the guest notes of each begins with its number.
SENDER = f"""
import socket, sys, time
count, rate = int(sys.argv[1]), float(sys.argv[2])
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
start = time.monotonic()
for number in range(count):
    time.sleep(max(0, start + number / rate - time.monotonic()))
    sender.sendto(b"%08d" % number + bytes(56), ("{ADDRESS}", {PORT}))
"""


class Note(NamedTuple):
    """What the guest noted of a packet."""

    tsc: int
    irq: int  # The count of interrupts: packets of one interrupt have the same.
    number: int | None  # Of a datagram of `send`.


class Ended(NamedTuple):
    """What the guest counted until it was ended."""

    irqs: int
    packets: int
    halts: int
    notes: list[Note]

    def numbered(self) -> list[Note]:
        """The notes of the datagrams of `send`."""
        return [note for note in self.notes if note.number is not None]


class TinyVm:
    """A running virtual machine."""

    def __init__(self, host: Host, job: Job, printed: str) -> None:
        self.host, self.job, self.printed = host, job, printed

    @property
    def pid(self) -> int:
        """Its process id in the host."""
        return self.job.pid

    def end(self) -> Ended:
        """Ends it, and returns what its guest counted."""
        self.host.check(["kill", str(self.pid)])
        self.job.wait()
        said: dict[str, Any] = json.loads(self.host.check(["tail", "-n", "1", self.printed]))
        notes = [Note(note["tsc"], note["irq"], _number(note["payload"])) for note in said["notes"]]
        return Ended(said["irqs"], said["packets"], said["halts"], notes)


def _number(payload: str) -> int | None:
    text = int(payload, 16).to_bytes(8, "little")
    return int(text) if text.isdigit() else None


def start_vm(host: Host, *options: str) -> TinyVm:
    """Starts the virtual machine, and waits until its guest runs and packets to it have a way."""
    # tun first: vhost_net takes its symbols from it when it is loaded.
    host.check(
        "modprobe -a tun kvm_amd vhost_net"
        f" && {{ ip link show {TAP} >/dev/null 2>&1 || ip tuntap add dev {TAP} mode tap vnet_hdr; }}"
        f" && ip link set {TAP} up && ovs-vsctl --may-exist add-port br0 {TAP}"
    )
    host.write("/tmp/tinyvm", _program())
    host.check("chmod +x /tmp/tinyvm && rm -f /tmp/tinyvm.printed")
    printed = "/tmp/tinyvm.printed"
    words = " ".join(f"'{option}'" for option in options)
    job = host.start(f"exec /tmp/tinyvm {words} {TAP} >{printed} 2>&1")

    def is_ready() -> bool:
        assert job.running(), host.run(["cat", printed])
        return host.run(["cat", printed]).out.startswith("ready")

    wait_until(is_ready, "the guest runs")
    host.check(f"ovs-appctl fdb/add br0 {TAP} 0 {MAC}")
    neighbour = ["ip", "neighbour", "replace", ADDRESS, "lladdr", MAC, "dev", "tap0", "nud", "permanent"]
    assert host.peer.run(neighbour).status == 0
    return TinyVm(host, job, printed)


def send(host: Host, count: int, rate: float) -> None:
    """Sends datagrams to the guest, so many a second, and waits until they are sent."""
    sent = host.peer.run(["python3", "-c", SENDER, str(count), str(rate)])
    assert sent.status == 0, sent


@cache
def _program() -> bytes:
    folder = RunFolder("tinyvm")
    try:
        binary = folder.path / "tinyvm"
        compiler = os.environ.get("CC", "cc")
        source = PROJECT / "lab/vm/tinyvm.c"
        subprocess.run([compiler, "-O2", "-Wall", "-Wextra", "-pthread", "-s", "-o", binary, source], check=True)
        return Path(binary).read_bytes()
    finally:
        folder.remove()
