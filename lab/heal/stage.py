"""Where a scene is played: namespaces, programs and settings, all of which end with it.

Input: the compiled programs, and whether the fault is to be there. A scene (scenes.py) sets it up by its methods.
"""

import contextlib
import signal
import subprocess
from pathlib import Path
from typing import Any, Self

from ..faults.cgroups import Group, Unsupported
from ..faults.network import Side, run
from .figures import FiguresFile
from .network import Link

PROGRAMS = ("datagrams", "reader", "server", "client", "wire", "hog")
# As in play.py of the fault scenes.
CANNOT = 77
HOST_CPU, PEER_CPU = 1, 0
PEER_FIFO = 45
PERIOD_NS = 40_000_000


class StageFailed(RuntimeError):
    """A program of the scene failed."""


class Stage:
    """Everything that a scene starts, and that ends with it."""

    def __init__(self, folder: Path, faulty: bool) -> None:
        self.folder, self.faulty = folder, faulty
        self.file = folder / "figures"
        self.file.unlink(missing_ok=True)
        self.figures = FiguresFile(self.file)
        self.processes: list[tuple[str, subprocess.Popen[str]]] = []
        self.closing = contextlib.ExitStack()
        self.link = Link()
        self.closing.callback(self.link.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.close()

    @property
    def host(self) -> Side:
        """The end that is fixed."""
        return self.link.host

    @property
    def peer(self) -> Side:
        """The other end."""
        return self.link.peer

    def start(self, side: Side | None, program: str, *words: str, **options: Any) -> subprocess.Popen[str]:
        """Starts a program at one end, and waits until it is ready."""
        return self.spawn(self.command(side, program, *words, **options))

    def spawn(self, command: list[str], group: Group | None = None, waits: bool = True) -> subprocess.Popen[str]:
        """Starts a command, in a control group if there is one."""
        if group:
            # The shell joins it, before the program has threads.
            command = ["sh", "-c", f'echo $$ >{group.path}/cgroup.procs && exec "$@"', "sh", *command]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.closing.callback(_end, process)
        self.processes.append((" ".join(command), process))
        if waits and process.stdout and not process.stdout.readline():
            process.wait(10)
            self.check()
        return process

    def command(self, side: Side | None, program: str, *words: str, **options: Any) -> list[str]:
        """The command of a program at one end."""
        command = [str(self.folder / program), *words, *(f"{name}={value}" for name, value in options.items())]
        return side.command(*command) if side else command

    def check(self) -> None:
        """Fails if a program has ended."""
        for command, process in self.processes:
            if process.poll() is not None:
                said = (process.stderr.read() if process.stderr else "").strip()
                if process.returncode == CANNOT:
                    raise Unsupported(said)
                raise StageFailed(f"{command} ended ({process.returncode}): {said}")

    def datagrams(self, **options: Any) -> None:
        """Sends datagrams from the peer to the host."""
        defaults = {"cpu": PEER_CPU, "fifo": PEER_FIFO, "to": self.host.ip}
        self.start(self.peer, "datagrams", figures=self.file, **{**defaults, **options})

    def reader(self, **options: Any) -> subprocess.Popen[str]:
        """Receives datagrams on the host."""
        return self.start(self.host, "reader", figures=self.file, **{"cpu": HOST_CPU, **options})

    def hog(self, **options: Any) -> subprocess.Popen[str]:
        """Another task on the host's CPU."""
        return self.start(None, "hog", **{"cpu": HOST_CPU, **options})

    def wire(self, **options: Any) -> None:
        """Connects the ends with a delay."""
        host, peer = self.host, self.peer
        ends = (host.netns, host.device, peer.netns, peer.device)
        self.start(None, "wire", *ends, **{"cpu": PEER_CPU, "fifo": 44, **options})
        self.link.up()

    def sysctl(self, name: str, value: str, side: Side | None = None) -> None:
        """Writes a setting of the kernel until the end: of one end, or of the whole machine."""
        file = f"/proc/sys/{name.replace('.', '/')}"
        before = subprocess.run(_in(side, "cat", file), capture_output=True, text=True, check=False)
        if before.returncode != 0:
            raise Unsupported(f"no setting {name}")
        self.write(file, value, side)
        self.closing.callback(self.write, file, before.stdout.strip(), side)

    def write(self, file: str, value: str, side: Side | None = None) -> None:
        """Writes a file, as one end sees it."""
        done = subprocess.run(
            _in(side, "sh", "-c", f"cat >{file}"), input=f"{value}\n", capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise StageFailed(f"{file}: {done.stderr.strip()}")

    def at(self, side: Side, *command: str) -> None:
        """Runs a command at one end."""
        run(*side.command(*command))

    def quota(self, share: float) -> Group:
        """A control group with a part of a CPU."""
        group = Group("cpu")
        self.closing.callback(group.close)
        group.limit_cpu(int(PERIOD_NS * share), PERIOD_NS)
        return group


def build(folder: Path, compiler: str) -> None:
    """Compiles the programs of the scenes."""
    here = Path(__file__).parent / "programs"
    sources = [*(here / f"{name}.c" for name in PROGRAMS), here.parents[1] / "faults/programs/disturb.c"]
    for source in sources:
        command = [compiler, "-O2", "-Wall", "-pthread", "-o", str(folder / source.stem), str(source)]
        subprocess.run(command, check=True)


def _in(side: Side | None, *command: str) -> list[str]:
    return side.command(*command) if side else list(command)


def _end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe:
            pipe.close()
