"""A running virtual host: started or restored, talked to, stopped.

    with Host.restore(Machine("6.12"), payload) as host:
        status, out, err = host.run("nearpath show cpus")
        host.peer.run(["ping", "-c", "1", host.machine.address()])

Restoring takes a fraction of a second: the memory of a host that was booted and stopped is
mapped from the cache, each restored one writing to its own copy.
"""

import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from . import cache, images
from .agent import Agent, Channel, Monitor, QemuError, Result
from .machine import Machine
from .payload import PROJECT
from .peer import WITH_US, Namespace, Wire
from .run_folder import RunFolder

# Emulation is slow, and slower beside a compiler. Nothing waits this long unless it hangs.
PATIENCE_S = 120.0
# While a guest gives its devices their addresses, CPUs in threads of their own may meet a map of memory that
# has just gone. QEMU fails then, one boot in ten ("iotlb_to_section: Assertion"); that some guests never
# answer may have the same cause. In one thread it takes as long where the machine's CPUs have other hosts.
BOOTS = ["-accel", "tcg,thread=single"]
RUNS = ["-accel", "tcg,thread=multi"]

# A guest whose CPU is stuck ends, so that its test fails at once instead of waiting. (Emulation loses
# an interrupt between CPUs once in some hundred tests when the machine is busy, and then one CPU waits for
# another for ever.) Twice the threshold, in seconds, counts as stuck: longer than a busy machine pauses.
ENDS_WHEN_STUCK = "sysctl -q kernel.watchdog_thresh=20 kernel.softlockup_panic=1"

# What goes into the guest comes as a disk; its files are used where they are. (What the guest knew of the
# disk was of an empty one.)
TAKES_PAYLOAD = (
    "blockdev --flushbufs /dev/vdb && mount --read-only /dev/vdb /mnt && cp --recursive --symbolic-link /mnt/* /"
)

Opened = TypeVar("Opened", bound=Channel)


