"""Rare faults: how often `nearpath diagnose` names one first that comes once in some seconds.

`python3 -m lab.heal.rare --help`, or `make rare`. Each window is one run of diagnose, 10 s of a stream of datagrams
whose reader is disturbed for some milliseconds each 2.5, 5 and 8 s. Output: for each fault and period the windows,
those in which it was the first finding, and what else was; exit status 1 if it was not in 19 of 20.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from ..faults.cgroups import Unsupported
from ..faults.play import priority
from .__main__ import NEARPATH
from .figures import now_ns
from .play import SETTLING_S
from .stage import HOST_CPU, PEER_CPU, Stage, build

RATE = 10_000
PERIODS_S = (2.5, 5.0, 8.0)
GOAL = 0.95
PATIENCE_S = 120

# What sets it up, with the seconds from one to the next, and what the first finding's title says.
Fault = tuple[Callable[[Stage, float], None], str]


def _disturb(stage: Stage, fault: str, every_s: float, *words: str) -> None:
    os.environ["DISTURB_PAUSE_MS"] = str(int(every_s * 1000))
    stage.spawn([str(stage.folder / "disturb"), fault, str(HOST_CPU), str(PEER_CPU), *words], waits=False)


def _fifo(stage: Stage, every_s: float) -> None:
    stage.reader()
    stage.hog(name="rarehog", fifo=10, busy_us=10_000, pause_us=int(every_s * 1e6))


def _interrupts_off(stage: Stage, every_s: float) -> None:
    # The reader's CPU receives, too.
    file = f"/sys/class/net/{stage.host.device}/queues/rx-0/rps_cpus"
    stage.at(stage.host, "sh", "-c", f"echo {1 << HOST_CPU:x} >{file}")
    stage.reader()
    _disturb(stage, "interrupts_off", every_s)


def _stop(stage: Stage, every_s: float) -> None:
    _disturb(stage, "stop", every_s, str(stage.reader().pid))


def _timers(stage: Stage, every_s: float) -> None:
    stage.reader()
    _disturb(stage, "timers", every_s)


def _stall(stage: Stage, every_s: float) -> None:
    stage.reader(stall_ms=10, stall_every_ms=int(every_s * 1000))


def _crowd(stage: Stage, every_s: float) -> None:
    stage.reader()
    stage.hog(name="rarehog", fifo=9, tasks=3, busy_us=3_000, pause_us=int(every_s * 1e6))


FAULTS: dict[str, Fault] = {
    "fifo": (_fifo, r"rarehog"),
    "crowd": (_crowd, r"rarehog"),
    "interrupts-off": (_interrupts_off, r"\bcli\b"),
    "stop": (_stop, r"stopped by a signal"),
    "timers": (_timers, r"local_timer|timers|TIMER"),
    "stall": (_stall, r"reader"),
}


def window(folder: Path, nearpath: Path, set_up: Callable[[Stage, float], None], every_s: float) -> str:
    """The first line that diagnose prints."""
    with Stage(folder, faulty=True) as stage:
        stage.link.pair()
        set_up(stage, every_s)
        stage.datagrams(rate=RATE)
        begun = now_ns()
        time.sleep(SETTLING_S)
        command = [str(nearpath.resolve()), "diagnose", "--netns", stage.host.netns]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        stage.check()
        first = done.stdout.splitlines()[0] if done.stdout else done.stderr.strip()
        print(f"  {first}  ({stage.figures.between(begun, now_ns()).words()})", flush=True)
        return first


def main() -> int:
    """Plays all windows and prints how often each fault was named first."""
    parser = argparse.ArgumentParser(prog="lab.heal.rare", description=__doc__)
    parser.add_argument("faults", nargs="*", help=f"which; default: all of {', '.join(FAULTS)}")
    parser.add_argument("--windows", type=int, default=2, help="of each fault and period (default: %(default)s)")
    parser.add_argument("--nearpath", type=Path, default=NEARPATH, help="the binary (default: %(default)s)")
    options = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda got, _: sys.exit(128 + got))
    named = played = 0
    with tempfile.TemporaryDirectory(prefix="nprare-") as folder, priority():
        build(Path(folder), os.environ.get("CC", "cc"))
        for name, (set_up, expected) in FAULTS.items():
            if options.faults and name not in options.faults:
                continue
            for every_s in PERIODS_S:
                try:
                    lines = [window(Path(folder), options.nearpath, set_up, every_s) for _ in range(options.windows)]
                except Unsupported as reason:
                    print(f"{name:16} not played: {reason}", flush=True)
                    break
                right = sum(bool(re.search(expected, line)) for line in lines)
                others = Counter(line for line in lines if not re.search(expected, line))
                print(f"{name:16} each {every_s} s: {right} of {len(lines)}  {dict(others) or ''}", flush=True)
                named, played = named + right, played + len(lines)
    print(f"named first in {named} of {played} windows")
    return int(not played or named < GOAL * played)


if __name__ == "__main__":
    sys.exit(main())
