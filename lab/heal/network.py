"""The two network namespaces of a scene: the host that is fixed, and its peer."""

import os
import subprocess

from ..faults.network import Side, remove_abandoned, run

PREFIX = "npheal"


class Link:
    """Two namespaces, `host` and `peer`, which a veth pair or a wire with a delay will connect."""

    def __init__(self) -> None:
        remove_abandoned(PREFIX)
        name = f"{PREFIX}-{os.getpid()}"
        self.host = Side(f"{name}-h", "nph0", "10.78.0.2")
        self.peer = Side(f"{name}-p", "npp0", "10.78.0.1")
        try:
            for side in (self.host, self.peer):
                run("ip", "netns", "add", side.netns)
                run(*side.command("ip", "link", "set", "lo", "up"))
        except RuntimeError:
            self.close()
            raise

    def pair(self, queues: int = 1) -> None:
        """Connects them with a veth pair."""
        ours, theirs = self.peer, self.host
        add = ("ip", "link", "add", ours.device, "numrxqueues", str(queues), "numtxqueues", str(queues))
        ends = ("peer", "name", theirs.device, "numrxqueues", str(queues), "numtxqueues", str(queues))
        run(*ours.command(*add, "type", "veth", *ends))
        run(*ours.command("ip", "link", "set", theirs.device, "netns", theirs.netns))
        self.up()

    def up(self) -> None:
        """Gives the devices their addresses."""
        for side in (self.host, self.peer):
            run(*side.command("ip", "addr", "add", f"{side.ip}/24", "dev", side.device))
            run(*side.command("ip", "link", "set", side.device, "up"))

    def close(self) -> None:
        """Removes both namespaces, with their devices."""
        for side in (self.host, self.peer):
            subprocess.run(["ip", "netns", "del", side.netns], capture_output=True, check=False)
