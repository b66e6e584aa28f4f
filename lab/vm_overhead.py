"""The cost of `nearpath measure vm` for each packet, beside scripts for BCC on the same hooks: one that counts in the
kernel (`vm/peer_bcc.py`), and one that prints each packet (`vm/peer_bcc_events.py`).

Output: for each, the time in its programs for a packet into a virtual machine, by the kernel's run-time statistics, and
the runs; the CPU time of its process; and that of the whole host, which includes how the kernel gets to the programs,
but varies more than they cost. The host is emulated, so times are those of the emulator: only their ratios are
meaningful. Blocks of packets are sent at one rate, in random order. Then the programs with the most runs, and the time
of a run.
"""

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
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
PEERS = [PROJECT / "lab/vm" / name for name in ("peer_bcc.py", "peer_bcc_events.py")]
NET_RX = PROJECT / "lab/vm/bcc_net_rx.py"
IN_GUEST = "/usr/local/lib/peer"


class Cost(NamedTuple):
    """Of a packet."""

    programs_us: float
    runs: float
    process_us: float
    host_us: float


class Programs(NamedTuple):
    """Time in programs, in ns, and their runs, by their names."""

    ns: Counter[str]
    runs: Counter[str]


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
def bcc(host: Host, peer: Path) -> Iterator[int | None]:
    """A script; its process."""
    # Open for writing, too: its standard input does not end.
    host.check("rm -f /tmp/bcc /tmp/bcc.in && mkfifo /tmp/bcc.in")
    job: Job = host.start(f"exec python3 {IN_GUEST}/{peer.name} <>/tmp/bcc.in >/tmp/bcc 2>/tmp/bcc.err")

    def is_ready() -> bool:
        assert job.running(), host.check(["cat", "/tmp/bcc.err"])
        return "ready" in host.check("cat /tmp/bcc 2>/dev/null || true")

    wait_until(is_ready, "the programs of BCC are attached")
    yield job.pid
    job.kill("INT")
    assert job.wait().status == 0, job.result
    # The last span: packets that reached the guest.
    lines = host.check("tail /tmp/bcc /tmp/bcc.err").splitlines()
    counted = dict(words for words in map(str.split, lines) if len(words) == 2)
    assert_seen(int(counted.get("5", 0)), lines)


def assert_seen(packets: int, printed: Sequence[str] = ()) -> None:
    """An observer that sees no packets costs nothing. (Those that share an interrupt may be lost.)"""
    if packets < 0.8 * PACKETS:
        raise RuntimeError("\n".join([f"it has seen {packets} of {PACKETS} packets", *printed]))


Observer = Callable[[Host], AbstractContextManager[int | None]]
OBSERVERS: dict[str, Observer] = {
    "none": nothing,
    "nearpath": nearpath,
    "BCC": partial(bcc, peer=PEERS[0]),
    "BCC, events": partial(bcc, peer=PEERS[1]),
}


