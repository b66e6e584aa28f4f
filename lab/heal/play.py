"""Plays a scene: a reference without the fault, then the fault, the fix, and the rollback, with traffic all the time.

Input: a scene, and the binary. Output: the application's figures of each part, nearpath's document, and which settings
the rollback has not restored.
"""

import json
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import settings
from .figures import Figures, now_ns
from .scenes import Scene
from .stage import Stage, StageFailed

REFERENCE_S = 3
MEASURED_S = 5
SETTLING_S = 1.0
# Late datagrams still count as arrived for so long.
ARRIVING_S = 0.6
PATIENCE_S = 420


@dataclass
class Played:
    """What was measured of a scene."""

    reference: Figures
    before: Figures
    after: Figures | None = None
    # The document of `nearpath fix --json`.
    document: dict[str, Any] = field(default_factory=dict)
    # Why nearpath failed.
    failed: str = ""
    not_restored: list[str] = field(default_factory=list)


def reference(scene: Scene, folder: Path) -> Figures:
    """The figures without the fault."""
    with Stage(folder, faulty=False) as stage:
        scene.play(stage)
        return _measure(stage, REFERENCE_S)


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
        try:
            played.document = _fix(stage, nearpath, state)
        except StageFailed as failed:
            played.failed = str(failed)
        stage.check()
        played.after = _measure(stage, MEASURED_S)
        done = _nearpath(stage, nearpath, state, "tune", "rollback")
        if done.returncode != 0:
            played.failed += f" rollback: {done.stderr.strip()}"
        played.not_restored = settings.differences(earlier, _settings(stage))
        return played


def _measure(stage: Stage, seconds: int) -> Figures:
    time.sleep(SETTLING_S)
    start = now_ns()
    time.sleep(seconds)
    end = now_ns()
    time.sleep(ARRIVING_S)
    stage.check()
    return stage.figures.between(start, end)


def _settings(stage: Stage) -> settings.Settings:
    found = settings.of_threads()
    for netns in (None, stage.host.netns, stage.peer.netns):
        found |= settings.of_namespace(netns)
    return found


def _nearpath(stage: Stage, nearpath: Path, state: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [str(nearpath.resolve()), *words, "--netns", stage.host.netns]
    return subprocess.run(
        command,
        env={**os.environ, "NEARPATH_STATE_DIR": str(state)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def _fix(stage: Stage, nearpath: Path, state: Path) -> dict[str, Any]:
    try:
        done = _nearpath(stage, nearpath, state, "fix", "--yes", "--json")
    except subprocess.TimeoutExpired:
        raise StageFailed(f"nearpath fix does not exit within {PATIENCE_S} s") from None
    if done.returncode != 0:
        raise StageFailed(f"nearpath fix: status {done.returncode}: {done.stderr.strip()[-2000:]}")
    document: dict[str, Any] = json.loads(done.stdout)
    return document
