"""A running virtual host: start or restore it, run commands, stop it.

    with Host.restore(Machine("6.12"), payload) as host:
        status, out, err = host.run("nearpath show cpus")
        host.peer.run(["ping", "-c", "1", host.machine.address()])

Restoring takes a fraction of a second: the memory of a booted and stopped host is
mapped copy-on-write from the cache.
"""

import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from . import cache, images
from .agent import Agent, Channel, EmulatorDied, Monitor, QemuError, Result
from .machine import Machine
from .payload import PROJECT
from .peer import WITH_US, Namespace, Wire
from .records import record_rerun
from .run_folder import RunFolder

# Emulation is slow, and slower while a compiler runs. Nothing takes this long unless it hangs.
PATIENCE_S = 120.0
# While a guest assigns addresses to its devices, CPUs in separate threads may use a memory map that
# was just removed. QEMU then fails, in one boot of ten ("iotlb_to_section: Assertion"); guests that never
# answer, or one whose CPU has no timer any more, may have the same cause. One thread takes as long if the machine's
# CPUs also run other hosts. Programs that are drivers map and unmap devices all the time: their hosts keep one thread.
BOOTS = ["-accel", "tcg,thread=single"]
RUNS = ["-accel", "tcg,thread=multi"]

# A clock is compared with this machine's for so many seconds, and may differ by this share: the answers of a
# busy guest take time as well.
CLOCK_S = 3.0
CLOCK_SHARE = 0.1
CLOCK_TRIES = 3

# A guest with a stuck CPU ends, so that its test fails immediately instead of waiting. (On a busy machine,
# emulation loses an inter-processor interrupt once in some hundred tests, and then one CPU waits for
# another forever.) Twice the threshold, in seconds, counts as stuck: longer than a busy machine pauses.
ENDS_WHEN_STUCK = "sysctl -q kernel.watchdog_thresh=20 kernel.softlockup_panic=1"

# The size of the disk was read when the guest booted: a larger one has to be found again.
FINDS_PAYLOAD = (
    "driver=/sys/bus/virtio/drivers/virtio_blk && device=$(basename $(readlink /sys/block/vdb/device))"
    " && echo $device >$driver/unbind && echo $device >$driver/bind"
)

# What a failed test prints of the console, and how long an emulator that has closed its sockets may take to end.
LAST_LINES = 80
EXITS_WITHIN_S = 1.0

# Files for the guest are on a disk, and are used in place. (The guest's cached blocks of
# the disk are those of an empty one.)
TAKES_PAYLOAD = (
    "blockdev --flushbufs /dev/vdb && mount --read-only /dev/vdb /mnt && cp --recursive --symbolic-link /mnt/* /"
)

Opened = TypeVar("Opened", bound=Channel)


