"""The output of `nearpath show all --json` for a guest, and of the guest's own tools.

Input: a machine and the commands below. Output: its readings, one per state:

    booted    after booting
    changed   with CPU 1 offline, and after `CHANGES` of nic0, of the OVS bridge and of hugepages

A guest is read once: it saves a snapshot in each state, which is cached with the output of its tools
(`facts`), until a reader of nearpath, the guest or a command below changes. The tests run
`nearpath show --snapshot` on this machine. (test_snapshot.py asserts that a snapshot shows what the guest
itself shows.) Counters increase while they are read, so tools that show counters run before
and after the snapshot is taken: what nearpath shows must lie in between.
"""

import json
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lab import Host, Machine, cache
from lab.distribution import Unavailable
from lab.fixtures import keep_evidence
from lab.host import PATIENCE_S, snapshot
from lab.payload import PROJECT

from .changes import CHANGES

STATES = ("booted", "changed")
OFFLINE_CPU = 1

# grep prints nothing for a file that is empty or unreadable.
FILES = "grep -sH . " + " ".join(
    (
        "/sys/devices/system/cpu/{online,present,possible,isolated,nohz_full}",
        "/sys/devices/system/cpu/cpu[0-9]*/cpu_capacity",
        "/sys/devices/system/cpu/cpu[0-9]*/topology/{core_id,physical_package_id,die_id,cluster_id}",
        "/sys/devices/system/cpu/cpu[0-9]*/cache/index*/{level,size,shared_cpu_list}",
        "/sys/devices/system/node/node*/{cpulist,hugepages/*/*_hugepages}",
        # For a virtio device these are at its PCI function.
        "/sys/class/net/*/device/{,../}{numa_node,local_cpulist}",
        "/sys/class/net/*/queues/rx-*/{rps_cpus,rps_flow_cnt}",
        "/sys/class/net/*/queues/tx-*/{xps_cpus,xps_rxqs}",
        "/proc/irq/*/{smp_affinity_list,node}",
        # Shown among the sysctls, since some were sysctls before Linux 5.13.
        "/sys/kernel/mm/transparent_hugepage/{enabled,defrag}",
        "/sys/kernel/debug/sched/{migration_cost_ns,nr_migrate,numa_balancing/scan_*}",
    )
)
# The row of an offline CPU has fewer columns: the last ones, of the caches, are missing.
LSCPU = "lscpu --all --parse=CPU,ONLINE,CORE,SOCKET,NODE,CACHE"
TOOLS = (
    LSCPU,
    "numactl --hardware",
    "ls -d /sys/class/net/*/queues/*",
    "ls -d /sys/class/net/*/device/{,../}msi_irqs/*",
    FILES,
    "uname -n -r",
    "cat /proc/cmdline",
    "stat --dereference --format=%i /proc/self/ns/net",
    "ps -A --format comm=",
    "ovs-vsctl list-ports br0",
    "ovs-vsctl --format=json --columns=name,type,ifindex list interface",
)
# Run for the NICs, and for br0 as a driver without support for them.
OF_NICS = ("ethtool", *(f"ethtool {option}" for option in ("-i", "-l", "-g", "-c", "--json -k", "-x", "-n")))
# Values that change while they are read.
COUNTERS = (
    "cat /proc/interrupts",
    "cat /proc/softirqs",
    "cat /proc/stat",
    "cat /proc/net/softnet_stat",
    "ip -json -details -statistics -statistics link",
    "tc -json -statistics qdisc",
    "grep -sH . /sys/devices/system/node/node*/numastat",
    "grep -sH . /proc/irq/*/effective_affinity_list",
)
SAVED = "/tmp/host.tar.zst"
SAVE = f"nearpath snapshot --force --output {SAVED}"
# Run on the snapshots.
SHOW = "nearpath show all --json"
TEXT = ("nearpath show nodes", "nearpath show nics", "nearpath show queues")

# The code that decides which files and replies of a host are in its snapshot.
READERS = ("crates/host/src", "crates/model/src/host")


