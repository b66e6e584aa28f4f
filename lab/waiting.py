"""Waiting for a condition instead of a time, and for the start of a measurement."""

import base64
import gzip
import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from .host import PATIENCE_S, Host, Job

# Polling takes CPU time in the guest, so its interval grows with the waiting time.
SHORTEST_PAUSE_S = 0.1

# In emulation, programs exceed the overhead limit many times: few packets would be observed.
EVERY_PACKET = ("--detail", "full", "--max-overhead", "none")


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Polls until a condition holds; fails after a generous timeout."""
    began = time.monotonic()
    while not condition():
        passed = time.monotonic() - began
        assert passed < PATIENCE_S, f"not so in {PATIENCE_S:.0f} s: {what}"
        time.sleep(max(SHORTEST_PAUSE_S, passed / 20))


class Measuring(NamedTuple):
    """A running measurement."""

    job: Job
    said: Job  # The job that waits for the line that reports its start.
    printed: str  # The guest's file with its output.

    def wait_until_begun(self) -> None:
        """Waits until its programs count packets, which takes seconds in emulation."""
        words = self.said.wait().out
        assert "measuring for " in words, words


def start_measuring(host: Host, *arguments: str, duration: str = "10m") -> Measuring:
    """Starts `nearpath ARGUMENTS --for DURATION --json`, and waits for its start. End it with `ended`."""
    measuring = start_loading(host, *arguments, duration=duration)
    measuring.wait_until_begun()
    return measuring


def start_loading(host: Host, *arguments: str, duration: str = "10m") -> Measuring:
    """The same, without waiting."""
    folder = host.check('folder=$(mktemp -d) && mkfifo "$folder/said" && echo "$folder"').strip()
    said = host.start(["head", "-n", "1", f"{folder}/said"])
    # Tests of stages need every stage, and every packet.
    every = EVERY_PACKET if arguments[:2] == ("measure", "stages") else ()
    command = ["nearpath", *arguments, *every, "--for", duration, "--json"]
    job = host.start(["sh", "-c", 'exec "$@" >"$0/printed" 2>"$0/said"', folder, *command])
    return Measuring(job, said, f"{folder}/printed")


def ended(measuring: Measuring, lines: bool = False) -> dict[str, Any]:
    """Ends a measurement like ^C, and returns its document; the last one if it prints one per
    interval, which is of the whole.

    It is printed before the programs are detached from the functions; this waits for that only
    with `lines`.
    """
    measuring.job.kill("INT")
    return printed(measuring, lines)


def printed(measuring: Measuring, lines: bool = False) -> dict[str, Any]:
    """The document of a measurement that ends by itself, or was ended, as soon as it is printed."""
    job, host = measuring.job, measuring.job.host
    if lines:
        assert job.wait().status == 0, job.result
        whole_line: dict[str, Any] = json.loads(host.check(["cat", measuring.printed]).splitlines()[-1])
        return whole_line

    def whole() -> bool:
        over = not job.running()
        assert not over or job.wait().status == 0, job.result
        is_whole = host.check(["tail", "-n", "1", measuring.printed]) == "}\n"
        assert is_whole or not over, f"incomplete output: {measuring.printed}"
        return is_whole

    wait_until(whole, "the document")
    # Thousands of slow packets with timelines exceed the limit of the guest's agent (16 MiB).
    packed = host.check(["sh", "-c", 'gzip -1 <"$0" | base64 --wrap 0', measuring.printed])
    text = gzip.decompress(base64.b64decode(packed)).decode()
    host.log.write(text)
    document: dict[str, Any] = json.loads(text)
    return document
