"""The other end of a virtual host's wires.

Two kinds: a network namespace of this machine with a tap per NIC (`Namespace`), or
another virtual host (`Wire`, one end each). Neither leaves anything behind: the namespace
and its taps belong to the QEMU process and disappear with it.
"""

import subprocess
from pathlib import Path

from . import images
from .agent import Result
from .machine import Machine

# Child processes get this signal when this process dies.
WITH_US = ("setpriv", "--pdeathsig", "KILL", "--")


class Namespace:
    """The network namespace that a QEMU process runs in, with `tap0`, `tap1`, ... in it.

    It is .254 (::fe) of each network.
    """

    def __init__(self, qemu: int, machine: Machine) -> None:
        self.enter = ("nsenter", f"--net=/proc/{qemu}/ns/net", "--")
        # Interfaces need time to discover each other (neighbours, duplicates); here
        # everything is configured in advance, so that the first packet is the test's.
        commands = ["link set lo up"]
        for index, _ in enumerate(machine.nics):
            tap = f"tap{index}"
            guest = f"lladdr {machine.mac(index)} dev {tap} nud permanent"
            commands += [
                f"link set {tap} address 52:54:00:09:00:{index:02x} up",
                f"address add {self.address(index)}/24 dev {tap}",
                f"address add {self.address6(index)}/64 dev {tap} nodad",
                f"neighbour replace {machine.address(index)} {guest}",
                f"neighbour replace {machine.address6(index)} {guest}",
            ]
        batch = "".join(f"{command}\n" for command in commands)
        done = subprocess.run(
            [*self.enter, "ip", "-batch", "-"], input=batch, capture_output=True, check=False, text=True
        )
        if done.returncode != 0:
            raise RuntimeError(f"the peer's interfaces cannot be set up: {done.stderr.strip()}")

    def address(self, index: int = 0) -> str:
        """The peer's IPv4 address on the network of NIC `index`."""
        return f"10.9.{index}.254"

    def address6(self, index: int = 0) -> str:
        """Like `address`, for IPv6."""
        return f"fd00:9:{index}::fe"

    def run(self, command: list[str], timeout_s: float = 60) -> Result:
        """Runs a program in the namespace: one of the lab's tools, or one of this machine."""
        done = subprocess.run(
            self._words(command),
            capture_output=True,
            check=False,
            text=True,
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
        )
        return Result(done.returncode if done.returncode >= 0 else 128 - done.returncode, done.stdout, done.stderr)

    def start(self, command: list[str], stdin: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
        """Like `run`, without waiting."""
        return subprocess.Popen(
            self._words(command),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _words(self, command: list[str]) -> list[str]:
        tools = images.tools()
        program = tools.command(*command) if tools.find(command[0]) else command
        return [*WITH_US, *self.enter, *program]

    @staticmethod
    def netdevs(machine: Machine) -> list[str]:
        """QEMU's backends: taps, which QEMU creates and which disappear with it."""
        options = []
        for index, nic in enumerate(machine.nics):
            queues = f",queues={nic.queues}" if nic.is_virtio else ""
            options += ["-netdev", f"tap,id=net{index},ifname=tap{index},script=no,downscript=no{queues}"]
        return options


class Wire:
    """One end of a cable to another virtual host: Unix sockets in a shared directory.

    The NIC with index 0 is on the cable; others are not connected.
    """

    def __init__(self, folder: Path, end: int) -> None:
        self.here, self.there = (folder / f"wire{number}" for number in (end, 1 - end))

    def netdevs(self, machine: Machine) -> list[str]:
        """QEMU's backends: datagrams to the other end's socket."""
        local = f"local.type=unix,local.path={self.here}"
        remote = f"remote.type=unix,remote.path={self.there}"
        options = ["-netdev", f"dgram,id=net0,{local},{remote}"]
        for index in range(1, len(machine.nics)):
            options += ["-netdev", f"hubport,id=net{index},hubid={index}"]
        return options