class Answer(NamedTuple):
    """The output of a command, on both streams, and its exit status."""

    status: int
    text: str

    @property
    def unsupported(self) -> bool:
        """Whether the driver or the kernel has no such thing."""
        return self.status != 0 and "Operation not supported" in self.text


@dataclass
class Reading:
    """All output from one state of a machine."""

    machine: Machine
    state: str
    # By command; those in `COUNTERS` ran twice.
    answers: dict[str, list[Answer]]

    def tool(self, command: str, which: int = 0) -> str:
        """The output of a command, which must have succeeded."""
        status, text = self.answers[command][which]
        assert status == 0, f"{command} ended with status {status}\n{text}"
        return text

    def between(self, parse: Callable[[str], Any], command: str) -> tuple[Any, Any]:
        """A tool's counters before and after nearpath."""
        assert len(self.answers[command]) == 2, command
        return parse(self.tool(command, 0)), parse(self.tool(command, 1))

    @cached_property
    def shown(self) -> dict[str, Any]:
        """nearpath's document."""
        document: dict[str, Any] = json.loads(self.tool(SHOW))
        return document

    @cached_property
    def nics(self) -> dict[str, dict[str, Any]]:
        """nearpath's NICs, by name."""
        return {nic["name"]: nic for nic in self.shown["nics"]}

    @cached_property
    def unknown(self) -> set[tuple[str, str]]:
        """Subjects, and their facts that nearpath reports as unknown with a reason."""
        reasons = self.shown["unknown"]
        assert all(reason["reason"] for reason in reasons)
        return {(reason["subject"], fact) for reason in reasons for fact in reason["fact"].split(", ")}

    @cached_property
    def files(self) -> dict[str, str]:
        """Contents of the files that were read, one line each."""
        lines = (line.partition(":") for line in self.answers[FILES][0].text.splitlines())
        return {path: content for path, _, content in lines}

    def of_device(self, nic: str, name: str) -> str | None:
        """A file of a NIC's device, or of its PCI function."""
        places = (f"/sys/class/net/{nic}/device/{name}", f"/sys/class/net/{nic}/device/../{name}")
        return next((self.files[place] for place in places if place in self.files), None)


def cpus(cpulist: str) -> set[int]:
    """The numbers of a list: `0-3,8`."""
    ranges = (part.partition("-") for part in cpulist.split(",") if part)
    return {cpu for first, _, last in ranges for cpu in range(int(first), int(last or first) + 1)}


def bits(mask: str) -> set[int]:
    """The numbers of a mask: `00000001,000000ff`."""
    number = int(mask.replace(",", ""), 16)
    return {bit for bit in range(number.bit_length()) if number >> bit & 1}


def _ask(host: Host, commands: list[str]) -> dict[str, list[Answer]]:
    """Runs all of them with one command: each command in the guest costs time."""
    lines = "".join(f"{command}\n" for command in commands)
    loop = (
        "while read -r command; do "
        'printf "@ %s\\n" "$command"; eval "$command" 2>&1 </dev/null; printf "\\n@ = %s\\n" $?; done'
    )
    said = host.check(["bash", "-c", loop], stdin=lines.encode())
    answers: dict[str, list[Answer]] = {}
    for command, text, status in re.findall(r"^@ (.+)\n(?s:(.*?))\n@ = (\d+)$", said, re.MULTILINE):
        answers.setdefault(command, []).append(Answer(int(status), text))
    assert list(answers) == list(dict.fromkeys(commands)), said
    return answers


def asked(machine: Machine) -> list[str]:
    """The interfaces that ethtool is run for."""
    return [*(f"nic{index}" for index, _ in enumerate(machine.nics)), "br0"]


def sysctl(shown: dict[str, Any]) -> str:
    """The command that prints the sysctls that nearpath shows; some are no longer sysctls."""
    return f"sysctl --ignore {' '.join(shown['sysctls'])}"


