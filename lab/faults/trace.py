"""The kernel's raw trace of a scene: a separate tracefs instance, read after the scene.

Output: the events of each CPU in time order, in nanoseconds of CLOCK_MONOTONIC, and the times
with lost events. Nothing is read while the scene runs, so that reading does not disturb it.
"""

import os
import re
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

TRACEFS = Path("/sys/kernel/tracing")
BUFFER_KB = 32 * 1024

# The recorded fields of each event. Events that a kernel lacks are omitted.
EVENTS = {
    "sched/sched_switch": ("prev_comm", "prev_pid", "prev_state", "next_comm", "next_pid"),
    "sched/sched_waking": ("pid", "target_cpu"),
    "sched/sched_wakeup": ("pid", "target_cpu"),
    "sched/sched_migrate_task": ("pid", "orig_cpu", "dest_cpu"),
    "irq/irq_handler_entry": ("irq",),
    "irq/irq_handler_exit": ("irq",),
    "irq/softirq_entry": ("vec",),
    "irq/softirq_exit": ("vec",),
    "timer/hrtimer_expire_entry": ("hrtimer", "function"),
    "net/netif_receive_skb": ("skbaddr", "len"),
    "qdisc/qdisc_enqueue": ("skbaddr", "ifindex"),
    "qdisc/qdisc_dequeue": ("skbaddr", "ifindex", "packets"),
    "tcp/tcp_retransmit_skb": ("sport", "dport"),
    "skb/kfree_skb": ("skbaddr", "reason"),
}
# CPU-local interrupts, by the names of their tracepoints.
VECTORS = ("local_timer", "reschedule", "call_function", "call_function_single", "irq_work")
for _vector in VECTORS:
    EVENTS[f"irq_vectors/{_vector}_entry"] = ("vector",)
    EVENTS[f"irq_vectors/{_vector}_exit"] = ("vector",)
# System calls, only of the scene's tasks.
CALLS = {"raw_syscalls/sys_enter": ("id", "args"), "raw_syscalls/sys_exit": ("id", "ret")}


class Event(NamedTuple):
    """One event."""

    at: int
    name: str
    # The current task.
    pid: int
    values: tuple


class TracingFailed(RuntimeError):
    """The kernel does not support the trace."""


def mount() -> None:
    """Mounts tracefs where nothing has used it since boot, as the kernel does through debugfs."""
    if (TRACEFS / "instances").is_dir():
        return
    made = subprocess.run(
        ["mount", "-t", "tracefs", "tracefs", str(TRACEFS)], capture_output=True, text=True, check=False
    )
    if made.returncode:
        raise TracingFailed(f"cannot mount tracefs: {made.stderr.strip()}")


@dataclass
class Trace:
    """What was traced, by CPU."""

    events: dict[int, list[Event]] = field(default_factory=dict)
    # Times with possibly lost events, by CPU: from, to.
    holes: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    dropped: int = 0

    def is_whole(self, begin: int, end: int) -> bool:
        """Whether no event of any CPU was lost between two times."""
        for cpu, events in self.events.items():
            if not events or begin < events[0].at:
                return False
            if any(begin < hole_end and end > hole_begin for hole_begin, hole_end in self.holes.get(cpu, [])):
                return False
        return True


class Recorder:
    """Records from `start` to `stop`."""

    def __init__(self, name: str, drop_reason: int | None = None) -> None:
        """Records only packets dropped for this reason."""
        _remove_abandoned()
        self.root = TRACEFS / "instances" / name
        self.root.mkdir()
        self.drop_reason = drop_reason
        self.decoders: dict[int, _Decoder] = {}
        self._write("tracing_on", "0")
        self._write("trace_clock", "mono")
        self._write("buffer_size_kb", str(BUFFER_KB))
        for event, fields in {**EVENTS, **CALLS}.items():
            folder = self.root / "events" / event
            if folder.is_dir():
                decoder = _Decoder(event.split("/")[1], (folder / "format").read_text(), fields)
                self.decoders[decoder.id] = decoder
        if "sched_switch" not in {decoder.name for decoder in self.decoders.values()}:
            raise TracingFailed("this kernel has no tracepoint sched_switch")

    def _write(self, name: str, text: str) -> None:
        (self.root / name).write_text(text)

    def start(self, tids: list[int], but: int | None = None) -> None:
        """Records everything, and the system calls of these threads except one that is too frequent."""
        for event in CALLS:
            of_these = " || ".join(f"common_pid == {tid}" for tid in tids)
            self._write(f"events/{event}/filter", of_these if but is None else f"({of_these}) && id != {but}")
        if drops := self._drops():
            drops.write_text(f"reason == {-1 if self.drop_reason is None else self.drop_reason}")
        for event in [*EVENTS, *CALLS]:
            enable = self.root / "events" / event / "enable"
            if enable.exists():
                enable.write_text("1")
        self._write("tracing_on", "1")

    def _drops(self) -> Path | None:
        """The filter for dropped packets, on kernels with drop reasons (5.17)."""
        event = self.root / "events/skb/kfree_skb"
        return event / "filter" if "reason" in (event / "format").read_text() else None

    def stop(self) -> None:
        """Ends recording."""
        self._write("tracing_on", "0")
        for event in [*EVENTS, *CALLS]:
            enable = self.root / "events" / event / "enable"
            if enable.exists():
                enable.write_text("0")

    def read(self) -> Trace:
        """Returns the recorded events."""
        trace = Trace()
        for folder in sorted(self.root.glob("per_cpu/cpu*")):
            cpu = int(folder.name.removeprefix("cpu"))
            trace.events[cpu], trace.holes[cpu] = self._read(folder / "trace_pipe_raw")
            stats = (folder / "stats").read_text()
            for name in ("overrun", "commit overrun", "dropped events"):
                trace.dropped += int(re.search(rf"^{name}: (\d+)", stats, re.MULTILINE)[1])
        return trace

    def close(self) -> None:
        """Removes the tracefs instance."""
        self.root.rmdir()

    def _read(self, pipe: Path) -> tuple[list[Event], list[tuple[int, int]]]:
        events: list[Event] = []
        holes = []
        fd = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        try:
            while True:
                try:
                    page = os.read(fd, 65536)
                except BlockingIOError:
                    break
                if not page:
                    break
                start, missed = _page_start(page)
                if missed and events:
                    holes.append((events[-1].at, start))
                events += self._decode(page)
        finally:
            os.close(fd)
        return events, holes

    def _decode(self, page: bytes) -> Iterator[Event]:
        for at, offset in decode_page(page):
            decoder = self.decoders.get(page[offset] | page[offset + 1] << 8)
            if decoder:
                yield decoder.decode(page, offset, at)


