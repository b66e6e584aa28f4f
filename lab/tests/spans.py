"""Queries on a document of `nearpath measure stages --json`: how many packets took which path."""

from typing import Any


def passed(document: dict[str, Any], direction: str, begin: str | None = None, end: str | None = None) -> int:
    """Packets that went from a stage, to a stage, or from one to the next."""
    return sum(
        span["count"]
        for span in document["spans"]
        if span["direction"] == direction and begin in (None, span["from"]) and end in (None, span["to"])
    )


def ways(document: dict[str, Any], direction: str, begin: str) -> dict[str, int]:
    """To which stages packets went from one, and how many to each."""
    spans = (span for span in document["spans"] if (span["direction"], span["from"]) == (direction, begin))
    return {span["to"]: span["count"] for span in spans}


def assert_path(document: dict[str, Any], direction: str, packets: int, *stages: str, seen: float = 1) -> None:
    """Asserts that `count` packets, or a share of them, took this path, from each stage to the next and to no other.

    Tolerates runs of programs that the kernel skipped, as both it and nearpath report.
    """
    lost = document["events_lost"]
    for begin, end in zip(stages, stages[1:], strict=False):
        found = ways(document, direction, begin)
        right = found.pop(end, 0)
        enough = seen * packets - lost <= right <= packets
        elsewhere = sum(found.values()) if seen == 1 else 0
        assert enough and elsewhere <= lost, f"from {begin}: {found}, and {right}, not {packets}, to {end}"


def assert_balanced(document: dict[str, Any]) -> None:
    """Asserts that each started packet has one end."""
    packets = document["packets"]
    assert packets["started"] == sum(packets[end] for end in ("completed", "dropped", "abandoned", "collided"))


def overlap(outlier: dict[str, Any], times: list[tuple[int, int]]) -> int:
    """How much of its span these shares took."""
    begin, end = outlier["at_ns"] - outlier["span_ns"], outlier["at_ns"]
    return sum(max(0, min(end, last) - max(begin, first)) for first, last in times)
