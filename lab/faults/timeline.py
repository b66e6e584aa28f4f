"""Converts raw events to what ran on each CPU, and the state of each thread of the scene, at every moment."""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from .trace import VECTORS, Event, Trace

# Linux's softirqs, by number (include/linux/interrupt.h).
SOFTIRQS = ("HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER", "RCU")
NET_RX = "NET_RX"


class Occupant(NamedTuple):
    """The activity of a CPU: `irq`, `softirq` (`who` is its vector), `task`, `idle` or `unknown`."""

    kind: str
    who: str
    pid: int


UNKNOWN = Occupant("unknown", "", -1)


class Piece(NamedTuple):
    """A state from `begin` to `end`."""

    begin: int
    end: int
    state: object


class States:
    """A subject with one state at each moment."""

    def __init__(self, first: object) -> None:
        self.times = [0]
        self.states = [first]

    def set(self, at: int, state: object) -> None:
        """Enters a state."""
        if self.states[-1] != state:
            self.times.append(at)
            self.states.append(state)

    def at(self, moment: int) -> object:
        """The state at a moment."""
        return self.states[bisect_right(self.times, moment) - 1]

    def between(self, begin: int, end: int) -> Iterator[Piece]:
        """The states within a time, clipped to it."""
        index = bisect_right(self.times, begin) - 1
        while index < len(self.times) and self.times[index] < end:
            until = self.times[index + 1] if index + 1 < len(self.times) else end
            piece = Piece(max(begin, self.times[index]), min(end, until), self.states[index])
            if piece.end > piece.begin:
                yield piece
            index += 1


def repaired(events: list[Event]) -> list[Event]:
    """The events of a CPU, with markers for lost task switches: each event contains the current
    task. After the last event of the old task comes `switch_lost`, at the first of the new one
    `switch_found`.
    """
    comms = {event.values[1]: event.values[0] for event in events if event.name == "sched_switch"}
    comms |= {event.values[4]: event.values[3] for event in events if event.name == "sched_switch"}
    current, last, result = None, 0, []
    for event in events:
        before = event.values[1] if event.name == "sched_switch" else event.pid
        if current is not None and before != current:
            result.append(Event(last + 1, "switch_lost", current, (current,)))
            result.append(Event(event.at, "switch_found", before, (before, comms.get(before, "?"))))
        current = event.values[4] if event.name == "sched_switch" else before
        last = event.at
        result.append(event)
    return result


def occupancy(trace: Trace) -> dict[int, States]:
    """What ran on each CPU."""
    return {cpu: _occupancy(repaired(events)) for cpu, events in trace.events.items()}


def _occupancy(events: list) -> States:
    states, task, softirq, irqs = States(UNKNOWN), UNKNOWN, None, []
    handler_exits = {f"{vector}_exit" for vector in VECTORS} | {"irq_handler_exit"}
    handler_entries = {f"{vector}_entry": vector for vector in VECTORS}
    for event in events:
        if event.name == "sched_switch":
            _, _, _, comm, pid = event.values
            # Anything entered on this CPU has ended: interrupts and softirqs do not sleep.
            task, softirq, irqs = Occupant("task" if pid else "idle", comm, pid), None, []
        elif event.name == "switch_lost":
            task, softirq, irqs = UNKNOWN, None, []
        elif event.name == "switch_found":
            pid, comm = event.values
            task = Occupant("task" if pid else "idle", comm, pid)
        elif event.name == "softirq_entry":
            softirq = Occupant("softirq", SOFTIRQS[event.values[0]], event.pid)
        elif event.name == "softirq_exit":
            softirq = None
        elif event.name == "irq_handler_entry":
            irqs.append(Occupant("irq", str(event.values[0]), event.pid))
        elif event.name in handler_entries:
            irqs.append(Occupant("irq", handler_entries[event.name], event.pid))
        elif event.name in handler_exits:
            irqs = irqs[:-1]
        else:
            continue
        states.set(event.at, irqs[0] if irqs else softirq or task)
    return states


