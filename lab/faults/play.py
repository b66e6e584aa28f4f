"""Plays one scene: traffic, reader, fault, the raw trace and `nearpath measure stages`, concurrently.

Input: a scene. Output: nearpath's document, the trace, and the scene's threads.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from . import network
from .cgroups import Group, Unsupported
from .judge import Actors
from .scenes import Scene
from .trace import Recorder, Trace, mount

PROGRAMS = Path(__file__).parent / "programs"
CANNOT = 77  # Exit status of a program whose work is not supported on this machine.
READER_CPU, OTHER_CPU = 1, 0
PORT = 9000
RECVFROM = 45  # x86-64's
PATIENCE_S = 60
# An unusual period, so that its timer is distinguishable from others.
PERIOD_NS, QUOTA_NS = 37_000_000, 15_000_000
MEMORY_LIMIT, FILE_SIZE = 16 << 20, 128 << 20
# The shaper's burst and rate: somewhat below the offered load.
SHAPED = {
    "single": ("256kbit", "1600"),
    "bursts": ("1mbit", "1600"),
    "continuous": ("1600kbit", "1600"),
    "stream": ("30mbit", "16kb"),
    "requests": ("900kbit", "1600"),
}
# With lost segments: the retransmission waits in this queue, and the data beyond the gap waits for it.
SHAPED_LOSS = {"stream": ("8mbit", "16kb"), "requests": ("400kbit", "1600")}


class SceneFailed(RuntimeError):
    """A program of the scene, or nearpath, failed."""


@dataclass
class Played:
    """The result of a scene."""

    document: dict[str, Any]
    trace: Trace
    actors: Actors
    reader: dict[str, int]
    steal_ns: int


@contextlib.contextmanager
def priority() -> Iterator[None]:
    """Prioritises this session over others: with autogroup scheduling, nice values have no
    effect between sessions, and a busy machine would be the cause of most late packets.
    """
    file = Path("/proc/self/autogroup")
    before = re.search(r"nice (-?\d+)", file.read_text()) if file.exists() else None
    if before is None:
        yield
        return
    file.write_text("-15")
    try:
        yield
    finally:
        file.write_text(before[1])


def build(folder: Path) -> None:
    """Compiles the programs of the scenes, and mounts what their trace is read from."""
    mount()
    for name in ("reader", "traffic", "disturb"):
        compiler = os.environ.get("CC", "cc")
        source, binary = PROGRAMS / f"{name}.c", folder / name
        subprocess.run([compiler, "-O2", "-Wall", "-pthread", "-o", binary, source], check=True)


class Stage:
    """Everything that a scene starts, and that ends with it."""

    def __init__(self, scene: Scene, folder: Path, nearpath: Path, seconds: int) -> None:
        self.scene, self.folder, self.nearpath, self.seconds = scene, folder, nearpath, seconds
        self.closing = contextlib.ExitStack()
        self.limited: list[int] = []
        self.pair = network.Pair(1, READER_CPU)
        self.closing.callback(self.pair.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.close()

    def _start(self, command: list[str], **more: Any) -> subprocess.Popen:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more
        )
        self.closing.callback(_end, process)
        return process

    def play(self) -> Played:
        """Ends all of it."""
        reader = self._start_reader()
        if self.scene.tcp:
            _line(reader)
        traffic = self._start(
            self.pair.sender.command(
                str(self.folder / "traffic"),
                self.scene.traffic,
                self.pair.receiver.ip,
                str(PORT),
                str(self.seconds + PATIENCE_S),
                str(OTHER_CPU),
            )
        )
        reported = _line(reader)
        readers = reported["readers"]
        recorder = Recorder(f"npfault-{os.getpid()}", drop_reason("SOCKET_FILTER"))
        self.closing.callback(recorder.close)
        others = [traffic.pid, *([reported["helper"]] if reported["helper"] else [])]
        if self.scene.fault == "shaper":
            self.pair.shape(*SHAPED[self.scene.traffic], most_ms=40)
        if self.scene.fault == "loss":
            self.pair.shape(*SHAPED_LOSS[self.scene.traffic], most_ms=400)
        spins = self.scene.reader == "busy"
        recorder.start([*readers, *others], RECVFROM if spins else None)
        steal = _steal_ns()
        measuring = self._start_nearpath()
        disturbing = self._start_fault(reader.pid, readers)
        try:
            printed, errors = measuring.communicate(timeout=self.seconds + PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise SceneFailed(f"nearpath does not exit: --for {self.seconds}s, {PATIENCE_S} s ago") from None
        recorder.stop()
        steal = _steal_ns() - steal
        for process in (*disturbing, reader, traffic):
            if process.poll() is not None:
                self._failed(process)
        # Before reading the trace, which takes a while: until then they use a CPU.
        for process in disturbing:
            _end(process)
        counts = self._counts(reader)
        _end(traffic)
        if measuring.returncode != 0:
            raise SceneFailed(f"nearpath: {errors}")
        if self.limited:
            self.limited += readers
        actors = Actors(readers, others, PORT, self.scene.tcp, self.limited, spins, PERIOD_NS, QUOTA_NS)
        return Played(json.loads(printed), recorder.read(), actors, counts, steal)

    def _failed(self, process: subprocess.Popen) -> None:
        said = (process.stderr.read() if process.stderr else "").strip()
        if process.returncode == CANNOT:
            raise Unsupported(said.splitlines()[0] if said else "cannot")
        raise SceneFailed(f"{process.args} ended early: {said}")

    def _start_reader(self) -> subprocess.Popen:
        scene, options = self.scene, []
        if scene.traffic == "requests":
            options.append("answer")
        if scene.fault in ("compute", "lock", "loss", "pipe", "nanosleep"):
            options.append(scene.fault)
        if scene.fault == "memory":
            options.append(f"memory={self._file()}")
        command = self.pair.receiver.command(
            str(self.folder / "reader"),
            scene.reader,
            "tcp" if scene.tcp else "udp",
            self.pair.receiver.ip,
            str(PORT),
            str(READER_CPU),
            str(OTHER_CPU),
            *options,
        )
        group = None
        if scene.fault == "memory":
            group = self._group("memory")
            group.limit_memory(MEMORY_LIMIT)
        if scene.fault == "quota":
            group = self._group("cpu")
            group.limit_cpu(QUOTA_NS, PERIOD_NS)
        # Moved to its group before it has memory or threads.
        return self._start(command, preexec_fn=(lambda: group.add(os.getpid())) if group else None)

    def _group(self, controller: str) -> Group:
        self.group = Group(controller)
        self.closing.callback(self.group.close)
        return self.group

    def _file(self) -> Path:
        file = self.folder / "file"
        if not file.exists():
            file.write_bytes(os.urandom(1 << 20) * (FILE_SIZE >> 20))
            os.sync()
        return file

    def _start_nearpath(self) -> subprocess.Popen:
        # Punctual even on a busy machine, and not on the reader's CPU.
        command = [
            *("chrt", "--rr", "10", "taskset", "--cpu-list", str(OTHER_CPU)),
            str(self.nearpath),
            "measure",
            "stages",
            "--proto",
            "tcp" if self.scene.tcp else "udp",
            "--port",
            str(PORT),
            "--for",
            f"{self.seconds}s",
            "--slow",
            "1ms",
            "--outliers",
            "500",
            "--json",
        ]
        process = self._start(command)
        said = ""
        for line in process.stderr:
            said += line
            if re.search(r"measur\w+ for", line):
                return process
        raise SceneFailed(f"nearpath did not start measuring: {said}")

    def _start_fault(self, reader: int, readers: list[int]) -> list[subprocess.Popen]:
        """The program that causes the fault, unless the reader or the device does."""
        fault = self.scene.fault
        arguments = {
            "task": [],
            "fifo": [],
            "interrupts_off": [],
            "timers": [],
            "quota": [],
            "stop": [str(reader)],
            "migrate": [str(tid) for tid in readers],
        }
        if fault == "interrupts":
            arguments[fault] = [str(self._file())]
        if fault == "softirqs":
            other = network.Pair(2, READER_CPU)
            self.closing.callback(other.close)
            arguments[fault] = [other.receiver.netns, other.sender.netns, other.receiver.ip, other.sender.ip]
        if fault not in arguments:
            return []
        does = "burn" if fault == "quota" else fault
        program = self._start([str(self.folder / "disturb"), does, str(READER_CPU), str(OTHER_CPU), *arguments[fault]])
        if fault == "quota":
            self.group.add(program.pid)
            self.limited.append(program.pid)
        return [program]

    def _counts(self, reader: subprocess.Popen) -> dict[str, int]:
        reader.send_signal(signal.SIGCONT)
        printed, _ = reader.communicate(timeout=PATIENCE_S)
        return json.loads(printed.splitlines()[-1])


def play(scene: Scene, folder: Path, nearpath: Path, seconds: int) -> Played:
    """Plays a scene; raises `Unsupported` with the reason if the machine cannot."""
    with Stage(scene, folder, nearpath, seconds) as stage:
        return stage.play()


def _line(process: subprocess.Popen) -> dict[str, Any]:
    line = process.stdout.readline()
    if line:
        return json.loads(line)
    process.wait(PATIENCE_S)
    said = process.stderr.read().strip()
    if process.returncode == CANNOT:
        raise Unsupported(said)
    raise SceneFailed(f"{process.args}: {said}")


def _end(process: subprocess.Popen) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        with contextlib.suppress(OSError):
            pipe.close()


def _steal_ns() -> int:
    """Time that the hypervisor stole from the CPUs."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return int(fields[8]) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def symbols(wanted: tuple[str, ...]) -> dict[int, str]:
    """Kernel functions by address."""
    found = {}
    with Path("/proc/kallsyms").open() as lines:
        for line in lines:
            words = line.split()
            if words[2] in wanted:
                found[int(words[0], 16)] = words[2]
    return found


def drop_reason(name: str) -> int | None:
    """The kernel's number of a drop reason."""
    file = Path("/sys/kernel/tracing/events/skb/kfree_skb/format")
    match = re.search(rf'\{{ (\d+), "{name}" \}}', file.read_text()) if file.exists() else None
    return int(match[1]) if match else None


def temporary_folder() -> tempfile.TemporaryDirectory:
    """The directory for programs and files of the scenes: on a disk, since tmpfs has no page cache to reclaim."""
    return tempfile.TemporaryDirectory(prefix="npfault-", dir="/var/tmp")