def _remove_abandoned() -> None:
    """Removes the tracefs instances of processes that were killed."""
    for ring in (TRACEFS / "instances").glob("npfault-*"):
        if not Path(f"/proc/{ring.name.rpartition('-')[2]}").exists():
            ring.rmdir()


def _page_start(page: bytes) -> tuple[int, bool]:
    """The time of a page's first event, and whether events before it were lost (RB_MISSED_EVENTS)."""
    start, commit = struct.unpack_from("=QQ", page)
    return start, bool(commit & 1 << 31)


def decode_page(page: bytes) -> Iterator[tuple[int, int]]:
    """Times and offsets of the events of a page (kernel/trace/ring_buffer.c, `events/header_event`)."""
    at, commit = struct.unpack_from("=QQ", page)
    offset, end = 16, 16 + (commit & (1 << 30) - 1)
    while offset < end:
        (header,) = struct.unpack_from("=I", page, offset)
        kind, delta = header & 31, header >> 5
        offset += 4
        if kind == 29:  # padding: to the end of the page, or with this length
            if delta == 0:
                return
            at += delta
            offset += struct.unpack_from("=I", page, offset)[0]
        elif kind == 30:  # further bits of the time
            at += delta + (struct.unpack_from("=I", page, offset)[0] << 27)
            offset += 4
        elif kind == 31:  # the absolute time, without its highest bits
            low = delta + (struct.unpack_from("=I", page, offset)[0] << 27)
            at = at >> 59 << 59 | low
            offset += 4
        else:
            at += delta
            if kind == 0:
                length = struct.unpack_from("=I", page, offset)[0] - 4
                yield at, offset + 4
                offset += 4 + (length + 3 & ~3)
            else:
                yield at, offset
                offset += 4 * kind


FIELD = re.compile(
    r"field:(?P<declaration>[^;]+);\s*offset:(?P<offset>\d+);\s*size:(?P<size>\d+);\s*signed:(?P<signed>\d);"
)
CODES = {1: "b", 2: "h", 4: "i", 8: "q"}


class _Decoder:
    """One kind of event, as described by its `format` file."""

    def __init__(self, name: str, description: str, fields: tuple[str, ...]) -> None:
        self.name = name
        self.id = int(re.search(r"^ID: (\d+)", description, re.MULTILINE)[1])
        found = {}
        for match in FIELD.finditer(description):
            words = re.sub(r"\[.*", "", match["declaration"]).split()
            is_text = "char" in words and "[" in match["declaration"]
            found[words[-1].lstrip("*")] = (int(match["offset"]), int(match["size"]), match["signed"] == "1", is_text)
        self.texts, self.formats = [], []
        for wanted in ("common_pid", *fields):
            if wanted not in found:
                self.formats.append(None)
                self.texts.append(False)
                continue
            offset, size, signed, is_text = found[wanted]
            if is_text:
                code = f"{size}s"
            elif size in CODES:
                code = CODES[size] if signed else CODES[size].upper()
            else:
                code = f"{size // 8}Q"
            self.formats.append((struct.Struct("=" + code), offset))
            self.texts.append(is_text)

    def decode(self, page: bytes, offset: int, at: int) -> Event:
        """The event at this offset of a page."""
        values: list = []
        for form, is_text in zip(self.formats, self.texts, strict=True):
            if form is None:
                values.append(None)
                continue
            read = form[0].unpack_from(page, offset + form[1])
            if is_text:
                values.append(read[0].split(b"\0", 1)[0].decode(errors="replace"))
            else:
                values.append(read[0] if len(read) == 1 else read)
        return Event(at, self.name, values[0], tuple(values[1:]))