class Host:
    """A virtual host. Use it in a `with` block: it is stopped at the end of it, and QEMU is
    killed by the kernel should this process die before."""

    def __init__(self, machine: Machine, options: list[str], wire: Wire | None = None) -> None:
        """Starts QEMU, with options beyond those of every host. Prefer `boot` and `restore`."""
        self.machine = machine
        self.run_folder = RunFolder("host")
        self.folder = self.run_folder.path
        self.log = (self.folder / "commands").open("w", errors="backslashreplace")
        try:
            # A namespace without a name: it is gone with the last process in it.
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
        """Boots a host from nothing: its memory is in files of the folder `memory`."""
        kernel = images.kernel(machine.kernel)
        start = ["-kernel", str(kernel / "vmlinuz"), "-initrd", str(kernel / "initrd"), "-append", machine.command_line]
        host = cls(machine, [*BOOTS, *machine.hardware(str(memory), share=True), *_disks(disk, payload), *start])
        with host.stopped_on_error():
            host.agent.wait_until_up(PATIENCE_S)
            macs = [machine.mac(index) for index in range(len(machine.nics))]
            host.check(["/lab/network", str(machine.number), *macs])
        return host

    @classmethod
    def restore(cls, machine: Machine, payload: Path | None = None, wire: Wire | None = None) -> Self:
        """A host as it was after booting, in a fraction of a second once it has been booted.

        `payload` is a disk with files for the guest (`payload.pack`).
        """
        saved = snapshot(machine)
        with RunFolder("disks") as disks:
            # The disks are open before the folder is removed.
            disk = disks.path / "disk"
            overlay(saved / "disk", disk)
            cargo = payload or empty_payload(disks.path)
            hardware = machine.hardware(str(saved), share=False)
            host = cls(machine, [*RUNS, *hardware, *_disks(disk, cargo), "-incoming", "defer"], wire)
            with host.stopped_on_error():
                host._migrate("migrate-incoming", saved / "state")
                host.monitor.command("cont")
                host.agent.wait_until_up(PATIENCE_S)
        with host.stopped_on_error():
            host.check(f"{ENDS_WHEN_STUCK} && {TAKES_PAYLOAD}" if payload else ENDS_WHEN_STUCK)
        return host

    @property
    def peer(self) -> Namespace:
        """The namespace at the other end of the wires, if no other host is there."""
        assert self._peer, "the other end of this host's wire is another host"
        return self._peer

    def run(self, command: str | list[str], timeout_s: float = PATIENCE_S, stdin: bytes = b"") -> Result:
        """Runs a command in the guest and waits for it: a list is a program with its
        arguments, a string a line for the shell."""
        return self.start(command, stdin).wait(timeout_s)

    def check(self, command: str | list[str], timeout_s: float = PATIENCE_S, stdin: bytes = b"") -> str:
        """Runs a command that must succeed; returns its standard output."""
        status, out, err = self.run(command, timeout_s, stdin)
        assert status == 0, f"{command} ended with status {status} in the guest\n{out}{err}"
        return out

    def start(self, command: str | list[str], stdin: bytes = b"") -> "Job":
        """Starts a command in the guest and goes on."""
        words = ["/bin/sh", "-c", command] if isinstance(command, str) else command
        # A session of its own, so that a signal reaches what a shell has started, too.
        return Job(self, words, self.agent.start(["setsid", *words], stdin))

    def read(self, path: str) -> bytes:
        """The contents of a file of the guest."""
        return self.check(["cat", path]).encode(errors="surrogateescape")

    def write(self, path: str, contents: bytes) -> None:
        """Writes a file of the guest, also one of /proc or /sys."""
        self.check(["/bin/sh", "-c", 'cat >"$0"', path], stdin=contents)

    def save(self, state: Path) -> None:
        """Stops the guest's CPUs and saves the state of its devices, to be restored later."""
        self.monitor.command("stop")
        self._migrate("migrate", state)

    def keep_evidence(self, folder: Path) -> None:
        """Copies what tells why something failed: console, dmesg, commands, what QEMU said."""
        self._keep_logs(folder)
        try:
            (folder / "dmesg").write_text(self.run(["dmesg"], timeout_s=20).out)
        except (OSError, QemuError) as error:
            (folder / "dmesg").write_text(f"not to be had: {error}\n")

    def _keep_logs(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log.flush()
        for name in ("console", "commands", "qemu-command", "qemu-errors"):
            if (self.folder / name).exists():
                shutil.copy(self.folder / name, folder)

    def stop(self) -> None:
        """Ends the host at once: it has nothing worth keeping. Can be called twice."""
        for channel in ("monitor", "agent"):
            if hasattr(self, channel):
                getattr(self, channel).close()
        if hasattr(self, "qemu"):
            self.qemu.kill()
            self.qemu.wait()
        self.log.close()
        self.run_folder.remove()

    def stopped_on_error(self) -> "_StopOnError":
        """A block after which the host is stopped if it fails."""
        return _StopOnError(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _connect(self, name: str, kind: type[Opened]) -> Opened:
        """Opens a socket of QEMU's as soon as it is there."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return kind(self.folder / name, PATIENCE_S)
            except (FileNotFoundError, ConnectionError) as error:
                # Not there yet, or there no more: QEMU opens its sockets before it looks at all options.
                if self.qemu.poll() is not None:
                    complaint = (self.folder / "qemu-errors").read_text(errors="replace").strip()
                    raise QemuError(f"QEMU has ended: {complaint}") from error
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def _migrate(self, command: str, state: Path) -> None:
        """Saves or loads the state of the devices; the memory stays where it is."""
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
        """Whether it still runs."""
        if self.result is None:
            result = self.host.agent.poll(self.pid)
            if result is None:
                return True
            self._ended(result)
        return False

    def kill(self, signal: str = "TERM") -> None:
        """Sends a signal to it and to all that it has started."""
        self.host.check(["kill", "-s", signal, "--", f"-{self.pid}"])

    def _ended(self, result: Result) -> None:
        self.result = result
        words = " ".join(self.command)
        print(f"$ {words}\n{result.out}{result.err}[status {result.status}]", file=self.host.log)


def snapshot(machine: Machine) -> Path:
    """The artifact of a booted host: memory of each node, state of the devices, disk."""
    kernel = images.kernel(machine.kernel)
    options = [
        *_every_host(Path()),
        *BOOTS,
        *machine.hardware("", share=True),
        *_disks(Path(), Path()),
        machine.command_line,
    ]
    inputs = (kernel.name, images.tools().path.name, machine.number, options)

    def build(path: Path) -> None:
        overlay(kernel / "disk.ext4", path / "disk", "raw")
        empty = empty_payload(path)
        with Host.boot(machine, path, path / "disk", empty) as host:
            _assert_reachable(host)
            host.save(path / "state")
        empty.unlink()

    def build_twice(path: Path) -> None:
        try:
            build(path)
        except (AssertionError, QemuError, ConnectionError, TimeoutError):
            # Emulation that lost an interrupt while it booted is not to be kept, and seldom loses another.
            shutil.rmtree(path)
            path.mkdir()
            build(path)

    return cache.artifact(f"snapshot-{machine.name}", inputs, build_twice)


def _assert_reachable(host: Host) -> None:
    """Packets reach the host, and come back, by each NIC."""
    for index, _ in enumerate(host.machine.nics):
        pings = host.peer.run(["ping", "-q", "-c", "5", "-i", "0.2", "-W", "5", host.machine.address(index)])
        assert pings.status == 0, pings


def overlay(base: Path, disk: Path, form: str = "qcow2") -> None:
    """Makes a disk that is like another one, and keeps what is written to it for itself."""
    tool = images.tools().command("qemu-img", "create", "-q", "-f", "qcow2", "-b", str(base), "-F", form, str(disk))
    subprocess.run(tool, check=True)


def empty_payload(folder: Path) -> Path:
    """A disk without anything on it, of the size that every payload has."""
    disk = folder / "payload"
    tool = images.tools().command("qemu-img", "create", "-q", "-f", "raw", str(disk), images.PAYLOAD_SIZE)
    subprocess.run(tool, check=True)
    return disk


def _every_host(folder: Path) -> list[str]:
    """QEMU's options of every host: the console, the monitor, the agent, a shell's line."""
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
