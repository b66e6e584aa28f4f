"""Waiting for a condition, not for a time; and for nearpath to have begun measuring."""

import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple

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


class Measuring(NamedTuple):
    """A measurement under way."""

    job: Job
    printed: str  # The file of the guest that it prints to.


def start_measuring(host: Host, *arguments: str) -> Measuring:
    """Starts `nearpath ARGUMENTS --for 10m --json`; returns when its programs count packets.

    Loading them takes seconds in emulation; they count when the variable `active` of the BPF
    object says so. End it with `ended`.
    """
    instrument = arguments[1] if arguments[0] == "measure" else "stages"
    # Named after the instrument's file, of which the kernel keeps eight letters.
    variables = f"{instrument}_bpf"[:8] + ".bss"
    printed = host.check(["mktemp"]).strip()
    command = ["nearpath", *arguments, "--for", "10m", "--json"]
    job = host.start(["sh", "-c", 'exec "$@" >"$0"', printed, *command])

    def active() -> bool:
        assert job.running(), job.result
        dump = host.run(["bpftool", "--json", "map", "dump", "name", variables]).out
        return '"active":1' in dump

    wait_until(active, f"nearpath {' '.join(arguments)} measures")
    return Measuring(job, printed)


def ended(measuring: Measuring, lines: bool = False) -> dict[str, Any]:
    """Ends a measurement as ^C does, and returns its document; the last of one that prints a line each
    interval, which is of the whole.

    It is printed before the kernel lets go of the functions one by one, for which this waits only
    with `lines`.
    """
    job, host = measuring.job, measuring.job.host
    job.kill("INT")
    if lines:
        assert job.wait().status == 0, job.result
        whole_line: dict[str, Any] = json.loads(host.check(["cat", measuring.printed]).splitlines()[-1])
        return whole_line
    documents: list[dict[str, Any]] = []

    def whole() -> bool:
        over = not job.running()
        assert not over or job.wait().status == 0, job.result
        try:
            documents.append(json.loads(host.check(["cat", measuring.printed])))
        except json.JSONDecodeError:
            assert not over, f"not printed as a whole: {measuring.printed}"
        return bool(documents)

    wait_until(whole, "its document is there")
    return documents[0]
