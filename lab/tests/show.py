"""What `nearpath show all --json` says in a guest, beside what the guest's own tools say.

In go a machine and the commands below; out come its readings, one for each state:

    booted    as it is after booting
    changed   with CPU 1 taken away, and after `CHANGES` of nic0, of the OVS bridge and of hugepages

One guest and a few long commands for each machine serve all tests of `show`, each of which
compares one aspect. Counters run on while they are read, so the tools that show some are
asked before and after nearpath: what it shows must lie in between.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lab import Host, Machine
from lab.distribution import Unavailable
from lab.fixtures import keep_evidence

from .changes import CHANGES

STATES = ("booted", "changed")
OFFLINE_CPU = 1

# Of a file that is empty or cannot be read, grep says nothing.
FILES = "grep -sH . " + " ".join(
    (
        "/sys/devices/system/cpu/{online,present,possible,isolated,nohz_full}",
        "/sys/devices/system/cpu/cpu[0-9]*/cpu_capacity",
        "/sys/devices/system/cpu/cpu[0-9]*/topology/{core_id,physical_package_id,die_id,cluster_id}",
        "/sys/devices/system/cpu/cpu[0-9]*/cache/index*/{level,size,shared_cpu_list}",
        "/sys/devices/system/node/node*/{cpulist,hugepages/*/*_hugepages}",
        # A virtio device has these at the PCI function that it is on.
        "/sys/class/net/*/device/{,../}{numa_node,local_cpulist}",
        "/sys/class/net/*/queues/rx-*/{rps_cpus,rps_flow_cnt}",
        "/sys/class/net/*/queues/tx-*/{xps_cpus,xps_rxqs}",
        "/proc/irq/*/{smp_affinity_list,node}",
        # Shown among the sysctls, as which some were before Linux 5.13.
        "/sys/kernel/mm/transparent_hugepage/{enabled,defrag}",
        "/sys/kernel/debug/sched/{migration_cost_ns,nr_migrate,numa_balancing/scan_*}",
    )
)
# The row of an offline CPU has fewer columns: those of the caches, the last, are not there.
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
# Asked of the NICs, and of br0 for a driver that knows nothing of it.
OF_NICS = ("ethtool", *(f"ethtool {option}" for option in ("-i", "-l", "-g", "-c", "--json -k", "-x", "-n")))
# What changes while it is read.
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
SHOW = "nearpath show all --json"
# Asked of the changed host.
TEXT = ("nearpath show nodes", "nearpath show nics", "nearpath show queues")


class Answer(NamedTuple):
    """What a command said, on both of its outputs, and how it ended."""

    status: int
    text: str

    @property
    def unsupported(self) -> bool:
        """Whether the driver or the kernel has no such thing."""
        return self.status != 0 and "Operation not supported" in self.text


@dataclass
class Reading:
    """All that was asked in one state of a machine."""

    machine: Machine
    state: str
    # By command; those of `COUNTERS` have been asked twice.
    answers: dict[str, list[Answer]]

    def tool(self, command: str, which: int = 0) -> str:
        """What a command said, which must have succeeded."""
        status, text = self.answers[command][which]
        assert status == 0, f"{command} ended with status {status}\n{text}"
        return text

    def between(self, parse: Callable[[str], Any], command: str) -> tuple[Any, Any]:
        """What a tool said of counters before and after nearpath."""
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
        """Subjects, and the facts of them that nearpath gives a reason for not knowing."""
        reasons = self.shown["unknown"]
        assert all(reason["reason"] for reason in reasons)
        return {(reason["subject"], fact) for reason in reasons for fact in reason["fact"].split(", ")}

    @cached_property
    def files(self) -> dict[str, str]:
        """Contents of the files that were read, each a line."""
        lines = (line.partition(":") for line in self.answers[FILES][0].text.splitlines())
        return {path: content for path, _, content in lines}

    def of_device(self, nic: str, name: str) -> str | None:
        """A file of a NIC's device, or of the PCI function that it is on."""
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
    """Asks all of it with one command: each that is given to the guest costs time of its own."""
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


def _read(host: Host, state: str, *more: str) -> Reading:
    tools = [f"{tool} {nic}" for nic in asked(host.machine) for tool in OF_NICS]
    return Reading(host.machine, state, _ask(host, [*COUNTERS, SHOW, *COUNTERS, *TOOLS, *tools, *more]))


def asked(machine: Machine) -> list[str]:
    """The interfaces that ethtool is asked about."""
    return [*(f"nic{index}" for index, _ in enumerate(machine.nics)), "br0"]


def sysctl(reading: Reading) -> str:
    """The command that tells the sysctls that nearpath shows; some are no sysctls any more."""
    return f"sysctl --ignore {' '.join(reading.shown['sysctls'])}"


def _read_in_each_state(machine: Machine, payload: Path) -> dict[str, Reading]:
    with Host.restore(machine, payload) as host:
        try:
            assert host.peer is not None
            for index, _ in enumerate(machine.nics):
                pings = host.peer.run(["ping", "-q", "-c", "20", "-i", "0.01", machine.address(index)])
                assert pings.status == 0, pings
            booted = _read(host, "booted")
            # First, as virtio-net sets interrupts and XPS anew when a CPU comes or goes (virtnet_cpu_notif_add).
            host.check(f"echo 0 >/sys/devices/system/cpu/cpu{OFFLINE_CPU}/online")
            done = _ask(host, [change.command for change in CHANGES])
            changed = _read(host, "changed", *TEXT, sysctl(booted))
            changed.answers |= done
            return {reading.state: reading for reading in (booted, changed)}
        except Exception:
            keep_evidence(host, f"show-{machine.name}")
            raise


@pytest.fixture(scope="session")
def known_readings() -> dict[Machine, dict[str, Reading] | Exception]:
    """What has been read, or why it could not be."""
    return {}


@pytest.fixture
def readings(
    machine: Machine, payload: Path, known_readings: dict[Machine, dict[str, Reading] | Exception]
) -> dict[str, Reading]:
    """The readings of a machine, by state: the same for all tests."""
    if machine not in known_readings:
        try:
            known_readings[machine] = _read_in_each_state(machine, payload)
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
