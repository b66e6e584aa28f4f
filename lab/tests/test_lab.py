"""The lab's guarantees for its hosts: commands and their results, wires, and nothing left behind."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import Host, Machine, Wire
from lab.agent import CLOSED, EmulatorDied, QemuError
from lab.fixtures import lab, representative
from lab.host import PATIENCE_S
from lab.payload import PROJECT
from lab.run_folder import RunFolder
from lab.waiting import wait_until

from .hosts import IGB, TWO_NODES

MACHINE = Machine("6.12", TWO_NODES, IGB)

on_a_host = lab(kernels=(MACHINE.kernel,), topology=MACHINE.topology, nics=MACHINE.nics)


@representative
@on_a_host
def test_commands(host: Host) -> None:
    assert host.run("echo out; echo err >&2; exit 3") == (3, "out\n", "err\n")
    assert host.run(["echo", "*", "$HOME", "a  b"]) == (0, "* $HOME a  b\n", "")
    assert host.run("kill -SEGV $$").status == 128 + signal.SIGSEGV
    assert host.run(["no-such-program"]).status == 127
    assert host.run(["cat"], stdin=b"a\0b\xff").out == "a\0b\udcff"
    with pytest.raises(AssertionError, match="ended with status 1 in the guest\nwhy"):
        host.check("echo why; exit 1")

    lines = host.check("seq 500000").splitlines()
    assert lines == [str(number) for number in range(1, 500001)]

    contents = bytes(range(256)) * 4096
    host.write("/tmp/file", contents)
    assert host.read("/tmp/file") == contents
    host.write("/proc/sys/kernel/hostname", b"other\n")
    assert host.read("/proc/sys/kernel/hostname") == b"other\n"


@on_a_host
def test_jobs(host: Host) -> None:
    job = host.start("echo began; sleep 1000; echo ended")
    quick = host.start("exit 4")
    assert quick.wait().status == 4
    assert not quick.running() and quick.wait().status == 4
    assert job.running()
    with pytest.raises(TimeoutError):
        job.wait(timeout_s=0.2)
    # The shell's children get the signal, too: they would keep the output open.
    job.kill("KILL")
    assert job.wait() == (128 + signal.SIGKILL, "began\n", "")
    assert host.run("pgrep -x sleep").out == ""

    patient = host.start("trap 'echo requested; exit 5' TERM; echo ready >/tmp/ready; while :; do sleep 0.1; done")
    host.check("until [ -s /tmp/ready ]; do sleep 0.05; done")
    patient.kill()
    assert patient.wait()[:2] == (5, "requested\n")
    assert host.last_words() == ""


@on_a_host
def test_a_guest_that_exits_is_distinguished_from_a_failure(host: Host) -> None:
    with pytest.raises(EmulatorDied, match=CLOSED):
        host.run("echo 1 >/proc/sys/kernel/sysrq; echo c >/proc/sysrq-trigger")
    assert "Kernel panic" in host.last_words()


def test_two_guests_on_a_wire(lab_here: None) -> None:
    # Not in pytest's directory: the path of a Unix socket must be short.
    with RunFolder("wire") as wire:
        other = Machine(MACHINE.kernel, MACHINE.topology, MACHINE.nics, number=2)
        with Host.restore(MACHINE, wire=Wire(wire.path, 0)) as one, Host.restore(other, wire=Wire(wire.path, 1)) as two:
            for here, there in ((one, two), (two, one)):
                wait_until_reached(here, there.machine.address())
                wait_until_reached(here, there.machine.address6())
                with pytest.raises(AssertionError, match="the other end of this host's wire is another host"):
                    here.peer.run(["true"])


def wait_until_reached(host: Host, address: str) -> None:
    """Pings from a guest. The first packets may be lost while OVS learns, and neighbours are found."""
    wait_until(lambda: host.run(["ping", "-c", "1", "-W", "2", address]).status == 0, f"{address} answers")


def test_a_qemu_that_cannot_start(lab_here: None) -> None:
    before = remains()
    with pytest.raises(QemuError, match="QEMU has ended: .*-no-such-option: invalid option"):
        Host(MACHINE, ["-no-such-option"])
    with pytest.raises(QemuError, match="QEMU has ended: .*'no-such-device' is not a valid device model name"):
        Host(MACHINE, [*MACHINE.hardware("/tmp", share=False)[:2], "-device", "no-such-device"])
    assert remains() == before


# (A background program may have been started with ^C ignored, and these would inherit that.)

# Starts a host with a program in its peer's namespace, prints its directory, and waits for its end.
HOLDER = f"""
import signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from lab import Host, Machine, Nic, Topology
with Host.restore({MACHINE!r}) as host:
    ping = host.peer.start(["ping", "-q", host.machine.address()])
    print(host.qemu.pid, ping.pid, flush=True)
    time.sleep({PATIENCE_S})