def run() -> None:
    """Measures, and prints a line for each observer."""
    if not BCC.is_dir():
        raise Unavailable("missing packages: python3-bpfcc")
    files: dict[str, Path] = {
        str(BCC): BCC,
        str(BCC_HEADER): BCC_HEADER,
        **{f"{IN_GUEST}/{file.name}": file for file in (HEADERS, NET_RX, *PEERS)},
    }
    machine = Machine(KERNEL, Topology(), (Nic("igb"),))
    costs: dict[str, list[Cost]] = {name: [] for name in OBSERVERS}
    ran = {name: Programs(Counter(), Counter()) for name in OBSERVERS}
    with Host.restore(machine, nearpath_payload(files, release=True)) as host:
        host.check("sysctl -q kernel.bpf_stats_enabled=1")
        vm = start_vm(host, "-c", str(VCPU_CPU))
        host.check(f"taskset -p -c {VHOST_CPU} {worker_of(host, vm)}")
        for number in range(ROUNDS):
            for name in random.sample(list(OBSERVERS), len(OBSERVERS)):
                with OBSERVERS[name](host) as pid:
                    costs[name].append(cost(host, pid, ran[name]))
            say(f"round {number + 1} of {ROUNDS}")
        vm.end()
    print(f"{PACKETS} packets at {RATE}/s, {ROUNDS} blocks each, Linux {KERNEL}; per packet:")
    print(f"{'':12} {'programs':>18} {'runs':>6} {'its process':>18} {'CPU time of the host':>24}")
    for name, each in costs.items():
        columns = [spread([one[column] for one in each]) for column in (0, 2, 3)]
        per_packet = mean(one.runs for one in each)
        print(f"{name:12} {columns[0]:>18} {per_packet:>6.1f} {columns[1]:>18} {columns[2]:>24}")
    idle = mean(one.host_us for one in costs["none"])
    for name in list(OBSERVERS)[2:]:
        own, others = costs["nearpath"], costs[name]
        print(
            f"nearpath's share of {name}: programs {ratio(own, others, lambda c: c.programs_us):.2f}, with its process"
            f" {ratio(own, others, lambda c: c.programs_us + c.process_us):.2f},"
            f" of the host {ratio(own, others, lambda c: c.host_us - idle):.2f}"
        )
    for name, each_program in ran.items():
        most = [
            f"{program} {n / PACKETS / ROUNDS:.1f} of {each_program.ns[program] / n / 1e3:.1f} us"
            for program, n in each_program.runs.most_common(14)
        ]
        if most:
            print(f"runs of {name} for a packet: {', '.join(most)}")


def ratio(own: list[Cost], others: list[Cost], of: Callable[[Cost], float]) -> float:
    """Of two means."""
    return mean(map(of, own)) / mean(map(of, others))


def spread(each: list[float]) -> str:
    """Mean, and its standard error."""
    return f"{mean(each):.1f} +-{stdev(each) / len(each) ** 0.5:.1f} us"


def cost(host: Host, pid: int | None, ran: Programs) -> Cost:
    """Of each packet of a block; its programs are added to `ran`."""
    send(host, PACKETS // 20, RATE)
    wait_until_taken(host)
    busy_before, process_before, before = busy(host), process_ns(host, pid), programs(host, pid)
    send(host, PACKETS, RATE)
    wait_until_taken(host)
    now, process_now = programs(host, pid), process_ns(host, pid)
    busy_s = busy(host) - busy_before
    ran.ns.update(now.ns - before.ns)
    ran.runs.update(now.runs - before.runs)
    return Cost(
        (now.ns - before.ns).total() / PACKETS / 1e3,
        (now.runs - before.runs).total() / PACKETS,
        (process_now - process_before) / PACKETS / 1e3,
        busy_s / PACKETS * 1e6,
    )


def programs(host: Host, pid: int | None) -> Programs:
    """Those of a process, by the kernel's statistics."""
    of = Programs(Counter(), Counter())
    if pid is None:
        return of
    ids = set(host.check(f"cat /proc/{pid}/fdinfo/* 2>/dev/null | sed -n 's/^prog_id:[[:space:]]*//p'").split())
    for program in json.loads(host.check(["bpftool", "--json", "prog", "show"])):
        if str(program["id"]) in ids:
            of.ns[program["name"]] += program.get("run_time_ns", 0)
            of.runs[program["name"]] += program.get("run_cnt", 0)
    return of


def process_ns(host: Host, pid: int | None) -> int:
    """CPU time of all threads of a process, in ns."""
    if pid is None:
        return 0
    return sum(int(line.split()[0]) for line in host.check(f"cat /proc/{pid}/task/*/schedstat").splitlines())


def busy(host: Host) -> float:
    """Seconds for which CPUs were not idle."""
    up, idle = (float(word) for word in host.check(["cat", "/proc/uptime"]).split())
    return up * host.machine.topology.cpus - idle
