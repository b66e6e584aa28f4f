"""The command line: `python3 -m lab.heal --help`, or `make heal`."""

import argparse
import os
import signal
import sys
import tempfile
from pathlib import Path

from ..faults.cgroups import Unsupported
from ..faults.play import priority
from . import report
from .play import play
from .scenes import SCENES, Scene
from .stage import StageFailed, build

NEARPATH = Path(__file__).parents[2] / "target/release/nearpath"


def main() -> int:
    """Plays scenes and prints their figures; exit status 1 if some miss their goal."""
    parser = argparse.ArgumentParser(prog="lab.heal", description=__doc__)
    parser.add_argument("scenes", nargs="*", help="a scene's name, or a part of it; default: all")
    parser.add_argument("--nearpath", type=Path, default=NEARPATH, help="the binary (default: %(default)s)")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also write the table to this file")
    parser.add_argument("--list", action="store_true", help="print the scenes and play none")
    options = parser.parse_args()
    chosen = _chosen(options.scenes)
    if options.list:
        for scene in chosen:
            whose = f" ({' or '.join(sorted(scene.whose))})" if scene.whose else ""
            print(f"{scene.name:24} {scene.what}{whose}")
        return 0
    if not options.nearpath.is_file():
        parser.error(f"no such file: {options.nearpath}")
    # A signal also ends what was started, and restores settings.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda got, _: sys.exit(128 + got))
    results = []
    print(report.line(report.HEADER), flush=True)
    with tempfile.TemporaryDirectory(prefix="npheal-") as folder, priority():
        build(Path(folder), os.environ.get("CC", "cc"))
        for scene in chosen:
            results.append(_play(scene, Path(folder), options.nearpath))
            print(report.line(results[-1].row()), flush=True)
    print(f"\n{report.summary(results)}")
    if options.markdown:
        options.markdown.write_text(report.markdown(results) + "\n")
    return int(not results or any(not result.passed for result in results))


def _play(scene: Scene, folder: Path, nearpath: Path) -> report.Result:
    try:
        return report.Result(scene, play(scene, folder, nearpath))
    except Unsupported as reason:
        return report.Result(scene, None, unsupported=str(reason))
    except (StageFailed, RuntimeError) as reason:
        return report.Result(scene, None, failed=str(reason))


def _chosen(names: list[str]) -> list[Scene]:
    """The scenes with these exact names, and where there is none, all whose name contains one."""
    exact = [scene for scene in SCENES if scene.name in names]
    loose = [name for name in names if name not in {scene.name for scene in exact}]
    if not names:
        return SCENES
    return [scene for scene in SCENES if scene in exact or any(name in scene.name for name in loose)]


if __name__ == "__main__":
    sys.exit(main())
