"""The table of scenes: a row for each, and whether it meets its goal."""

from dataclasses import dataclass
from typing import Any

from .figures import Figures, is_healed, is_late, is_lossy, is_worse
from .play import Played
from .scenes import Scene

HEADER = [
    "scene",
    "without fault (p50 / p99, lost)",
    "before",
    "first finding",
    "tried",
    "first kept after",
    "total",
    "after",
    "rollback",
    "goal",
]
WIDTHS = (23, 32, 32, 50, 60, 16, 7, 32, 8, 0)


@dataclass
class Result:
    """What became of a scene."""

    scene: Scene
    played: Played | None
    # Why it could not be played: not supported here, or failed.
    unsupported: str = ""
    failed: str = ""

    def misses(self) -> list[str]:
        """The goals that it misses."""
        if self.unsupported:
            return []
        played = self.played
        if played is None or played.after is None or played.failed:
            return [self.failed or (played.failed if played else "") or "not measured"]
        found = list(_outcome(self.scene, played, played.after))
        if is_worse(played.before, played.after):
            found.append("worse than before")
        if played.rollback_failed:
            found.append(played.rollback_failed)
        if played.not_restored:
            found.append(f"not restored: {'; '.join(played.not_restored)}")
        return found

    @property
    def passed(self) -> bool:
        """Whether it meets its goals, or cannot be played."""
        return not self.misses()

    def row(self) -> list[str]:
        """Its row of the table."""
        if self.unsupported or self.played is None:
            empty = [""] * (len(HEADER) - 2)
            return [self.scene.name, *empty, f"not played: {self.unsupported}" if self.unsupported else self.failed]
        played, document = self.played, self.played.document
        return [
            self.scene.name,
            played.reference.words(),
            played.before.words(),
            str(document.get("first_finding") or "none"),
            "; ".join(_attempt(attempt) for attempt in document.get("tried", [])) or "nothing",
            _seconds(played.first_kept_s),
            _seconds(document.get("seconds")),
            played.after.words() if played.after else "",
            "NOT OK" if played.not_restored or played.rollback_failed else "ok",
            "; ".join(self.misses()) or ("healed" if not self.scene.whose else "left, as it must"),
        ]


def _outcome(scene: Scene, played: Played, after: Figures) -> list[str]:
    before, reference = played.before, played.reference
    if not (is_late(before, reference) or is_lossy(before, reference)):
        return ["the fault is not visible"]
    if not scene.whose:
        if not is_healed(before, after, reference):
            return ["not healed"]
        # What a trial leaves behind in open connections is not a healed host.
        return [] if kept(played.document) else ["better, but no change is kept"]
    found = []
    if kept(played.document):
        found.append("something is kept")
    left = {str(finding.get("whose")) for finding in played.document.get("left", [])}
    if not left & scene.whose:
        found.append(f"whose: {', '.join(sorted(left)) or 'nobody'}, not {' or '.join(sorted(scene.whose))}")
    return found


def kept(document: dict[str, Any]) -> bool:
    """Whether a change is kept."""
    return bool(document.get("kept")) or any(attempt.get("kept") for attempt in document.get("tried", []))


def _attempt(attempt: dict[str, Any]) -> str:
    changes = ", ".join(attempt.get("changes", [])) or str(attempt.get("check"))
    verdict = str(attempt.get("verdict", "?")).replace("_", " ")
    reason = f" ({attempt['reason']})" if attempt.get("reason") else ""
    return f"{changes}: {verdict}{', kept' if attempt.get('kept') else ''}{reason}"


def _seconds(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds:.0f} s"


def line(row: list[str]) -> str:
    """A row for the terminal; a cell that is too long moves the rest."""
    return "  ".join(cell.ljust(width) for cell, width in zip(row, WIDTHS, strict=True)).rstrip()


def markdown(results: list[Result]) -> str:
    """The table in Markdown, with the summary."""
    rows = [HEADER, ["---"] * len(HEADER), *(result.row() for result in results)]
    lines = ("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)
    return "\n".join(lines) + f"\n\n{summary(results)}"


def summary(results: list[Result]) -> str:
    """How many scenes meet their goals."""
    played = [result for result in results if not result.unsupported]
    healed = [result for result in played if not result.scene.whose]
    others = [result for result in played if result.scene.whose]
    return (
        f"{sum(result.passed for result in healed)} of {len(healed)} scenes that the host can heal are healed, "
        f"{sum(result.passed for result in others)} of {len(others)} others are left as they must, "
        f"{len(results) - len(played)} could not be played."
    )
