"""The two channels into a running QEMU, both JSON over a Unix socket, one message per line.

    Monitor   QEMU's machine protocol (QMP): commands, and events to wait for
    Agent     qemu-guest-agent (QGA) in the guest: programs and their results

Sources: QEMU's docs/interop/qmp-spec.rst and qga/qapi-schema.json.
"""

import base64
import json
import random
import socket
import time
from pathlib import Path
from typing import Any, NamedTuple


class Result(NamedTuple):
    """The result of a program: exit status (128 + N if signal N ended it), standard output and error."""

    status: int
    out: str
    err: str


class QemuError(Exception):
    """QEMU or the guest's agent refused a command."""


class EmulatorDied(Exception):
    """QEMU exited by itself, as it does when its guest panics or is stuck, or the guest's agent is silent. The only
    reason to run a test again (scripts/lab)."""


CLOSED = "QEMU closed its socket"


class Channel:
    """A socket on which each side sends lines of JSON."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(timeout_s)
        self.socket.connect(str(path))
        self.pending = b""

    def send(self, command: str, arguments: dict[str, Any]) -> None:
        """Sends a command; raises `EmulatorDied` if the other end is closed."""
        message = {"execute": command, "arguments": arguments}
        try:
            self.socket.sendall(json.dumps(message).encode() + b"\n")
        except ConnectionError as error:
            raise EmulatorDied(CLOSED) from error

    def receive(self) -> dict[str, Any]:
        """Returns the next message; raises `TimeoutError` if none arrives, `EmulatorDied` at the end."""
        while b"\n" not in self.pending:
            try:
                chunk = self.socket.recv(1 << 20)
            except ConnectionError as error:
                raise EmulatorDied(CLOSED) from error
            if not chunk:
                raise EmulatorDied(CLOSED)
            self.pending += chunk
        line, _, self.pending = self.pending.partition(b"\n")
        message: dict[str, Any] = json.loads(line.lstrip(b"\xff"))
        return message

    def close(self) -> None:
        """Closes the socket."""
        self.socket.close()


class Monitor(Channel):
    """QEMU's monitor."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__(path, timeout_s)
        self.events: list[dict[str, Any]] = []
        self.receive()  # the greeting
        self.command("qmp_capabilities")

    def command(self, name: str, **arguments: Any) -> Any:
        """Runs a command and returns its result; events that arrive before it are kept."""
        self.send(name, arguments)
        while True:
            message = self.receive()
            if "event" in message:
                self.events.append(message)
            elif "error" in message:
                raise QemuError(f"{name}: {message['error']['desc']}")
            else:
                return message["return"]

    def migrated(self) -> None:
        """Waits for the end of a migration that was started."""
        while True:
            event = self.events.pop(0) if self.events else self.receive()
            status = event.get("data", {}).get("status") if event.get("event") == "MIGRATION" else None
            if status == "completed":
                return
            if status == "failed":
                raise QemuError(f"migration failed: {self.command('query-migrate')}")


class Agent(Channel):
    """The agent in the guest. It processes commands sequentially."""

    # guest-exec has no event for the end of a program, so its status is polled with increasing intervals.
    FIRST_PAUSE_S = 0.01
    LONGEST_PAUSE_S = 0.2

    # How long to wait for the agent's answer before the request is repeated.
    FIRST_ANSWER_S = 0.3

    def wait_until_up(self, timeout_s: float) -> None:
        """Waits until the agent answers, and discards answers to earlier clients."""
        token = random.getrandbits(31)
        usual = self.socket.gettimeout()
        deadline = time.monotonic() + timeout_s
        self.socket.settimeout(self.FIRST_ANSWER_S)
        while time.monotonic() < deadline:
            token += 1
            try:
                # The byte 0xff makes the agent discard a partial command of an earlier client.
                self.socket.sendall(b"\xff")
                self.send("guest-sync", {"id": token})
                while self.receive().get("return") != token:
                    pass
            except (TimeoutError, json.JSONDecodeError):
                continue
            self.socket.settimeout(usual)
            return
        raise EmulatorDied(f"no answer from the guest's agent in {timeout_s:.0f} s")

    def command(self, name: str, **arguments: Any) -> Any:
        """Runs a command of the agent and returns its result."""
        self.send(name, arguments)
        try:
            message = self.receive()
        except TimeoutError as error:
            raise EmulatorDied(f"no answer from the guest's agent to {name}") from error
        if "error" in message:
            raise QemuError(f"{name}: {message['error']['desc']}")
        return message["return"]

    def start(self, command: list[str], stdin: bytes = b"") -> int:
        """Starts a program in the guest; returns its process."""
        arguments: dict[str, Any] = {"path": command[0], "arg": command[1:], "capture-output": True}
        if stdin:
            arguments["input-data"] = base64.b64encode(stdin).decode()
        return int(self.command("guest-exec", **arguments)["pid"])

    def poll(self, pid: int) -> Result | None:
        """The result of a program, if it has ended. Can be read once."""
        status = self.command("guest-exec-status", pid=pid)
        if not status["exited"]:
            return None
        if status.get("out-truncated") or status.get("err-truncated"):
            raise QemuError(f"process {pid} of the guest wrote more than the agent's limit (16 MiB)")
        out, err = (_text(status.get(key, "")) for key in ("out-data", "err-data"))
        return Result(status.get("exitcode", 128 + status.get("signal", 0)), out, err)

    def wait(self, pid: int, timeout_s: float) -> Result:
        """Waits for a program's end."""
        deadline = time.monotonic() + timeout_s
        pause = self.FIRST_PAUSE_S
        while (result := self.poll(pid)) is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"process {pid} of the guest is still running after {timeout_s:.0f} s")
            time.sleep(pause)
            pause = min(2 * pause, self.LONGEST_PAUSE_S)
        return result


def _text(data: str) -> str:
    return base64.b64decode(data).decode(errors="surrogateescape")
