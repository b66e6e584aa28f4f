"""Shows packets on which nearpath and the judge differ, with the raw trace of their spans."""

from .judge import Judge
from .score import Packet, Score, span_of

MOST_EVENTS = 16
# Events of a CPU that are rarely informative.
QUIET = ("local_timer", "hrtimer_expire", "irq_work", "call_function")


def wrong_packets(score: Score, judge: Judge, count: int) -> str:
    """Returns the first packets of each kind of mistake."""
    shown: dict[tuple[str, str], int] = {}
    parts = []
    for packet in score.judged:
        key = (packet.verdict.first, packet.said)
        if not packet.right and shown.get(key, 0) < count:
            shown[key] = shown.get(key, 0) + 1
            parts.append(one(packet, judge))
    return "\n".join(parts)


def one(packet: Packet, judge: Judge) -> str:
    """A packet: both opinions, its path and the trace."""
    o, span = packet.outlier, span_of(packet.outlier)
    lines = [
        f"--- {o['direction']} {o['from']} -> {o['to']} on CPU {o['cpu']} (from {o['from_cpu']}), "
        f"{o['span_ns'] / 1000:.0f} us until {o['at_ns']}, {o['flow']}",
        f"    nearpath: {packet.said}: "
        + ", ".join(f"{s['share']} {_who(s)} {s['ns'] / 1000:.0f}" for s in o["budget"][:4]),
        "    trace:    "
        + ", ".join(f"{c} {ns / 1000:.0f}" for c, ns in packet.verdict.causes.most_common(4))
        + (f" also {packet.verdict.also}" if packet.verdict.also else ""),
        "    path:     "
        + ", ".join(f"{p['stage']}@{p['cpu']} {(p['at_ns'] - span.begin) / 1000:+.0f}" for p in o["path"]),
    ]
    events = []
    for cpu, found in judge.trace.events.items():
        for event in found:
            if span.begin - 100_000 <= event.at <= span.end + 30_000 and _concerns(event, cpu, span.cpu, judge):
                events.append((event.at, cpu, event))
    events.sort(key=lambda entry: entry[0])
    if len(events) > MOST_EVENTS:
        half = MOST_EVENTS // 2
        events = events[:half] + [None] + events[-half:]
    for entry in events:
        if entry is None:
            lines.append("      ...")
            continue
        at, cpu, event = entry
        lines.append(
            f"      {(at - span.begin) / 1000:+10.1f} us  cpu {cpu}  pid {event.pid:<7} {event.name} {event.values}"
        )
    return "\n".join(lines)


def _who(share: dict) -> str:
    who = share["who"] or {}
    return " ".join(str(value) for value in who.values() if value is not None)


def _concerns(event, cpu: int, span_cpu: int, judge: Judge) -> bool:
    """Whether it is relevant for this span: it concerns its threads, or its CPU."""
    if event.name.startswith(QUIET):
        return False
    threads = judge.threads.states
    if event.name == "sched_switch":
        return cpu == span_cpu or event.values[1] in threads or event.values[4] in threads
    if event.name in ("sched_waking", "sched_migrate_task"):
        return event.values[0] in threads
    if event.name == "sched_wakeup":
        return False
    return cpu == span_cpu or event.name.startswith("tcp")
