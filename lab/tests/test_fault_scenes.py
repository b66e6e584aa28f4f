"""Some of the fault scenes on this machine's kernel: nearpath names the cause that the judge finds.

Causes are compared, not times; foreign tasks are causes like any other. `make faults` plays all scenes.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.faults import play
from lab.faults.__main__ import judge_of
from lab.faults.cgroups import Unsupported
from lab.faults.scenes import Scene
from lab.faults.score import Score, score
from lab.faults.trace import TracingFailed
from lab.fixtures import kernel
from lab.payload import PROJECT

SECONDS = 3
# Fewer slow packets are not significant.
ENOUGH = 20
GOAL = 0.9
# A cause of some packets, which proves that the fault was active.
SLICE = {
    "epoll_et-continuous-fifo": "runqueue",
    "select-single-lock": "asleep:futex",
    "epoll_et-continuous-stop": "asleep:stopped",
}


@pytest.fixture(scope="module")
def programs() -> Iterator[Path]:
    """The compiled programs of the scenes."""
    if os.geteuid() != 0:
        pytest.skip("fault scenes need root")
    if (os.cpu_count() or 1) < 2:
        pytest.skip("fault scenes need two CPUs")
    with play.temporary_folder() as folder, play.priority():
        try:
            play.build(Path(folder))
        except TracingFailed as reason:
            pytest.skip(str(reason))
        yield Path(folder)


@pytest.fixture(scope="module")
def nearpath() -> Path:
    """The binary, optimised: hundreds of slow packets a second are explained."""
    cargo = os.environ.get("CARGO", "cargo")
    subprocess.run([cargo, "build", "--release", "--quiet", "--package", "nearpath"], cwd=PROJECT, check=True)
    return Path(os.environ.get("CARGO_TARGET_DIR", PROJECT / "target")) / "release/nearpath"


@kernel
@pytest.mark.parametrize(("name", "cause"), SLICE.items())
def test_the_cause_is_named(name: str, cause: str, programs: Path, nearpath: Path) -> None:
    try:
        played = play.play(Scene.named(name), programs, nearpath, SECONDS)
    except Unsupported as reason:
        pytest.skip(str(reason))
    if fault := _failure(score(played, judge_of(played)), cause):
        pytest.fail(f"{name}: {fault}")


def _failure(scored: Score, cause: str) -> str | None:
    """The limits that a scene's figures miss."""
    judged = len(scored.judged)
    if judged < ENOUGH:
        return f"{judged} slow packets were judged, of {scored.late}: {scored.excluded}"
    if not any(packet.verdict.first.startswith(cause) for packet in scored.judged):
        return f"no packet was late by {cause}: {scored.wrong()}"
    if scored.right < GOAL * judged:
        return f"{scored.right} of {judged} right; wrong: {scored.wrong().most_common(5)}"
    if scored.sums_right < 0.99 * scored.late:
        return f"{scored.late - scored.sums_right} of {scored.late} budgets do not add up"
    return None
