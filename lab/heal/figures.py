"""The application's own figures, as its programs count them (programs/figures.h).

Input: the file that they map. Output: p50, p99 and loss of what was to be sent in an interval.
"""

import array
import struct
import time
from dataclasses import dataclass
from pathlib import Path

SLOT_NS = 100_000_000
SLOTS = 6000
BUCKETS = 1024
SLOT_BYTES = 16 + 4 * BUCKETS
# Loss that a healthy scene may have: two in a thousand.
LITTLE_LOSS = 0.2
# Latency below which a difference is the machine's, not the scene's.
LITTLE_NS = 20_000


@dataclass(frozen=True)
class Figures:
    """Latency from the intended send time, and what never arrived."""

    sent: int
    p50_ns: int | None
    p99_ns: int | None
    lost_percent: float

    def words(self) -> str:
        """`1.2 / 3.4 ms, 0.1 %`."""
        return f"{_time(self.p50_ns)} / {_time(self.p99_ns)}, {self.lost_percent:.2g} %"


class FiguresFile:
    """A scene's file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def between(self, start_ns: int, end_ns: int) -> Figures:
        """The figures of the whole slots in an interval of CLOCK_MONOTONIC."""
        with self.path.open("rb") as file:
            (first,) = struct.unpack("=Q", file.read(8))
            low, high = -(-(start_ns - first) // SLOT_NS), (end_ns - first) // SLOT_NS
            file.seek(8 + low * SLOT_BYTES)
            data = file.read((high - low) * SLOT_BYTES)
        sent = arrived = 0
        buckets = [0] * BUCKETS
        for at in range(0, len(data), SLOT_BYTES):
            its_sent, its_arrived = struct.unpack_from("=QQ", data, at)
            sent, arrived = sent + its_sent, arrived + its_arrived
            counts = array.array("I", data[at + 16 : at + SLOT_BYTES])
            for number, count in enumerate(counts):
                if count:
                    buckets[number] += count
        if sent == 0:
            raise RuntimeError("the traffic sent nothing")
        lost = 100 * max(sent - arrived, 0) / sent
        return Figures(sent, _percentile(buckets, 0.5), _percentile(buckets, 0.99), lost)


def middle_of(parts: list[Figures]) -> Figures:
    """The part with the median p99: what else the machine did for a moment is not in it."""
    return sorted(parts, key=lambda part: (part.lost_percent, part.p99_ns or 0))[len(parts) // 2]


def now_ns() -> int:
    """The clock of the programs."""
    return time.monotonic_ns()


def is_healed(before: Figures, after: Figures, reference: Figures) -> bool:
    """Whether p99 or loss, whichever the fault was in, is a quarter, or within a tenth of the reference.

    Both count where the fault was in both.
    """
    late = is_late(before, reference)
    lossy = is_lossy(before, reference)
    if not (late or lossy):
        return not is_worse(before, after)
    return (not late or _latency_healed(before, after, reference)) and (
        not lossy or _loss_healed(before, after, reference)
    )


def is_late(before: Figures, reference: Figures) -> bool:
    """Whether the fault is visible in p99: twice the reference."""
    if before.p99_ns is None or reference.p99_ns is None:
        return before.p99_ns is None
    return before.p99_ns > 2 * reference.p99_ns + LITTLE_NS


def is_lossy(before: Figures, reference: Figures) -> bool:
    """Whether the fault is visible in the loss."""
    return before.lost_percent > 2 * reference.lost_percent + LITTLE_LOSS


def is_worse(before: Figures, after: Figures) -> bool:
    """Whether p50 or p99 has doubled, or loss has grown by half, beyond the machine's noise."""
    if before.p99_ns is not None and (after.p99_ns is None or after.p50_ns is None):
        return True
    pairs = ((0.5, before.p50_ns, after.p50_ns), (0.99, before.p99_ns, after.p99_ns))
    # A percentile that fell on lost messages was later than any.
    pairs_of_all = [(b, a) for share, b, a in pairs if before.lost_percent < 100 * (1 - share)]
    slower = any(a is not None and b is not None and a > 2 * b + 25 * LITTLE_NS for b, a in pairs_of_all)
    return slower or after.lost_percent > 1.5 * before.lost_percent + LITTLE_LOSS


def _latency_healed(before: Figures, after: Figures, reference: Figures) -> bool:
    if after.p99_ns is None:
        return False
    return (before.p99_ns is not None and after.p99_ns <= before.p99_ns / 4) or (
        reference.p99_ns is not None and after.p99_ns <= 1.1 * reference.p99_ns + LITTLE_NS
    )


def _loss_healed(before: Figures, after: Figures, reference: Figures) -> bool:
    return (
        after.lost_percent <= before.lost_percent / 4
        or after.lost_percent <= 1.1 * reference.lost_percent + LITTLE_LOSS / 2
    )


def _percentile(buckets: list[int], share: float) -> int | None:
    wanted = share * sum(buckets)
    seen = 0
    for number, count in enumerate(buckets):
        seen += count
        if count and seen >= wanted:
            return _middle(number)
    return None


def _middle(bucket: int) -> int:
    if bucket < 16:
        return bucket
    power = bucket // 16 + 3
    return (1 << power) + ((2 * (bucket % 16) + 1) << (power - 4)) // 2


def _time(ns: int | None) -> str:
    if ns is None:
        return "–"
    for unit, size in (("s", 1e9), ("ms", 1e6)):
        if ns >= size:
            return f"{ns / size:.3g} {unit}"
    return f"{ns / 1e3:.3g} µs"