"""

# Simulates a slow restore.
RESTORER = f"""
import signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from lab import Host, Machine, Nic, Topology
def takes_long(host, *_):
    print(host.qemu.pid, host.qemu.pid, flush=True)
    time.sleep({PATIENCE_S})
Host._migrate = takes_long
Host.restore({MACHINE!r})
"""


@pytest.fixture
def temp_dir() -> Iterator[Path]:
    """A directory with a short path, for sockets: pytest's own may be too long."""
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


@pytest.mark.parametrize("script", [HOLDER, RESTORER], ids=["running", "restoring"])
@pytest.mark.parametrize("name", ["SIGKILL", "SIGINT"])
def test_a_killed_lab_leaves_nothing(lab_here: None, script: str, name: str, temp_dir: Path) -> None:
    before = remains()
    # A separate session, with the signals of a foreground program.
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=PROJECT,
        env={**os.environ, "TMPDIR": str(temp_dir)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout
        pids = {int(pid) for pid in process.stdout.readline().split()}
        namespace = network_namespace(min(pids))
        assert namespace != network_namespace(os.getpid())
        wait_until(lambda: in_namespace(namespace) >= pids, "all programs are in the peer's namespace")
        assert "tap0" in interfaces(min(pids))
        if name == "SIGINT":  # ^C: the terminal sends it to all in the foreground
            os.killpg(process.pid, signal.SIGINT)
        else:
            process.kill()
        process.wait(PATIENCE_S)
    finally:
        process.kill()
        process.communicate()
    wait_until(lambda: not in_namespace(namespace), "QEMU and all in its namespace have ended")
    assert remains() == before

    left = list(temp_dir.glob("nearpath-lab-run-*"))
    assert bool(left) == (name == "SIGKILL")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(temp_dir))
        RunFolder("next").remove()
    assert list(temp_dir.iterdir()) == []


def network_namespace(pid: int) -> int:
    """The inode of the network namespace that a process is in."""
    return Path(f"/proc/{pid}/ns/net").stat().st_ino


def in_namespace(inode: int) -> set[int]:
    """The processes in a network namespace: without any, it and its taps are gone."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if network_namespace(int(process.name)) == inode:
                found.add(int(process.name))
        except OSError:  # it has ended
            continue
    return found


def interfaces(pid: int) -> set[str]:
    """The interfaces of the namespace that a process is in."""
    lines = Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]
    return {line.partition(":")[0].strip() for line in lines}


def remains() -> tuple[set[str], set[str], set[str]]:
    """Everything that hosts could leave on this machine: taps, named namespaces, our processes."""
    taps = {name for name in interfaces(os.getpid()) if name.startswith("tap")}
    named = {path.name for path in Path("/run/netns").glob("*")}
    return taps, named, set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


FAILING = """
from lab import Host, Nic, Topology
from lab.fixtures import lab, representative

@lab(kernels=("6.12",), topology=Topology((2, 2)), nics=(Nic("igb"),))
def test_that_fails_on_purpose(host: Host) -> None:
    host.check("echo something-to-be-found")
    host.check("echo its-reason >&2; exit 7")
"""


@pytest.fixture
def evidence() -> Iterator[Path]:
    """The directory with the evidence of a failed test, removed before and after."""
    folder = PROJECT / f"target/lab-failures/test_that_fails_on_purpose_{MACHINE.name}_"
    shutil.rmtree(folder, ignore_errors=True)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def test_a_failure_leaves_evidence(lab_here: None, evidence: Path, tmp_path: Path) -> None:
    test = tmp_path / "test_failing.py"
    test.write_text(FAILING)
    command = [sys.executable, "-m", "pytest", "-p", "lab.fixtures", "--rootdir", str(tmp_path), "-c", "/dev/null"]
    done = subprocess.run([*command, test], cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done
    assert "ended with status 7 in the guest\nE" in done.stdout and "its-reason" in done.stdout
    assert f"the virtual host's console, dmesg and commands are in {evidence}\n" in done.stdout

    names = {"commands", "console", "dmesg", "qemu-command", "qemu-errors"}
    assert {file.name for file in evidence.iterdir()} == names
    commands = (evidence / "commands").read_text()
    assert re.search(r"^\$ .*echo something-to-be-found\nsomething-to-be-found\n\[status 0\]$", commands, re.M)
    assert "its-reason\n[status 7]" in commands
    assert "Linux version 6.12." in (evidence / "dmesg").read_text()
    assert "-no-reboot" in (evidence / "qemu-command").read_text()
