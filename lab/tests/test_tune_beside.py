"""nearpath's plans beside those of perftune.py and of tuned's profiles, on hosts of two nodes with two last-level
caches each: the shares of packets whose reader is on another CPU, cache or node than their interrupt, and the 99th
percentile of whole packets.

Each plan is made on a host of its own, restored from the same snapshot, with the same server and the same
conversation. bpftrace counts the same packets; where its CPUs are is read from the guest's sysfs. The table is printed
(`-s`), and is in docs/tune.md. Times are those of an emulator and are not asserted.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from lab import Host, Job, Machine
from lab.fixtures import lab
from lab.waiting import ended, start_loading, wait_until

from . import tuners
from .bpftrace import BTF, offset_of_data
from .conversations import Conversation, start_server
from .test_tune import tuned
from .test_tune_split import CACHES, CACHES_SMT, NIC, caches

PORT = 5001
FLOWS, ROUNDS = 6, 100
MESSAGES = FLOWS * ROUNDS
# Both count all messages but those under way when they begin and end.
FEW = 2 * FLOWS
READERS = Path(__file__).with_name("readers.bt").read_text()

# One thread for all connections. The port is its argument.
ONE_THREAD = """
import selectors, socket, sys

found = selectors.DefaultSelector()
listener = socket.create_server(("", int(sys.argv[1])))
found.register(listener, selectors.EVENT_READ)
while True:
    for key, _ in found.select():
        if key.fileobj is listener:
            connection = listener.accept()[0]
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            found.register(connection, selectors.EVENT_READ)
        elif message := key.fileobj.recv(65536):
            key.fileobj.sendall(message)
        else:
            found.unregister(key.fileobj)
            key.fileobj.close()
"""


class Shares(NamedTuple):
    """Shares of the packets whose reader is on another CPU, cache or node than their interrupt."""

    cpu: float
    llc: float
    node: float


class Judged(NamedTuple):
    """What bpftrace saw: these, and the share of packets whose interrupt is not on the NIC's node."""

    shares: Shares
    far: float


class Seen(NamedTuple):
    """What was measured under one plan."""

    shares: Shares
    judged: Judged
    p50_ns: int
    p99_ns: int


def nearpath(mode: str) -> Callable[[Host, int], None]:
    """nearpath's plan: the channels first, where it changes them, then the rest."""

    def make(host: Host, server: int) -> None:
        asked = ["--nic", "nic0", "--pid", str(server), "--mode", mode]
        for _ in range(2):
            if not tuned(host, "plan", *asked)["changes"]:
                break
            tuned(host, "apply", *asked)
        assert not tuned(host, "plan", *asked)["changes"], "nothing is left"

    return make


PLANS: dict[str, Callable[[Host, int], None]] = {
    "nearpath mq": nearpath("mq"),
    "nearpath sq_split": nearpath("sq_split"),
    "perftune.py mq": lambda host, server: tuners.perftune(host, server, "mq"),
    "perftune.py sq": lambda host, server: tuners.perftune(host, server, "sq"),
    "perftune.py sq_split, its default here": lambda host, server: tuners.perftune(host, server, "sq_split"),
    "tuned network-latency": tuners.network_latency,
    "tuned network-throughput": tuners.network_throughput,
    "tuned cpu-partitioning": tuners.cpu_partitioning,
}


@pytest.mark.parametrize("threads", ["one", "each"])
@lab(topology=CACHES, nics=NIC)
@lab(topology=CACHES_SMT, nics=NIC)
def test_fewer_packets_cross_than_under_other_plans(machine: Machine, payload: Path, threads: str) -> None:
    seen = {}
    for name, make in PLANS.items():
        with Host.restore(machine, payload) as host:
            seen[name] = under(host, make, threads)
        print(row(name, seen[name]), flush=True)
    for name, its in seen.items():
        off = [abs(share - judged) for share, judged in zip(its.shares, its.judged.shares, strict=True)]
        assert max(off) <= 0.05, f"{name}: nearpath and bpftrace disagree: {its}"
        if name.startswith("nearpath"):
            assert its.judged.far < 0.01 and its.judged.shares.node < 0.01, f"{name}: {its}"
    # A server of one thread fits into one cache beside a core for interrupts.
    assert threads == "each" or seen["nearpath sq_split"].judged.shares.llc < 0.01, seen


