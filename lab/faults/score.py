"""Compares nearpath's explanations of slow packets with the judge's verdicts: the figures of a scene."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from .judge import Actors, Judge, Span, Verdict
from .play import Played

# Tolerance between the sum of a budget and the span, as a share.
SUM_ERROR = 0.05
# Shares that need no subject, and the judge's names for them.
PLAIN = {
    "own": "own",
    "throttled": "throttled",
    "idle": "idle",
    "ipi": "idle",
    "net_rx_ahead": "net_rx",
    "offline": "offline",
    "stolen": "stolen",
    "unknown": "unknown",
    "upcall": "upcall",
    "qdisc": "qdisc",
    "device_queue": "device_queue",
    "tcp_gap": "tcp_gap",
    "socket_locked": "socket_locked",
    "socket_full": "socket_full",
}
# A page fault that reads a file is of both kinds.
SAME = {"asleep:io": "asleep:fault"}


def kind_of(cause: str) -> str:
    """A cause without its task: tasks outside the scene vary."""
    kind, _, who = cause.partition(":")
    return kind if kind in ("runqueue", "migration", "task") else cause


@dataclass(frozen=True)
class Packet:
    """A slow packet: nearpath's explanation, and the verdict."""

    outlier: dict[str, Any]
    said: str
    verdict: Verdict

    @property
    def right(self) -> bool:
        """Whether the first named cause is one of the largest."""
        return self.said in self.verdict.largest


@dataclass
class Score:
    """The figures of a scene."""

    late: int = 0
    sums_right: int = 0
    judged: list[Packet] = field(default_factory=list)
    excluded: Counter = field(default_factory=Counter)
    # Packets with two equally large causes.
    ambiguous: int = 0

    @property
    def right(self) -> int:
        """Packets whose cause was named."""
        return sum(packet.right for packet in self.judged)

    @property
    def cause(self) -> str | None:
        """The most frequent kind of cause."""
        kinds = Counter(kind_of(packet.verdict.first) for packet in self.judged)
        return kinds.most_common(1)[0][0] if kinds else None

    def precision(self, kind: str | None) -> float | None:
        """Of the packets reported with this kind of cause, the share that has it."""
        said = [packet for packet in self.judged if kind_of(packet.said) == kind]
        return sum(packet.right for packet in said) / len(said) if said else None

    def recall(self, kind: str | None) -> float | None:
        """Of the packets that have this kind of cause, the share reported with it (or with another as large)."""
        have = [packet for packet in self.judged if kind_of(packet.verdict.first) == kind]
        return sum(packet.right for packet in have) / len(have) if have else None

    def wrong(self) -> Counter:
        """Reported causes, with the true ones."""
        return Counter((packet.verdict.first, packet.said) for packet in self.judged if not packet.right)


def score(played: Played, judge: Judge) -> Score:
    """Judges every slow packet of a scene."""
    result = Score()
    for outlier in played.document["outliers"]:
        result.late += 1
        result.sums_right += _adds_up(outlier)
        span = span_of(outlier)
        verdict = judge.decide(span)
        said = cause_said(outlier, judge.ends_in_thread(span), played.actors)
        if not verdict.excluded and said == "stolen" and played.steal_ns > 0:
            verdict.excluded = "the hypervisor had the CPU"
        if verdict.excluded:
            result.excluded[verdict.excluded] += 1
            continue
        result.ambiguous += len(verdict.largest) > 1
        result.judged.append(Packet(outlier, said, verdict))
    return result


def span_of(outlier: dict[str, Any]) -> Span:
    """The time and the CPU to explain."""
    end = outlier["at_ns"]
    return Span(end - outlier["span_ns"], end, outlier["cpu"], outlier["to"], outlier["direction"] == "rx")


def cause_said(outlier: dict[str, Any], for_thread: bool, actors: Actors) -> str:
    """The cause that nearpath names first, in the judge's terms."""
    times: Counter = Counter()
    for share in _shares(outlier):
        times[_cause(share, for_thread, actors, outlier.get("direction") != "tx")] += share["ns"]
    return times.most_common(1)[0][0] if times else "nothing"


def _cause(share: dict[str, Any], for_thread: bool, actors: Actors, received: bool) -> str:
    kind, who = share["share"], share["who"] or {}
    comm = who.get("comm") or who.get("vector") or who.get("irq")
    if kind == "irq":
        cause = f"irq:{who['irq'] if who.get('irq') is not None else who.get('vector')}"
    elif kind == "own" and not for_thread:
        cause = "net_rx"
    elif kind == "softirq":
        cause = "net_rx" if not for_thread and who.get("vector") == "NET_RX" else f"softirq:{who.get('vector')}"
    elif kind == "task" and for_thread and who.get("pid") in {*actors.readers, *actors.others}:
        # A sender, and a reader that polls all the time, only do what the packet waits for.
        cause = "own" if actors.spins or not received else "self"
    elif kind in ("task", "disabled"):
        cause = f"task:{comm}"
    elif kind in ("runqueue", "migration"):
        cause = f"{kind}:{comm}"
    elif kind == "asleep":
        cause = f"asleep:{who.get('on')}"
    else:
        cause = PLAIN.get(kind, kind)
    return SAME.get(cause, cause)


def _shares(outlier: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The shares of the time, without the bound of remote memory."""
    return (share for share in outlier["budget"] if share["share"] != "remote_memory_bound")


def _adds_up(outlier: dict[str, Any]) -> bool:
    total = sum(share["ns"] for share in _shares(outlier))
    return abs(total - outlier["span_ns"]) <= SUM_ERROR * outlier["span_ns"]
