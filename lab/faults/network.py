"""Network namespaces and veth pairs of a scene, with a selected CPU that receives one end's packets."""

import os
import subprocess
from pathlib import Path
from typing import NamedTuple

PREFIX = "npfault"
# A device's index, which identifies it in the trace.
FIRST_INDEX = 7100


def run(*command: str) -> None:
    """Runs a command that must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")


class Side(NamedTuple):
    """An end of a pair."""

    netns: str
    device: str
    ip: str

    def command(self, *command: str) -> list[str]:
        """A command in the namespace of this end."""
        return ["ip", "netns", "exec", self.netns, *command]


class Pair:
    """Two namespaces, `sender` and `receiver`, with one device each."""

    def __init__(self, number: int, receive_cpu: int) -> None:
        remove_abandoned(PREFIX)
        name = f"{PREFIX}-{os.getpid()}-{number}"
        self.sender = Side(f"{name}-s", f"nps{number}", f"10.77.{number}.1")
        self.receiver = Side(f"{name}-r", f"npr{number}", f"10.77.{number}.2")
        try:
            self._make(number, receive_cpu)
        except RuntimeError:
            self.close()
            raise

    def _make(self, number: int, receive_cpu: int) -> None:
        for side in (self.sender, self.receiver):
            run("ip", "netns", "add", side.netns)
        ours, theirs = self.sender, self.receiver
        run(
            *ours.command(
                "ip",
                "link",
                "add",
                ours.device,
                "index",
                str(FIRST_INDEX + 2 * number),
                "type",
                "veth",
                "peer",
                "name",
                theirs.device,
            )
        )
        run(*ours.command("ip", "link", "set", theirs.device, "netns", theirs.netns))
        for side in (ours, theirs):
            run(*side.command("ip", "addr", "add", f"{side.ip}/24", "dev", side.device))
            run(*side.command("ip", "link", "set", side.device, "up"))
            run(*side.command("ip", "link", "set", "lo", "up"))
        mask = f"{1 << receive_cpu:x}"
        file = f"/sys/class/net/{theirs.device}/queues/rx-0/rps_cpus"
        run(*theirs.command("sh", "-c", f"echo {mask} > {file}"))

    def shape(self, rate: str, burst: str, most_ms: int) -> None:
        """Limits the rate of the sender's device; packets that would wait longer are dropped."""
        ours = self.sender
        tbf = ("tbf", "rate", rate, "burst", burst, "latency", f"{most_ms}ms")
        run(*ours.command("tc", "qdisc", "replace", "dev", ours.device, "root", *tbf))

    def close(self) -> None:
        """Removes both namespaces, with their devices."""
        for side in (self.sender, self.receiver):
            subprocess.run(["ip", "netns", "del", side.netns], capture_output=True, check=False)


def remove_abandoned(prefix: str) -> None:
    """Removes namespaces with this prefix whose processes were killed."""
    folder = Path("/run/netns")
    for netns in folder.glob(f"{prefix}-*") if folder.is_dir() else []:
        if not Path(f"/proc/{netns.name.split('-')[1]}").exists():
            subprocess.run(["ip", "netns", "del", netns.name], capture_output=True, check=False)
