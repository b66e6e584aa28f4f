"""Waiting for a condition, not for a time; and for nearpath to have begun measuring."""

import json
import time
from collections.abc import Callable
from typing import Any

from lab import Host, Job
from lab.host import PATIENCE_S

# Asking takes the guest's time from what is waited for.
PAUSE_S = 0.1


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Asks until a condition holds; fails when it does not in a time that is long for anything."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"not so in {PATIENCE_S:.0f} s: {what}"
        time.sleep(PAUSE_S)


def start_measuring(host: Host, *arguments: str) -> Job:
    """Starts `nearpath ARGUMENTS --for 10m --json`; returns when its programs count packets.

    Loading them takes seconds in emulation; they count when the variable `active` of the BPF
    object says so. End it with `ended`.
    """
    instrument = arguments[1] if arguments[0] == "measure" else "stages"
    # Named after the instrument's file, of which the kernel keeps eight letters.
    variables = f"{instrument}_bpf"[:8] + ".bss"
    job = host.start(["nearpath", *arguments, "--for", "10m", "--json"])

    def active() -> bool:
        assert job.running(), job.result
        dump = host.run(["bpftool", "--json", "map", "dump", "name", variables]).out
        return '"active":1' in dump

    wait_until(active, f"nearpath {' '.join(arguments)} measures")
    return job


def ended(job: Job, lines: bool = False) -> dict[str, Any]:
    """Ends a measurement as ^C does, and returns its document; the last of one that prints a line each
    interval, which is of the whole."""
    job.kill("INT")
    result = job.wait()
    assert result.status == 0, result
    document: dict[str, Any] = json.loads(result.out.splitlines()[-1] if lines else result.out)
    return document
