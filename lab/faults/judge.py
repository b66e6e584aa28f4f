"""Decides from the raw trace what a slow packet waited for.

It uses the kernel's scheduler, interrupts and system calls, and the threads of the scene. From nearpath it
takes only the time and the CPU to explain. What a packet waits for follows from how its span
ends: in a thread of the scene (then that thread had to run), or in a softirq (then the CPU had to reach
it).

A cause is a word and its subject: `runqueue:hog`, `asleep:futex`, `irq:local_timer`, `net_rx`.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from .timeline import NET_RX, Occupant, Thread, Threads, occupancy
from .trace import Trace

# x86-64's numbers of the system calls in which readers wait for their socket, of those that send, and of others.
WAITS_FOR_SOCKET = {45, 47, 299, 7, 271, 23, 270, 232, 281, 441, 426}
SENDS = {44, 46, 307}
# Stages within a receive call.
READS = {"skb_copy_datagram", "sock_recv"}
BLOCKS_ON = {202: "futex", 35: "nanosleep", 230: "nanosleep", 0: "pipe", 17: "io"}
# Causes within this share of the span of each other are equally large.
EQUAL = 0.10
# The two clocks are not read at the same time.
CLOCK_NS = 20_000
# Tolerance between the kernel's accounting of a quota and the trace's.
QUOTA_ERROR_NS = 300_000
# Not judged if more than this share of a span is untraced.
MOST_UNKNOWN = 0.20


@dataclass(frozen=True)
class Actors:
    """The threads of a scene, and its other properties."""

    readers: list[int]
    others: list[int]
    port: int
    tcp: bool = False
    # Tasks with the same CPU quota, and the quota.
    limited: list[int] = field(default_factory=list)
    # The reader polls its socket all the time: its state is always the same.
    spins: bool = False
    period_ns: int = 0
    quota_ns: int = 0


@dataclass(frozen=True)
class Span:
    """The time to explain."""

    begin: int
    end: int
    cpu: int
    to: str
    received: bool


@dataclass
class Verdict:
    """How long each cause delayed the packet; or why that is unknown."""

    causes: Counter
    # Causes that are equivalent to the largest.
    also: set[str] = field(default_factory=set)
    excluded: str | None = None

    @property
    def largest(self) -> set[str]:
        """The causes that count as the largest."""
        if not self.causes:
            return set()
        span, most = sum(self.causes.values()), max(self.causes.values())
        return {cause for cause, ns in self.causes.items() if ns >= most - EQUAL * span} | self.also

    @property
    def first(self) -> str:
        """The largest cause."""
        return self.causes.most_common(1)[0][0]


class Judge:
    """Verdicts on the packets of one scene."""

    def __init__(self, trace: Trace, actors: Actors, symbols: dict[int, str], filter_reason: int | None) -> None:
        self.trace, self.actors, self.symbols = trace, actors, symbols
        self.cpus = occupancy(trace)
        self.threads = Threads(trace, sorted({*actors.readers, *actors.others, *actors.limited}))
        self.gaps = self._gaps(filter_reason)
        self.throttled = self._throttled()
        self.dequeues = sorted((e.at, e.values[0]) for e in self._named("qdisc_dequeue") if e.values[0])
        self.enqueues: dict[int, list[int]] = {}
        for event in sorted(self._named("qdisc_enqueue")):
            self.enqueues.setdefault(event.values[0], []).append(event.at)

    def _named(self, name: str) -> Iterator:
        return (event for events in self.trace.events.values() for event in events if event.name == name)

    def decide(self, span: Span) -> Verdict:
        """Decides what the packet waited for."""
        verdict = self._decide(span)
        unknown = verdict.causes["unknown"]
        if not verdict.excluded and unknown > MOST_UNKNOWN * (span.end - span.begin):
            verdict.excluded = "a state that is not in the trace"
        return verdict

    def _decide(self, span: Span) -> Verdict:
        if span.cpu not in self.cpus or not self.trace.is_whole(span.begin, span.end):
            return Verdict(Counter(), excluded="events of the trace were lost")
        if not span.received and (queued := self._in_qdisc(span)):
            return queued
        context = self._context(span)
        if context.kind == "task":
            if context.pid not in self.threads.states:
                return Verdict(Counter(), excluded="it ends in a foreign thread")
            return self._for_thread(span, context.pid)
        return Verdict(self._for_softirq(span))

    def ends_in_thread(self, span: Span) -> bool:
        """Whether the packet waits for a thread, not for a softirq."""
        return span.cpu in self.cpus and self._context(span).kind == "task"

    def _context(self, span: Span) -> Occupant:
        """The context in which the span ends."""
        states = self.cpus[span.cpu]
        if span.to != "sched_switch":
            state = states.at(span.end)
            # A thread takes the packet, even if it is interrupted at that moment.
            if span.to in READS and state.kind in ("irq", "softirq"):
                return Occupant("task", "", state.pid)
            return state
        # The switch itself, whose time differs between the two clocks.
        near = list(states.between(span.end - CLOCK_NS, span.end + CLOCK_NS))[1:]
        tasks = [piece for piece in near if piece.state.kind == "task"]
        nearest = min(tasks, key=lambda piece: abs(piece.begin - span.end), default=None)
        return nearest.state if nearest else states.at(span.end)

    def _for_softirq(self, span: Span) -> Counter:
        causes: Counter = Counter()
        for begin, end, occupant in self.cpus[span.cpu].between(span.begin, span.end):
            if occupant.kind == "softirq":
                name = "net_rx" if occupant.who == NET_RX else f"softirq:{occupant.who}"
            else:
                name = occupant.kind if occupant.kind in ("idle", "unknown") else f"{occupant.kind}:{occupant.who}"
            causes[name] += end - begin
        return causes

    def _for_thread(self, span: Span, tid: int) -> Verdict:
        verdict = Verdict(Counter())
        last_call = self.threads.call_at(tid, span.end)
        gap = self._gap_of(span) if span.received and self.actors.tcp else None
        for piece in self.threads.states[tid].between(span.begin, span.end):
            for begin, end, cause in self._causes(piece.begin, piece.end, tid, span, last_call):
                behind = max(0, min(end, gap[1]) - max(begin, gap[0])) if gap else 0
                verdict.causes["tcp_gap"] += behind
                verdict.causes[cause] += end - begin - behind
        verdict.causes = +verdict.causes
        if span.received and self.actors.tcp and self._socket_is_locked(span):
            verdict.also.add("socket_locked")
        return verdict

    def _causes(self, begin: int, end: int, tid: int, span: Span, last_call) -> Iterator[tuple[int, int, str]]:
        """The causes of a piece in which a thread is in one state."""
        thread: Thread = self.threads.states[tid].at(begin)
        if thread.does == "blocked" and thread.call in WAITS_FOR_SOCKET and thread.letter == "S" and span.received:
            yield from self._instead(begin, end, tid, span)
            return
        if thread.does == "blocked":
            yield begin, end, self._blocked(thread)
            return
        if thread.does == "unknown":
            yield begin, end, "unknown"
            return
        for piece in self.cpus[thread.cpu].between(begin, end):
            yield piece.begin, piece.end, self._on_cpu(piece, thread, tid, span, last_call)

    def _blocked(self, thread: Thread) -> str:
        if thread.letter in "Tt":
            return "asleep:stopped"
        if thread.call is None:
            return "asleep:fault"
        if thread.call in WAITS_FOR_SOCKET or thread.call in SENDS:
            # Its own socket: uninterruptible means waiting for the socket lock.
            return "socket_locked" if thread.letter == "D" else "socket_full"
        return f"asleep:{BLOCKS_ON.get(thread.call, f'call {thread.call}')}"

    def _on_cpu(self, piece, thread: Thread, tid: int, span: Span, last_call) -> str:
        occupant: Occupant = piece.state
        if thread.does == "ready" and self._is_throttled(tid, piece.begin, piece.end):
            return "throttled"
        # Only its quota can keep a runnable thread off an idle CPU.
        if thread.does == "ready" and tid in self.actors.limited and occupant.kind == "idle":
            return "throttled"
        if occupant.kind in ("irq", "softirq"):
            name = f"{occupant.kind}:{occupant.who}"
        elif thread.does == "running" or occupant.pid == tid:
            in_last_call = last_call and piece.begin >= last_call[0]
            return "own" if in_last_call or self.actors.spins or not span.received else "self"
        elif occupant.kind == "task":
            name = f"runqueue:{occupant.who}"
        else:
            name = occupant.kind
        if thread.does == "ready" and thread.cpu != span.cpu and name != "unknown":
            return f"migration:{name.rpartition(':')[2]}"
        return name

    def _instead(self, begin: int, end: int, tid: int, span: Span) -> Iterator[tuple[int, int, str]]:
        """The reader waits for its socket: then another reader of the same socket had to read the packet."""
        others = [other for other in self.actors.readers if other != tid] if tid in self.actors.readers else []
        times = sorted(
            {begin, end} | {p.begin for other in others for p in self.threads.states[other].between(begin, end)}
        )
        for left, right in zip(times, times[1:], strict=False):
            states = {other: self.threads.states[other].at(left) for other in others}
            able = [other for other in others if states[other].does == "running"]
            able += [other for other in others if states[other].does == "ready"]
            if not able:
                yield left, right, "waits for the socket"
                continue
            for piece in self.cpus[states[able[0]].cpu].between(left, right):
                call = self.threads.call_at(able[0], piece.begin)
                yield piece.begin, piece.end, self._on_cpu(piece, states[able[0]], able[0], span, call)

    def _socket_is_locked(self, span: Span) -> bool:
        """Whether a reader was awake in a call on its socket when the packet arrived, and still is."""
        for tid in self.actors.readers:
            call = self.threads.call_at(tid, span.begin)
            if call and call[1] >= span.end - CLOCK_NS and call[2] in WAITS_FOR_SOCKET | SENDS:
                return self.threads.states[tid].at(span.begin).does in ("running", "ready")
        return False

    # Qdiscs.

    def _in_qdisc(self, span: Span) -> Verdict | None:
        """Whether the packet leaves a qdisc at the end of its span."""
        index = bisect_right(self.dequeues, (span.end + CLOCK_NS // 4, 1 << 64)) - 1
        while index >= 0 and self.dequeues[index][0] > span.end - CLOCK_NS:
            out, packet = self.dequeues[index]
            times = self.enqueues.get(packet, [])
            before = bisect_left(times, out)
            into = times[before - 1] if before else None
            if into is not None and abs(into - span.begin) < CLOCK_NS:
                return Verdict(Counter({"qdisc": span.end - span.begin}))
            index -= 1
        return None

    # TCP: data beyond a lost segment cannot be read.

    def _gaps(self, filter_reason: int | None) -> list[tuple[int, int]]:
        """The times from the loss of a segment to its retransmission."""
        port = self.actors.port
        drops = sorted(e.at for e in self._named("kfree_skb") if e.values[1] == filter_reason)
        again = sorted(e.at for e in self._named("tcp_retransmit_skb") if port in e.values)
        gaps, index = [], 0
        for drop in drops:
            index = max(index, bisect_right(again, drop))
            if index < len(again):
                gaps.append((drop, again[index]))
                index += 1
        return gaps

    def _gap_of(self, span: Span) -> tuple[int, int] | None:
        """The time during which a segment before this one was missing."""
        open_at_begin = [gap for gap in self.gaps if gap[0] <= span.begin < gap[1]]
        return (span.begin, max(gap[1] for gap in open_at_begin)) if open_at_begin else None

    # CPU quotas: there is no tracepoint, but the kernel refills them at each period's timer.

    def _throttled(self) -> list[tuple[int, int]]:
        """The times from when the limited tasks have used up their quota until the period's timer refills it.

        An overrun, until the scheduler checks, is deducted from the next period.
        """
        if not self.actors.limited:
            return []
        runs = sorted(
            (piece.begin, piece.end)
            for tid in self.actors.limited
            for piece in self.threads.states[tid].between(0, 1 << 62)
            if piece.state.does == "running"
        )
        refills, throttled, debt = self._refills(), [], 0
        for begin, end in zip(refills, refills[1:], strict=False):
            allowed, used_up = self.actors.quota_ns - debt - QUOTA_ERROR_NS, None
            used = 0
            for run_begin, run_end in runs[bisect_left(runs, (begin - self.actors.period_ns, 0)) :]:
                if run_begin >= end:
                    break
                had = max(0, min(run_end, end) - max(run_begin, begin))
                if used_up is None and had and used + had >= allowed:
                    used_up = max(run_begin, begin) + max(0, allowed - used)
                used += had
            if used_up is not None:
                throttled.append((used_up, end))
            debt = max(0, used + debt - self.actors.quota_ns)
        return throttled

    def _refills(self) -> list[int]:
        timers: dict[int, list[int]] = {}
        for event in sorted(self._named("hrtimer_expire_entry")):
            if self.symbols.get(event.values[1]) == "sched_cfs_period_timer":
                timers.setdefault(event.values[0], []).append(event.at)
        period = self.actors.period_ns

        def is_ours(times: list[int]) -> bool:
            gaps = sorted(later - earlier for earlier, later in zip(times, times[1:], strict=False))
            return bool(gaps) and abs(gaps[len(gaps) // 2] - period) < period // 20

        return sorted(at for times in timers.values() if is_ours(times) for at in times)

    def _is_throttled(self, tid: int, begin: int, end: int) -> bool:
        if tid not in self.actors.limited:
            return False
        middle = (begin + end) // 2
        index = bisect_right(self.throttled, (middle, 1 << 62)) - 1
        return index >= 0 and self.throttled[index][0] <= middle < self.throttled[index][1]
