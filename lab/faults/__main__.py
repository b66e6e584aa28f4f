"""The command line: `python3 -m lab.faults --help`, or `make faults`."""

import argparse
import signal
import sys
from pathlib import Path

from . import explain, report, scenes
from .cgroups import Unsupported
from .judge import Judge
from .play import Played, SceneFailed, build, drop_reason, play, priority, symbols, temporary_folder
from .score import Score, score

NEARPATH = Path(__file__).parents[2] / "target/release/nearpath"
# Timer functions that the judge recognises.
TIMERS = ("sched_cfs_period_timer",)


def judge_of(played: Played) -> Judge:
    """A judge with the trace of a scene."""
    return Judge(played.trace, played.actors, symbols(TIMERS), drop_reason("SOCKET_FILTER"))


def main() -> int:
    """Plays scenes and prints their figures; exit status 1 if some miss their limits."""
    parser = argparse.ArgumentParser(prog="lab.faults", description=__doc__)
    parser.add_argument("scenes", nargs="*", help="READER-TRAFFIC-FAULT, or a part of it; default: the whole array")
    parser.add_argument("--nearpath", type=Path, default=NEARPATH, help="the binary (default: %(default)s)")
    parser.add_argument("--seconds", type=int, default=5, help="how long to measure each (default: %(default)s)")
    parser.add_argument(
        "--explain", type=int, default=0, metavar="N", help="show N incorrectly named packets of each, with the trace"
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also write the table to this file")
    parser.add_argument("--list", action="store_true", help="print the scenes and play none")
    options = parser.parse_args()
    chosen = _chosen(options.scenes)
    if options.list:
        print("\n".join(scene.name for scene in chosen))
        return 0
    # A signal also ends the processes that it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    results = []
    print(report.line(report.HEADER), flush=True)
    with temporary_folder() as folder, priority():
        build(Path(folder))
        for scene in chosen:
            results.append(_play(scene, Path(folder), options))
            print(report.line(results[-1].row()), flush=True)
    print(f"\n{report.summary(results)}")
    if options.markdown:
        options.markdown.write_text(report.markdown(results) + "\n")
    return int(any(not result.passed for result in results))


def _play(scene: scenes.Scene, folder: Path, options: argparse.Namespace) -> report.Result:
    try:
        played = play(scene, folder, options.nearpath, options.seconds)
    except Unsupported as reason:
        return report.Result(scene, None, str(reason))
    except SceneFailed as reason:
        return report.Result(scene, None, failed=str(reason))
    judge = judge_of(played)
    scored: Score = score(played, judge)
    if options.explain:
        print(explain.wrong_packets(scored, judge, options.explain))
    return report.Result(scene, scored)


def _chosen(names: list[str]) -> list[scenes.Scene]:
    """The scenes with these exact names, and all scenes of the array whose name contains one."""
    known = [*scenes.array(), *scenes.EXTRA]
    if not names:
        return known
    chosen = []
    for name in names:
        if name.count("-") == 2:
            chosen.append(scenes.Scene.named(name))
        else:
            chosen += [scene for scene in known if name in scene.name]
    return chosen


if __name__ == "__main__":
    sys.exit(main())