def under(host: Host, make: Callable[[Host, int], None], threads: str) -> Seen:
    """Makes a plan for a server that may run anywhere, and measures a conversation with it."""
    host.check("ovs-vsctl set Open_vSwitch . other_config:max-idle=600000")
    server = server_of_one_thread(host) if threads == "one" else start_server(host, anywhere(host), PORT)
    with Conversation(host, "tcp", host.machine.address(), PORT, FLOWS) as talk:
        talk.talk(1)
        make(host, server.pid)
        # Flows are in the switch's cache, and readers where the plan has them.
        talk.talk(5)
        judge = start_judge(host)
        measuring = start_loading(host, "measure", "stages", "--port", str(PORT))
        measuring.wait_until_begun()
        talk.talk(ROUNDS)
        document = ended(measuring)
        judged = crossing(host, pairs(judge))
    (path,) = [path for path in document["paths"] if path["kind"] == "receive"]
    assert abs(path["count"] - MESSAGES) <= FEW, path
    measured = Shares(path["other_cpu"], path["other_llc"], path["other_node"])
    return Seen(measured, judged, path["p50_ns"], path["p99_ns"])


def anywhere(host: Host) -> str:
    """All CPUs."""
    return f"0-{host.machine.topology.cpus - 1}"


def server_of_one_thread(host: Host) -> Job:
    """Starts a server with one thread, which may run anywhere."""
    server = host.start(["python3", "-c", ONE_THREAD, str(PORT)])

    def listening() -> bool:
        assert server.running(), server.result
        return f":{PORT} " in host.check("ss --no-header --tcp --listening --numeric")

    wait_until(listening, "the server of one thread listens")
    return server


def start_judge(host: Host) -> Job:
    """Starts bpftrace, and waits until the kernel says that its probes are attached."""
    host.write("/run/readers.bt", READERS.encode())
    words = ["bpftrace", "-f", "json", "/run/readers.bt", str(offset_of_data(host)), str(PORT)]
    judge = host.start(["env", BTF, *words])

    def attached() -> bool:
        assert judge.running(), judge.result
        perf: list[dict[str, int]] = json.loads(host.check(["bpftool", "--json", "perf", "show"]))
        return sum(one["pid"] == judge.pid for one in perf) == 6

    wait_until(attached, "bpftrace has attached its probes")
    return judge


def pairs(judge: Job) -> dict[tuple[int, int], int]:
    """Ends bpftrace: packets by the CPUs that they went from and to."""
    judge.kill("INT")
    status, out, err = judge.wait()
    assert status == 0, err
    maps = [json.loads(line)["data"] for line in out.splitlines() if '"map"' in line]
    (counts,) = [found["@pairs"] for found in maps if "@pairs" in found]
    found = {tuple(map(int, key.split(","))): int(count) for key, count in counts.items()}
    # A few more: packets without data that were freed unseen, and whose address others have.
    assert MESSAGES - FEW <= sum(found.values()) <= MESSAGES * 1.05, found
    return {(begin, end): count for (begin, end), count in found.items()}


def crossing(host: Host, counted: dict[tuple[int, int], int]) -> Judged:
    """The shares that cross, by the guest's sysfs."""
    lists = host.check("cat /sys/devices/system/node/node[0-9]*/cpulist").splitlines()
    nodes = [set(range(*bounds(line))) for line in lists]
    groups = [[{cpu} for node in nodes for cpu in node], [set(cache) for cache in caches(host)], nodes]
    total = sum(counted.values())

    def share(level: list[set[int]]) -> float:
        apart = [pair for pair in counted if not any(set(pair) <= group for group in level)]
        return sum(counted[pair] for pair in apart) / total

    near = nodes[int(host.check("cat /sys/class/net/nic0/device/numa_node"))]
    far = sum(count for (begin, _), count in counted.items() if begin not in near)
    return Judged(Shares(*map(share, groups)), far / total)


def bounds(cpulist: str) -> tuple[int, int]:
    """The first CPU of a list without gaps, and the one after its last."""
    first, last = cpulist.split("-")
    return int(first), int(last) + 1


def row(name: str, seen: Seen) -> str:
    """A row of the table in docs/tune.md."""
    shares = " | ".join(f"{share * 100:.1f} %" for share in (seen.judged.far, *seen.judged.shares))
    return f"| {name} | {shares} | {seen.p50_ns / 1e6:.1f} ms | {seen.p99_ns / 1e6:.1f} ms |"
