"""Waiting for a condition, not for a time; and for nearpath to have begun measuring."""

import base64
import gzip
import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from .host import PATIENCE_S, Host, Job

# Asking takes the guest's time from what is waited for: what has taken long is asked for less often.
SHORTEST_PAUSE_S = 0.1

# Emulated, programs take a CPU's time many times over what is allowed: few packets would be observed.
EVERY_PACKET = ("--detail", "full", "--max-overhead", "none")


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Asks until a condition holds; fails when it does not in a time that is long for anything."""
    began = time.monotonic()
    while not condition():
        passed = time.monotonic() - began
        assert passed < PATIENCE_S, f"not so in {PATIENCE_S:.0f} s: {what}"
        time.sleep(max(SHORTEST_PAUSE_S, passed / 20))


class Measuring(NamedTuple):
    """A measurement under way."""

    job: Job
    said: Job  # What waits for the line in which it says that it has begun.
    printed: str  # The file of the guest that it prints to.

    def wait_until_begun(self) -> None:
        """Returns when it says that its programs count packets, which takes seconds in emulation."""
        words = self.said.wait().out
        assert "measuring for " in words, words


def start_measuring(host: Host, *arguments: str, duration: str = "10m") -> Measuring:
    """Starts `nearpath ARGUMENTS --for DURATION --json`, and returns when it has begun. End it with `ended`."""
    measuring = start_loading(host, *arguments, duration=duration)
    measuring.wait_until_begun()
    return measuring


def start_loading(host: Host, *arguments: str, duration: str = "10m") -> Measuring:
    """The same, but returns at once."""
    folder = host.check('folder=$(mktemp -d) && mkfifo "$folder/said" && echo "$folder"').strip()
    said = host.start(["head", "-n", "1", f"{folder}/said"])
    # What tests of stages are about is every one of them, and every packet.
    every = EVERY_PACKET if arguments[:2] == ("measure", "stages") else ()
    command = ["nearpath", *arguments, *every, "--for", duration, "--json"]
    job = host.start(["sh", "-c", 'exec "$@" >"$0/printed" 2>"$0/said"', folder, *command])
    return Measuring(job, said, f"{folder}/printed")


def ended(measuring: Measuring, lines: bool = False) -> dict[str, Any]:
    """Ends a measurement as ^C does, and returns its document; the last of one that prints a line each
    interval, which is of the whole.

    It is printed before the kernel lets go of the functions one by one, for which this waits only
    with `lines`.
    """
    measuring.job.kill("INT")
    return printed(measuring, lines)


def printed(measuring: Measuring, lines: bool = False) -> dict[str, Any]:
    """The document of a measurement that ends by itself, or was ended: as soon as it is there."""
    job, host = measuring.job, measuring.job.host
    if lines:
        assert job.wait().status == 0, job.result
        whole_line: dict[str, Any] = json.loads(host.check(["cat", measuring.printed]).splitlines()[-1])
        return whole_line

    def whole() -> bool:
        over = not job.running()
        assert not over or job.wait().status == 0, job.result
        is_whole = host.check(["tail", "-n", "1", measuring.printed]) == "}\n"
        assert is_whole or not over, f"not printed as a whole: {measuring.printed}"
        return is_whole

    wait_until(whole, "its document is there")
    # Thousands of slow packets with their timelines are more than the guest's agent passes on (16 MiB).
    packed = host.check(["sh", "-c", 'gzip -1 <"$0" | base64 --wrap 0', measuring.printed])
    text = gzip.decompress(base64.b64decode(packed)).decode()
    host.log.write(text)
    document: dict[str, Any] = json.loads(text)
    return document
