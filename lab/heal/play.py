"""Plays a scene: a reference without the fault, then the fault, the fix, and the rollback, with traffic all the time.

Input: a scene, and the binary. Output: the application's figures of each part, nearpath's document, and which settings
the rollback has not restored.
"""

import contextlib
import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from . import settings
from .figures import Figures, middle_of, now_ns
from .scenes import Scene
from .stage import Stage

REFERENCE_S = 3
MEASURED_S = 5
SETTLING_S = 1.0
# Late datagrams still count as arrived for so long.
ARRIVING_S = 0.6
PATIENCE_S = 420
GRACE_S = 30


@dataclass
class Played:
    """What was measured of a scene."""

    reference: Figures
    before: Figures
    after: Figures | None = None
    # The document of `nearpath fix --json`.
    document: dict[str, Any] = field(default_factory=dict)
    # Seconds from the start of the fix until it kept a change.
    first_kept_s: float | None = None
    # Why nearpath failed.
    failed: str = ""
    rollback_failed: str = ""
    not_restored: list[str] = field(default_factory=list)


def reference(scene: Scene, folder: Path) -> Figures:
    """The figures without the fault."""
    with Stage(folder, faulty=False) as stage:
        scene.play(stage)
        start = _pass(stage, REFERENCE_S)
        seconds = [start + number * 1_000_000_000 for number in range(REFERENCE_S + 1)]
        return middle_of([stage.figures.between(*part) for part in pairwise(seconds)])


def play(scene: Scene, folder: Path, nearpath: Path, observe: Callable[[Stage], None] | None = None) -> Played:
    """Plays all of it; `observe` is called in place of the fix, if given."""
    expected = reference(scene, folder)
    with Stage(folder, faulty=True) as stage:
        scene.play(stage)
        before = _measure(stage, MEASURED_S)
        played = Played(expected, before)
        if observe:
            observe(stage)
            return played
        state = folder / "state"
        earlier = _settings(stage)
        # Also if this process is ended meanwhile.
        stage.closing.callback(_rollback, stage, nearpath, state)
        _fix(stage, nearpath, state, played)
        played.after = _measure(stage, MEASURED_S)
        played.rollback_failed = _rollback(stage, nearpath, state)
        played.not_restored = settings.differences(earlier, _settings(stage))
        return played


def _measure(stage: Stage, seconds: int) -> Figures:
    start = _pass(stage, seconds)
    return stage.figures.between(start, start + seconds * 1_000_000_000)


def _pass(stage: Stage, seconds: int) -> int:
    """Lets the traffic run; returns when the measured time began."""
    time.sleep(SETTLING_S)
    start = now_ns()
    time.sleep(seconds + ARRIVING_S)
    stage.check()
    return start


def _settings(stage: Stage) -> settings.Settings:
    found = settings.of_threads()
    for netns in (None, stage.host.netns, stage.peer.netns):
        found |= settings.of_namespace(netns)
    return found


def _environment(state: Path) -> dict[str, str]:
    return {**os.environ, "NEARPATH_STATE_DIR": str(state)}


def _rollback(stage: Stage, nearpath: Path, state: Path) -> str:
    """Returns why it failed, if it did."""
    command = [str(nearpath.resolve()), "tune", "rollback", "--netns", stage.host.netns]
    done = subprocess.run(
        command, env=_environment(state), capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    return "" if done.returncode == 0 else f"rollback: {done.stderr.strip()}"


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _fix(stage: Stage, nearpath: Path, state: Path, played: Played) -> None:
    """Runs the fix, and notes when it says that it has kept a change."""
    command = [str(nearpath.resolve()), "fix", "--yes", "--json", "--netns", stage.host.netns]
    with contextlib.ExitStack() as closing:
        process = subprocess.Popen(
            command,
            env=_environment(state),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        # Also on a signal: what it has not decided, its guardian undoes.
        closing.callback(_end, process)
        began, said = time.monotonic(), []
        patience = threading.Timer(PATIENCE_S, _end, [process])
        closing.callback(patience.cancel)
        patience.start()
        for line in process.stderr or []:
            said.append(line)
            if played.first_kept_s is None and re.search(r" after .*, kept", line):
                played.first_kept_s = time.monotonic() - began
        printed = process.stdout.read() if process.stdout else ""
        status = process.wait()
    if status != 0:
        played.failed = f"nearpath fix: status {status}: {''.join(said)[-1000:].strip()}"
    with contextlib.suppress(json.JSONDecodeError):
        played.document = json.loads(printed)
    if not played.document and not played.failed:
        played.failed = f"nearpath fix printed no JSON document: {printed[-200:]!r}"