@dataclass(frozen=True)
class Thread:
    """The state of a thread.

    `running` and `ready` on a CPU, or `blocked`; its system call (None: none); the letter of its
    state when it left the CPU; what woke it, if it was woken.
    """

    does: str
    cpu: int
    call: int | None
    letter: str = ""


LETTERS = {0: "R", 1: "S", 2: "D", 4: "T", 8: "t", 16: "X", 32: "Z", 64: "P", 128: "I"}


def _letter(state: int) -> str:
    return LETTERS.get(state & 0xFF, "R" if state & 0xFF == 0 else "D")


class Threads:
    """The states of a scene's threads, and their wake-ups."""

    def __init__(self, trace: Trace, tids: list[int]) -> None:
        self.states = {tid: States(Thread("unknown", -1, None)) for tid in tids}
        # By thread: time of the wake-up, and the current task.
        self.wakings: dict[int, list[tuple[int, int]]] = {tid: [] for tid in tids}
        # By thread: start, end, number of each system call.
        self.calls: dict[int, list[tuple[int, int, int]]] = {tid: [] for tid in tids}
        events = [(event.at, cpu, event) for cpu, events in trace.events.items() for event in repaired(events)]
        events.sort(key=lambda entry: entry[0])
        self._now = {tid: Thread("unknown", -1, None) for tid in tids}
        self._entered: dict[int, tuple[int, int]] = {}
        for at, cpu, event in events:
            handler = getattr(self, f"_{event.name}", None)
            if handler:
                handler(at, cpu, event)
        for tid, (begin, number) in self._entered.items():
            self.calls[tid].append((begin, 1 << 62, number))

    def _become(self, tid: int, at: int, does: str, cpu: int, letter: str = "") -> None:
        call = self._entered[tid][1] if tid in self._entered else None
        self._now[tid] = Thread(does, cpu, call, letter)
        self.states[tid].set(at, self._now[tid])

    def _sched_switch(self, at: int, cpu: int, event: Event) -> None:
        _, before, state, _, after = event.values
        if before in self._now:
            letter = _letter(state)
            self._become(before, at, "ready" if letter == "R" else "blocked", cpu, letter)
        if after in self._now:
            self._become(after, at, "running", cpu)

    def _switch_lost(self, at: int, cpu: int, event: Event) -> None:
        tid = event.values[0]
        if tid in self._now and self._now[tid].does == "running" and self._now[tid].cpu == cpu:
            self._become(tid, at, "unknown", cpu)

    def _switch_found(self, at: int, cpu: int, event: Event) -> None:
        if event.values[0] in self._now:
            self._become(event.values[0], at, "running", cpu)

    def _sched_waking(self, at: int, _cpu: int, event: Event) -> None:
        tid, target = event.values
        if tid in self._now and self._now[tid].does in ("blocked", "unknown"):
            self.wakings[tid].append((at, event.pid))
            self._become(tid, at, "ready", target)

    # If the wake-up was recorded before the switch that it follows, this restores the order.
    _sched_wakeup = _sched_waking

    def _sched_migrate_task(self, at: int, _cpu: int, event: Event) -> None:
        tid, _, target = event.values
        if tid in self._now and self._now[tid].does == "ready":
            self._become(tid, at, "ready", target)

    def _sys_enter(self, at: int, cpu: int, event: Event) -> None:
        tid = event.pid
        if tid in self._now:
            self._entered[tid] = (at, event.values[0])
            self._become(tid, at, "running", cpu)

    def _sys_exit(self, at: int, cpu: int, event: Event) -> None:
        tid = event.pid
        if tid in self._now and tid in self._entered:
            begin, number = self._entered.pop(tid)
            self.calls[tid].append((begin, at, number))
            self._become(tid, at, "running", cpu)

    def call_at(self, tid: int, moment: int) -> tuple[int, int, int] | None:
        """The system call that a thread is in."""
        calls = self.calls[tid]
        index = bisect_right(calls, moment, key=lambda call: call[0]) - 1
        return calls[index] if index >= 0 and calls[index][1] >= moment else None