def facts(machine: Machine, payload: Path) -> Path:
    """The artifact of a machine's facts: for each state a snapshot and the output of the guest's tools.

    Input: the machine and its nearpath. Output: a directory with `STATE.tar.zst` and `STATE.json`.
    """
    tools = [f"{tool} {nic}" for nic in asked(machine) for tool in OF_NICS]
    commands = [*COUNTERS, SAVE, *COUNTERS, *TOOLS, *tools]
    changes = [change.command for change in CHANGES]
    readers = [cache.tree_hash(PROJECT / folder) for folder in READERS]
    inputs = (snapshot(machine).name, readers, cache.file_hash(PROJECT / "Cargo.lock"), commands, changes, OFFLINE_CPU)

    def build(path: Path) -> None:
        with Host.restore(machine, payload) as host:
            try:
                for index, _ in enumerate(machine.nics):
                    pings = host.peer.run(["ping", "-q", "-c", "20", "-i", "0.01", machine.address(index)])
                    assert pings.status == 0, pings
                booted = _ask(host, commands)
                _keep(host, path, "booted", booted)
                # First, since virtio-net resets interrupts and XPS at CPU hotplug (virtnet_cpu_notif_add).
                host.check(f"echo 0 >/sys/devices/system/cpu/cpu{OFFLINE_CPU}/online")
                done = _ask(host, changes)
                shown = json.loads(_shown(payload, path / "booted.tar.zst", SHOW).text)
                changed = _ask(host, [*commands, sysctl(shown)])
                _keep(host, path, "changed", changed | done)
            except Exception:
                keep_evidence(host, f"show-{machine.name}")
                raise

    return cache.artifact(f"facts-{machine.name}", inputs, build)


def _keep(host: Host, folder: Path, state: str, answers: dict[str, list[Answer]]) -> None:
    """Stores a snapshot that the guest has just saved, and the tools' output."""
    ((status, said),) = answers[SAVE]
    assert status == 0, said
    (folder / f"{state}.tar.zst").write_bytes(host.read(SAVED))
    (folder / f"{state}.json").write_text(json.dumps(answers))


def _shown(payload: Path, file: Path, command: str) -> Answer:
    """The output of the guests' nearpath for a snapshot."""
    _, *words = command.split()
    nearpath = [str(payload.with_name("nearpath")), *words, "--snapshot", str(file)]
    done = subprocess.run(nearpath, check=False, capture_output=True, text=True, timeout=PATIENCE_S)
    return Answer(done.returncode, done.stdout if done.returncode == 0 else done.stderr)


def _reading(machine: Machine, payload: Path, folder: Path, state: str) -> Reading:
    kept: dict[str, list[list[Any]]] = json.loads((folder / f"{state}.json").read_text())
    answers = {command: [Answer(*answer) for answer in reported] for command, reported in kept.items()}
    for command in (SHOW, *TEXT):
        answers[command] = [_shown(payload, folder / f"{state}.tar.zst", command)]
    return Reading(machine, state, answers)


@pytest.fixture(scope="session")
def known_readings() -> dict[Machine, dict[str, Reading] | Exception]:
    """The readings, or the reason why there are none."""
    return {}


@pytest.fixture
def readings(
    machine: Machine, payload: Path, known_readings: dict[Machine, dict[str, Reading] | Exception]
) -> dict[str, Reading]:
    """The readings of a machine, by state: the same for all tests."""
    if machine not in known_readings:
        try:
            folder = facts(machine, payload)
            known_readings[machine] = {state: _reading(machine, payload, folder, state) for state in STATES}
        except Exception as error:
            known_readings[machine] = error
    known = known_readings[machine]
    if isinstance(known, Unavailable):
        pytest.skip(f"no virtual host with kernel {machine.kernel}: {known}")
    if isinstance(known, Exception):
        raise known
    return known


@pytest.fixture(params=STATES)
def reading(request: pytest.FixtureRequest, readings: dict[str, Reading]) -> Reading:
    """A machine in one of its states."""
    return readings[request.param]
