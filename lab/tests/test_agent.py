"""The two channels into QEMU, tested against a fake QEMU. Pure."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.agent import Agent, EmulatorDied, Monitor, QemuError

# Waits end much earlier, unless something hangs.
TIMEOUT_S = 20


@pytest.fixture
def answering(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Starts a fake QEMU that greets with some bytes, then answers each line with its next answer."""
    servers = []

    def start(answers: list[Any], greeting: bytes = b"") -> Path:
        server = socket.socket(socket.AF_UNIX)
        server.bind(str(tmp_path / "socket"))
        server.listen()

        def serve() -> None:
            connection, _ = server.accept()
            with connection, connection.makefile("rb") as lines:
                connection.sendall(greeting)
                for answer, line in zip(answers, lines, strict=False):
                    reply = answer(json.loads(line.lstrip(b"\xff"))) if callable(answer) else answer
                    connection.sendall(reply if isinstance(reply, bytes) else json.dumps(reply).encode() + b"\n")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        servers.append((server, thread))
        return tmp_path / "socket"

    yield start
    for server, thread in servers:
        server.close()
        thread.join(TIMEOUT_S)


def test_results(answering: Callable[..., Path]) -> None:
    running = {"return": {"exited": False}}
    ended = {"return": {"exited": True, "exitcode": 3, "out-data": "aGkK", "err-data": "/w=="}}
    killed = {"return": {"exited": True, "signal": 9}}
    agent = Agent(answering([{"return": {"pid": 7}}, running, running, ended, killed]), TIMEOUT_S)
    assert agent.start(["true"]) == 7
    assert agent.poll(7) is None
    assert agent.wait(7, TIMEOUT_S) == (3, "hi\n", "\udcff")
    assert agent.wait(7, TIMEOUT_S) == (137, "", "")
    agent.close()


def test_output_that_was_cut_is_an_error(answering: Callable[..., Path]) -> None:
    cut = {"return": {"exited": True, "exitcode": 0, "out-data": "aGk=", "out-truncated": True}}
    agent = Agent(answering([cut]), TIMEOUT_S)
    with pytest.raises(QemuError, match="wrote more than the agent.s limit"):
        agent.poll(7)
    agent.close()


def test_refusals_and_ends(answering: Callable[..., Path]) -> None:
    agent = Agent(answering([{"error": {"desc": "no such process"}}]), TIMEOUT_S)
    with pytest.raises(QemuError, match="^guest-exec-status: no such process$"):
        agent.poll(7)
    with pytest.raises(EmulatorDied):
        agent.poll(7)
    agent.close()


def test_answers_to_others_are_discarded(answering: Callable[..., Path]) -> None:
    def synced(message: dict[str, Any]) -> bytes:
        stale = b'{"return": {"pid": 1}}\n{"return": 0}\n'
        return stale + json.dumps({"return": message["arguments"]["id"]}).encode() + b"\n"

    agent = Agent(answering([synced, {"return": {"pid": 8}}]), TIMEOUT_S)
    agent.wait_until_up(TIMEOUT_S)
    assert agent.start(["true"]) == 8
    agent.close()


def test_events_between_answers_are_kept(answering: Callable[..., Path]) -> None:
    def events(*states: str) -> bytes:
        messages = [{"event": "STOP"}, *({"event": "MIGRATION", "data": {"status": state}} for state in states)]
        return b"".join(json.dumps(message).encode() + b"\n" for message in messages)

    answers = [
        {"return": {}},
        events("setup") + b'{"return": {}}\n' + events("active", "completed"),
        events("failed") + b'{"return": {}}\n',
        {"return": {"error-desc": "no file"}},
    ]
    monitor = Monitor(answering(answers, b'{"QMP": {}}\n'), TIMEOUT_S)
    monitor.command("migrate")
    monitor.migrated()
    monitor.command("migrate")
    with pytest.raises(QemuError, match="no file"):
        monitor.migrated()
    monitor.close()
