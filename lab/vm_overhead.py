"""The cost of `nearpath measure vm` for each packet, beside a script for BCC on the same hooks (`vm/peer_bcc.py`).

Output: for each, the time in its programs for a packet into a virtual machine, by the kernel's run-time statistics, and
the runs; and the CPU time of the whole host, which includes how the kernel gets to the programs, but varies more than
they cost. The host is emulated, so times are those of the emulator: only their ratios are meaningful. Blocks of packets
are sent at one rate, in random order.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, stdev
from typing import NamedTuple

from .cache import say
from .distribution import Unavailable
from .host import Host, Job
from .machine import Machine, Nic, Topology
from .overhead import BCC, BCC_HEADER
from .payload import PROJECT, nearpath_payload
from .vms import send, start_vm, wait_until_taken, worker_of
from .waiting import ended, start_measuring, wait_until

KERNEL = "6.12"
ROUNDS = 4
PACKETS = 2000
RATE = 400
# Of nodes of their own: vhost runs beside the interrupts of the NIC.
VHOST_CPU, VCPU_CPU = 1, 2

HEADERS = PROJECT / "crates/instruments/benches/overhead/bcc_headers.py"
PEER = PROJECT / "lab/vm/peer_bcc.py"


class Cost(NamedTuple):
    """Of a packet."""

    programs_us: float
    runs: float
    host_us: float


@contextmanager
def nothing(_: Host) -> Iterator[int | None]:
    """Without observer."""
    yield None


@contextmanager
def nearpath(host: Host) -> Iterator[int | None]:
    """`nearpath measure vm`; its process."""
    measuring = start_measuring(host, "measure", "vm")
    yield measuring.job.pid
    (queue,) = ended(measuring)["vms"][0]["queues"]
    assert_seen(queue["taken"])


@contextmanager
def bcc(host: Host) -> Iterator[int | None]:
    """The script; its process."""
    # Open for writing, too: its standard input does not end.
    host.check("rm -f /tmp/bcc /tmp/bcc.in && mkfifo /tmp/bcc.in")
    job: Job = host.start("exec python3 /usr/local/lib/peer/peer_bcc.py <>/tmp/bcc.in >/tmp/bcc 2>&1")

    def is_ready() -> bool:
        assert job.running(), host.check(["cat", "/tmp/bcc"])
        return "ready" in host.check("cat /tmp/bcc 2>/dev/null || true")

    wait_until(is_ready, "the programs of BCC are attached")
    yield job.pid
    job.kill("INT")
    assert job.wait().status == 0, job.result
    # The last span: packets that reached the guest.
    counted = dict(line.split() for line in host.check(["cat", "/tmp/bcc"]).splitlines() if line[0].isdigit())
    assert_seen(int(counted.get("5", 0)))


def assert_seen(packets: int) -> None:
    """An observer that sees no packets costs nothing."""
    if packets < 0.95 * PACKETS:
        raise RuntimeError(f"it has seen {packets} of {PACKETS} packets")


OBSERVERS = {"none": nothing, "nearpath": nearpath, "BCC": bcc}


def run() -> None:
    """Measures, and prints a line for each observer."""
    if not BCC.is_dir():
        raise Unavailable("missing packages: python3-bpfcc")
    files: dict[str, Path] = {
        str(BCC): BCC,
        str(BCC_HEADER): BCC_HEADER,
        "/usr/local/lib/peer/bcc_headers.py": HEADERS,
        "/usr/local/lib/peer/peer_bcc.py": PEER,
    }
    machine = Machine(KERNEL, Topology(), (Nic("igb"),))
    costs: dict[str, list[Cost]] = {name: [] for name in OBSERVERS}
    with Host.restore(machine, nearpath_payload(files, release=True)) as host:
        host.check("sysctl -q kernel.bpf_stats_enabled=1")
        vm = start_vm(host, "-c", str(VCPU_CPU))
        host.check(f"taskset -p -c {VHOST_CPU} {worker_of(host, vm)}")
        for number in range(ROUNDS):
            for name in random.sample(list(OBSERVERS), len(OBSERVERS)):
                with OBSERVERS[name](host) as pid:
                    costs[name].append(cost(host, pid))
            say(f"round {number + 1} of {ROUNDS}")
        vm.end()
    print(f"{PACKETS} packets at {RATE}/s, {ROUNDS} blocks each, Linux {KERNEL}; per packet:")
    print(f"{'':10} {'programs':>18} {'runs':>6} {'CPU time of the host':>24}")
    for name, each in costs.items():
        times = spread([one.programs_us for one in each])
        runs, host_times = mean(one.runs for one in each), spread([one.host_us for one in each])
        print(f"{name:10} {times:>18} {runs:>6.1f} {host_times:>24}")
    ratio = mean(one.programs_us for one in costs["nearpath"]) / mean(one.programs_us for one in costs["BCC"])
    print(f"nearpath's programs take {ratio:.2f} of the time of BCC's")


def spread(each: list[float]) -> str:
    """Mean, and its standard error."""
    return f"{mean(each):.1f} +-{stdev(each) / len(each) ** 0.5:.1f} us"


def cost(host: Host, pid: int | None) -> Cost:
    """Of each packet of a block."""
    send(host, PACKETS // 20, RATE)
    wait_until_taken(host)
    busy_before, ns_before, runs_before = busy(host), *programs(host, pid)
    send(host, PACKETS, RATE)
    wait_until_taken(host)
    ns, runs = programs(host, pid)
    return Cost(
        (ns - ns_before) / PACKETS / 1e3, (runs - runs_before) / PACKETS, (busy(host) - busy_before) / PACKETS * 1e6
    )


def programs(host: Host, pid: int | None) -> tuple[int, int]:
    """Time in the programs of a process, in ns, and their runs: the kernel's statistics are with their descriptors."""
    if pid is None:
        return 0, 0
    times, runs = {}, {}
    # A program may have several descriptors.
    for block in host.check(f"for f in /proc/{pid}/fdinfo/*; do cat $f 2>/dev/null; echo; done").split("\n\n"):
        fields = dict(line.split(":", 1) for line in block.splitlines() if ":" in line)
        if "run_time_ns" in fields:
            number = fields["prog_id"].strip()
            times[number], runs[number] = int(fields["run_time_ns"]), int(fields["run_cnt"])
    return sum(times.values()), sum(runs.values())


def busy(host: Host) -> float:
    """Seconds for which CPUs were not idle."""
    up, idle = (float(word) for word in host.check(["cat", "/proc/uptime"]).split())
    return up * host.machine.topology.cpus - idle
