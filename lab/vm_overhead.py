"""The cost of `nearpath measure vm` for each packet, beside a script for BCC on the same hooks (`vm/peer_bcc.py`).

Output: for each, the CPU time of the whole host for a packet into a virtual machine, and what it is more than without
observer. The host is emulated, so times are those of the emulator: only their ratios are meaningful. Blocks of packets
are sent at one rate, in random order; the CPU time is all that is not idle.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, stdev

from .cache import say
from .distribution import Unavailable
from .host import Host, Job
from .machine import Machine, Nic, Topology
from .overhead import BCC, BCC_HEADER
from .payload import PROJECT, nearpath_payload
from .vms import send, start_vm, wait_until_taken, worker_of
from .waiting import start_measuring, wait_until

KERNEL = "6.12"
ROUNDS = 8
PACKETS = 2000
RATE = 400
# Of nodes of their own: vhost runs beside the interrupts of the NIC.
VHOST_CPU, VCPU_CPU = 1, 2

HEADERS = PROJECT / "crates/instruments/benches/overhead/bcc_headers.py"
PEER = PROJECT / "lab/vm/peer_bcc.py"


@contextmanager
def nothing(_: Host) -> Iterator[None]:
    """Without observer."""
    yield


@contextmanager
def nearpath(host: Host) -> Iterator[None]:
    """`nearpath measure vm`, which does not read what was counted before its end."""
    measuring = start_measuring(host, "measure", "vm")
    yield
    measuring.job.kill("INT")
    measuring.job.wait()
    seen(measuring.printed, host.check(["cat", measuring.printed]).count('"whole"') == 1)


@contextmanager
def bcc(host: Host) -> Iterator[None]:
    """The script."""
    # Open for writing, too: its standard input does not end.
    host.check("rm -f /tmp/bcc /tmp/bcc.in && mkfifo /tmp/bcc.in")
    job: Job = host.start("exec python3 /usr/local/lib/peer/peer_bcc.py <>/tmp/bcc.in >/tmp/bcc 2>&1")

    def is_ready() -> bool:
        assert job.running(), host.check(["cat", "/tmp/bcc"])
        return "ready" in host.check("cat /tmp/bcc 2>/dev/null || true")

    wait_until(is_ready, "the programs of BCC are attached")
    yield
    job.kill("INT")
    assert job.wait().status == 0, job.result
    # The last span: packets that reached the guest.
    counted = dict(line.split() for line in host.check(["cat", "/tmp/bcc"]).splitlines() if line[0].isdigit())
    seen("/tmp/bcc", int(counted.get("5", 0)) >= 0.95 * PACKETS)


def seen(printed: str, is_so: bool) -> None:
    """An observer that sees no packets costs nothing."""
    if not is_so:
        raise RuntimeError(f"it did not see the packets: {printed}")


OBSERVERS: dict[str, Callable[[Host], "contextmanager[None]"]] = {"none": nothing, "nearpath": nearpath, "BCC": bcc}


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
    costs: dict[str, list[float]] = {name: [] for name in OBSERVERS}
    with Host.restore(machine, nearpath_payload(files, release=True)) as host:
        vm = start_vm(host, "-c", str(VCPU_CPU))
        host.check(f"taskset -p -c {VHOST_CPU} {worker_of(host, vm)}")
        for number in range(ROUNDS):
            for name in random.sample(list(OBSERVERS), len(OBSERVERS)):
                with OBSERVERS[name](host):
                    costs[name].append(cost(host))
            say(f"round {number + 1} of {ROUNDS}")
        vm.end()
    print(f"{PACKETS} packets at {RATE}/s, {ROUNDS} blocks each, Linux {KERNEL}: CPU time of the host per packet")
    base = mean(costs["none"])
    for name, each in costs.items():
        beyond = "" if name == "none" else f"  {mean(each) - base:+8.1f} us than none"
        print(f"{name:10} {mean(each):8.1f} us +-{stdev(each) / ROUNDS**0.5:6.1f}{beyond}")
    ratio = (mean(costs["nearpath"]) - base) / (mean(costs["BCC"]) - base)
    print(f"nearpath costs {ratio:.2f} of BCC")


def cost(host: Host) -> float:
    """CPU time of the host per packet, in microseconds."""
    send(host, PACKETS // 20, RATE)
    wait_until_taken(host)
    before = busy(host)
    send(host, PACKETS, RATE)
    wait_until_taken(host)
    return (busy(host) - before) / PACKETS * 1e6


def busy(host: Host) -> float:
    """Seconds for which CPUs were not idle."""
    up, idle = (float(word) for word in host.check(["cat", "/proc/uptime"]).split())
    return up * host.machine.topology.cpus - idle
