"""The table of scenes, as text or as Markdown, and what was wrong in each."""

from collections import Counter
from dataclasses import dataclass

from .scenes import Scene
from .score import Score

# With fewer packets a scene's percentages are not significant.
ENOUGH = 100
GOAL = 0.95
SUMS_GOAL = 0.99
HEADER = ("scene", "late", "judged", "right", "cause", "precision", "recall", "sums ok", "")


@dataclass
class Result:
    """A scene, and its figures or the reason why there are none."""

    scene: Scene
    score: Score | None
    skipped: str | None = None
    failed: str | None = None

    @property
    def counts(self) -> bool:
        """Whether it had enough packets for percentages."""
        return self.score is not None and len(self.score.judged) >= ENOUGH

    @property
    def passed(self) -> bool:
        """Whether the figures of a scene that counts are within the limits."""
        score = self.score
        if self.failed:
            return False
        if not self.counts or score is None:
            return True
        precision, recall = score.precision(score.cause), score.recall(score.cause)
        named = precision is not None and recall is not None and min(precision, recall) >= GOAL
        return named and score.right >= GOAL * len(score.judged) and score.sums_right >= SUMS_GOAL * score.late

    def row(self) -> tuple[str, ...]:
        """The row of the table."""
        if self.score is None:
            why = f"FAILED: {self.failed}" if self.failed else f"skipped: {self.skipped}"
            return (self.scene.name, *[""] * 7, why)
        s = self.score
        verdict = "" if not self.counts else "ok" if self.passed else "WRONG"
        return (
            self.scene.name,
            str(s.late),
            str(len(s.judged)),
            _percent(s.right, len(s.judged)),
            s.cause or "-",
            _share(s.precision(s.cause)),
            _share(s.recall(s.cause)),
            _percent(s.sums_right, s.late),
            verdict,
        )


def _percent(part: int, whole: int) -> str:
    return _share(part / whole if whole else None)


def _share(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def line(row: tuple[str, ...]) -> str:
    """A row as text."""
    widths = (34, 5, 6, 8, 22, 9, 8, 8, 0)
    cells = [
        cell.ljust(width) if i in (0, 4) else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()


def markdown(results: list[Result]) -> str:
    """The table for docs/measuring.md."""
    rows = [HEADER, tuple("---" for _ in HEADER), *(result.row() for result in results)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def summary(results: list[Result]) -> str:
    """The closing lines."""
    scored = [result.score for result in results if result.score]
    judged, right = sum(len(s.judged) for s in scored), sum(s.right for s in scored)
    aside = sum((s.excluded for s in scored), Counter())
    skipped = Counter(result.skipped for result in results if result.skipped)
    counting = [result for result in results if result.counts]
    lines = [
        f"{len(results)} scenes, {len(counting)} with {ENOUGH} late packets or more, of which "
        f"{sum(result.passed for result in counting)} reach {GOAL:.0%}",
        f"{sum(s.late for s in scored)} late packets, {judged} judged, {_percent(right, judged)} right; "
        f"{sum(s.ambiguous for s in scored)} with two causes of the same size; sums ok "
        f"{_percent(sum(s.sums_right for s in scored), sum(s.late for s in scored))}",
    ]
    lines += [f"set aside: {count} ({reason})" for reason, count in aside.most_common()]
    lines += [f"skipped: {count} scenes ({reason})" for reason, count in skipped.most_common()]
    wrong = sum((s.wrong() for s in scored), Counter())
    lines += [f"wrong: {count} were {truth}, said {said}" for (truth, said), count in wrong.most_common(20)]
    return "\n".join(lines)