class Host:
    """A virtual host. Use it in a `with` block: it is stopped at the end, and the kernel kills
    QEMU if this process dies first."""

    def __init__(self, machine: Machine, options: list[str], wire: Wire | None = None) -> None:
        """Starts QEMU, with options beyond those of every host. Prefer `boot` and `restore`."""
        self.machine = machine
        self.run_folder = RunFolder("host")
        self.folder = self.run_folder.path
        self.log = (self.folder / "commands").open("w", errors="backslashreplace")
        try:
            # An unnamed namespace: it disappears with its last process.
            command = [*WITH_US, "unshare", "--net", "--", *images.tools().qemu(), *_every_host(self.folder), *options]
            command += (wire or Namespace).netdevs(machine)
            (self.folder / "qemu-command").write_text("\n".join(command))
            with (self.folder / "qemu-errors").open("wb") as errors:
                self.qemu = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors)
            self.monitor = self._connect("monitor", Monitor)
            self.agent = self._connect("agent", Agent)
            self._peer = None if wire else Namespace(self.qemu.pid, machine)
        except BaseException:
            self.stop()
            raise

    @classmethod
    def boot(cls, machine: Machine, memory: Path, disk: Path, payload: Path) -> Self:
        """Boots a host from scratch, with its memory in files in the directory `memory`."""
        kernel = images.kernel(machine.kernel, machine.variant)
        start = ["-kernel", str(kernel / "vmlinuz"), "-initrd", str(kernel / "initrd"), "-append", machine.command_line]
        host = cls(machine, [*BOOTS, *machine.hardware(str(memory), share=True), *_disks(disk, payload), *start])
        with host.stopped_on_error():
            host.agent.wait_until_up(PATIENCE_S)
            macs = [machine.mac(index) for index in range(len(machine.nics))]
            host.check(["/lab/network", str(machine.number), *macs])
        return host

    @classmethod
    def restore(cls, machine: Machine, payload: Path | None = None, wire: Wire | None = None) -> Self:
        """Restores a host to its state after booting, in a fraction of a second once a snapshot exists.

        `payload` is a disk with files for the guest (`payload.pack`).
        """
        saved = snapshot(machine)
        with RunFolder("disks") as disks:
            # QEMU has the disks open before the directory is removed.
            disk = disks.path / "disk"
            overlay(saved / "disk", disk)
            cargo = payload or empty_payload(disks.path)
            hardware = machine.hardware(str(saved), share=False)
            runs = BOOTS if machine.iommu and not machine.has_guest else RUNS
            host = cls(machine, [*runs, *hardware, *_disks(disk, cargo), "-incoming", "defer"], wire)
            with host.stopped_on_error():
                host._migrate("migrate-incoming", saved / "state")
                host.monitor.command("cont")
                host.agent.wait_until_up(PATIENCE_S)
        with host.stopped_on_error():
            steps = [ENDS_WHEN_STUCK]
            if payload and payload.stat().st_size > images.PAYLOAD_SIZE:
                steps.append(FINDS_PAYLOAD)
            if payload:
                steps.append(TAKES_PAYLOAD)
            host.check(" && ".join(steps))
        return host

    @property
    def peer(self) -> Namespace:
        """The namespace at the other end of the wires, unless that is another host."""
        assert self._peer, "the other end of this host's wire is another host"
        return self._peer

    def waited_s(self) -> float:
        """Seconds that the emulator's threads were ready to run and had no CPU of this machine, summed over them
        (Documentation/scheduler/sched-stats.rst). The guest does not see this time: its packets are just late."""
        waited = 0
        # Threads, or all of QEMU, may end meanwhile.
        with suppress(OSError):
            for thread in Path(f"/proc/{self.qemu.pid}/task").iterdir():
                with suppress(OSError):
                    waited += int((thread / "schedstat").read_text().split()[1])
        return waited / 1e9

    def run(self, command: str | list[str], timeout_s: float = PATIENCE_S, stdin: bytes = b"") -> Result:
        """Runs a command in the guest and waits for it: a list is a program with its
        arguments, a string a shell command."""
        return self.start(command, stdin).wait(timeout_s)

    def check(self, command: str | list[str], timeout_s: float = PATIENCE_S, stdin: bytes = b"") -> str:
        """Runs a command that must succeed; returns its standard output."""
        status, out, err = self.run(command, timeout_s, stdin)
        assert status == 0, f"{command} ended with status {status} in the guest\n{out}{err}"
        return out

    def start(self, command: str | list[str], stdin: bytes = b"") -> "Job":
        """Starts a command in the guest and returns."""
        words = ["/bin/sh", "-c", command] if isinstance(command, str) else command
        # A separate session, so that a signal also reaches a shell's children.
        return Job(self, words, self.agent.start(["setsid", *words], stdin))

    def read(self, path: str) -> bytes:
        """Returns the contents of a file in the guest."""
        return self.check(["cat", path]).encode(errors="surrogateescape")

    def write(self, path: str, contents: bytes) -> None:
        """Writes a file in the guest, also in /proc or /sys."""
        self.check(["/bin/sh", "-c", 'cat >"$0"', path], stdin=contents)

    def save(self, state: Path) -> None:
        """Stops the guest's CPUs and saves the state of its devices, to be restored later."""
        self.monitor.command("stop")
        self._migrate("migrate", state)

    def keep_evidence(self, folder: Path) -> None:
        """Copies diagnostics of a failure: console, dmesg, commands, QEMU's output."""
        self._keep_logs(folder)
        try:
            (folder / "dmesg").write_text(self.run(["dmesg"], timeout_s=20).out)
        except (EmulatorDied, OSError, QemuError) as error:
            (folder / "dmesg").write_text(f"not available: {error}\n")

    def last_words(self) -> str:
        """What QEMU and the console said at the end, if QEMU has exited by itself: a panic of the guest is there."""
        if not hasattr(self, "qemu"):
            return ""
        try:
            status = self.qemu.wait(EXITS_WITHIN_S)
        except subprocess.TimeoutExpired:
            return ""
        said = [f"QEMU exited with status {status}"]
        for name in ("qemu-errors", "console"):
            lines = (self.folder / name).read_text(errors="replace").splitlines()
            said += [f"    {name}: {line}" for line in lines[-LAST_LINES:]]
        return "\n".join(said)

    def _keep_logs(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log.flush()
        for name in ("console", "commands", "qemu-command", "qemu-errors"):
            if (self.folder / name).exists():
                shutil.copy(self.folder / name, folder)

    def stop(self) -> None:
        """Kills the host immediately; it has no state to save. Can be called twice."""
        for channel in ("monitor", "agent"):
            if hasattr(self, channel):
                getattr(self, channel).close()
        if hasattr(self, "qemu"):
            self.qemu.kill()
            self.qemu.wait()
        self.log.close()
        self.run_folder.remove()

    def stopped_on_error(self) -> "_StopOnError":
        """A block that stops the host if it fails."""
        return _StopOnError(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _connect(self, name: str, kind: type[Opened]) -> Opened:
        """Opens a QEMU socket as soon as it exists."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return kind(self.folder / name, PATIENCE_S)
            except (FileNotFoundError, ConnectionError, EmulatorDied) as error:
                # Not yet created, or already gone: QEMU opens its sockets before it checks all options.
                if self.qemu.poll() is not None:
                    complaint = (self.folder / "qemu-errors").read_text(errors="replace").strip()
                    raise QemuError(f"QEMU has ended: {complaint}") from error
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def _migrate(self, command: str, state: Path) -> None:
        """Saves or loads the state of the devices; memory stays in its files."""
        wanted = [{"capability": name, "state": True} for name in ("x-ignore-shared", "events")]
        self.monitor.command("migrate-set-capabilities", capabilities=wanted)
        self.monitor.command(command, uri=f"file:{state}")
        self.monitor.migrated()


class _StopOnError:
    """See `Host.stopped_on_error`."""

    def __init__(self, host: Host) -> None:
        self.host = host

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None:
            folder = PROJECT / "target/lab-failures" / self.host.machine.name
            try:
                self.host._keep_logs(folder)
                print(f"the console of a virtual host that did not start is in {folder}")
            finally:
                self.host.stop()


class Job:
    """A command that runs in a guest."""

    def __init__(self, host: Host, command: list[str], pid: int) -> None:
        self.host, self.command, self.pid = host, command, pid
        self.result: Result | None = None

    def wait(self, timeout_s: float = PATIENCE_S) -> Result:
        """Waits for its end."""
        if self.result is None:
            self._ended(self.host.agent.wait(self.pid, timeout_s))
        assert self.result is not None
        return self.result

    def running(self) -> bool:
        """Whether it is still running."""
        if self.result is None:
            result = self.host.agent.poll(self.pid)
            if result is None:
                return True
            self._ended(result)
        return False

    def kill(self, signal: str = "TERM") -> None:
        """Sends a signal to it and its children."""
        self.host.check(["kill", "-s", signal, "--", f"-{self.pid}"])

    def _ended(self, result: Result) -> None:
        self.result = result
        words = " ".join(self.command)
        print(f"$ {words}\n{result.out}{result.err}[status {result.status}]", file=self.host.log)


def snapshot(machine: Machine) -> Path:
    """The artifact of a booted host: each node's memory, device state, disk."""
    kernel = images.kernel(machine.kernel, machine.variant)
    options = [
        *_every_host(Path()),
        *BOOTS,
        *machine.hardware("", share=True),
        *_disks(Path(), Path()),
        machine.command_line,
    ]
    # The limits of its clock are part of it: those of before were not compared.
    inputs = (kernel.name, images.tools().path.name, machine.number, options, CLOCK_S, CLOCK_SHARE)

    def build(path: Path) -> None:
        overlay(kernel / "disk.ext4", path / "disk", "raw")
        empty = empty_payload(path)
        with Host.boot(machine, path, path / "disk", empty) as host:
            _assert_reachable(host)
            _assert_clock(host)
            host.save(path / "state")
        empty.unlink()

    def build_twice(path: Path) -> None:
        try:
            build(path)
        except (AssertionError, QemuError, EmulatorDied, TimeoutError) as error:
            # Discard a boot that lost an interrupt in emulation; a second loss is rare.
            cache.say(f"booting {machine.name} again: {error}")
            record_rerun(f"booting {machine.name}", str(error))
            shutil.rmtree(path)
            path.mkdir()
            build(path)

    return cache.artifact(f"snapshot-{machine.name}", inputs, build_twice)


def _assert_clock(host: Host) -> None:
    """Checks the speed of the host's clock. The kernel determines that of its TSC at boot, and is wrong by up to a
    factor where the machine below stands still meanwhile; all that restores this state would inherit it."""

    def clocks() -> tuple[float, float]:
        asked = time.monotonic()
        there = float(host.check("date +%s.%N"))
        return there, (asked + time.monotonic()) / 2

    def speed() -> float:
        there, here = clocks()
        time.sleep(CLOCK_S)
        later_there, later_here = clocks()
        return (later_there - there) / (later_here - here)

    # An answer may be late; a wrong clock is wrong each time.
    speeds = []
    while not speeds or abs(speeds[-1] - 1) > CLOCK_SHARE:
        assert len(speeds) < CLOCK_TRIES, f"its clock has {speeds} times the speed of this machine's"
        speeds.append(round(speed(), 2))


def _assert_reachable(host: Host) -> None:
    """Checks that packets reach the host and return, by each NIC."""
    for index, _ in enumerate(host.machine.nics):
        pings = host.peer.run(["ping", "-q", "-c", "5", "-i", "0.2", "-W", "5", host.machine.address(index)])
        assert pings.status == 0, pings


def overlay(base: Path, disk: Path, form: str = "qcow2") -> None:
    """Creates a copy-on-write overlay of a disk."""
    tool = images.tools().command("qemu-img", "create", "-q", "-f", "qcow2", "-b", str(base), "-F", form, str(disk))
    subprocess.run(tool, check=True)


def empty_payload(folder: Path) -> Path:
    """An empty disk with the size of most payloads."""
    disk = folder / "payload"
    tool = images.tools().command("qemu-img", "create", "-q", "-f", "raw", str(disk), str(images.PAYLOAD_SIZE))
    subprocess.run(tool, check=True)
    return disk


def _every_host(folder: Path) -> list[str]:
    """QEMU's options for every host: console, monitor, agent, and the shell's port."""
    return [
        *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
        *("-serial", f"file:{folder}/console"),
        *("-qmp", f"unix:{folder}/monitor,server=on,wait=off"),
        *("-device", "virtio-serial-pci,bus=pcie.0,addr=7"),
        *("-chardev", f"socket,id=agent,path={folder}/agent,server=on,wait=off"),
        *("-device", "virtserialport,chardev=agent,name=org.qemu.guest_agent.0"),
        *("-chardev", f"socket,id=shell,path={folder}/shell,server=on,wait=off"),
        *("-device", "virtconsole,chardev=shell"),
    ]


def _disks(disk: Path, payload: Path) -> list[str]:
    options = ["-drive", f"file={disk},format=qcow2,if=none,id=disk,cache=unsafe"]
    options += ["-device", "virtio-blk-pci,drive=disk,bus=pcie.0,addr=5"]
    options += ["-drive", f"file={payload},format=raw,if=none,id=payload,readonly=on"]
    return [*options, "-device", "virtio-blk-pci,drive=payload,bus=pcie.0,addr=6"]
