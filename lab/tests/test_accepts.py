"""Datagrams on eight CPUs of two nodes: the distance from the CPU that receives them to the worker of a
REUSEPORT group that reads them, before and after the group is steered. Also the report of accepts that cannot
be observed. (test_steer.py tests accept(2), and test_accepts_servers.py servers that know
the receiving CPU.)

Server and client are in the guest: packets of a pinned client to its own machine are received on the
client's CPU. Each worker answers with its CPU.
"""

import json
from collections import Counter
from typing import Any

from lab import Host, Nic
from lab.fixtures import lab
from lab.waiting import ended, start_measuring, wait_until

from .hosts import IGB, SMT, TWO_NODES

PORT = 8183
CPUS = range(8)
DATAGRAMS = 40

# A process per CPU, with its own socket.
SERVER = f"""
import os, socket

for cpu in {list(CPUS)}:
    if os.fork() == 0:
        os.sched_setaffinity(0, {{cpu}})
        sock = socket.socket(type=socket.SOCK_DGRAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(("127.0.0.1", {PORT}))
        while True:
            _, client = sock.recvfrom(64)
            sock.sendto(b"%d" % cpu, client)
os.wait()
"""

# Prints a line for each datagram: the client's CPU, and that of the worker that answers.
CLIENT = f"""
import os, socket

for cpu in {list(CPUS)}:
    os.sched_setaffinity(0, {{cpu}})
    for _ in range({DATAGRAMS}):
        with socket.socket(type=socket.SOCK_DGRAM) as sock:
            sock.sendto(b"datagram", ("127.0.0.1", {PORT}))
            print(cpu, sock.recv(64).decode())
"""


def answered(host: Host) -> Counter[tuple[int, int]]:
    """How many datagrams went from each CPU to each worker, according to the workers."""
    lines = host.check(["python3", "-c", CLIENT]).splitlines()
    assert len(lines) == len(CPUS) * DATAGRAMS
    sent_and_read: list[tuple[int, int]] = []
    for line in lines:
        sent, read = map(int, line.split())
        sent_and_read.append((sent, read))
    return Counter(sent_and_read)


def places(counts: Counter[tuple[int, int]], worker: int) -> dict[str, int]:
    """The same by distance, to one worker."""

    def node(cpu: int) -> int:
        (found,) = [node for node in (0, 1) if cpu in SMT.cpus_of(node)]
        return found

    found = Counter[str]()
    for (sent, read), count in counts.items():
        if read == worker:
            near = "same_cpu" if sent == read else "same_node" if node(sent) == node(read) else "other_node"
            found[near] += count
    return {near: found[near] for near in ("same_cpu", "same_node", "other_node")}


def measured(document: dict[str, Any]) -> dict[int, dict[str, int]]:
    """nearpath's counts for each worker, by its CPU."""
    assert document["protocol"] == "udp" and document["lost"] == 0, document
    (group,) = document["listeners"]
    assert group["local"] == f"127.0.0.1:{PORT}" and group["unknown"] == 0, document
    # A node has one last-level cache, so packets on the node stay under it.
    return {
        int(worker["cpus"]): {
            "same_cpu": worker["same_cpu"],
            "same_node": worker["same_llc"] + worker["same_node"],
            "other_node": worker["other_node"],
        }
        for worker in group["workers"]
    }


def agree(host: Host, found: dict[int, dict[str, int]], right: dict[int, dict[str, int]]) -> None:
    """Compares the measurement with the workers' counts.

    Before Linux 6.3, the receive call that each worker was in when the measurement started is not seen.
    """
    unseen = 1 if host.machine.kernel in ("5.10", "6.1") else 0
    assert found.keys() == right.keys()
    for worker, places in right.items():
        missing = {near: count - found[worker][near] for near, count in places.items()}
        assert sum(missing.values()) == unseen and max(missing.values()) == unseen, (worker, missing)


@lab(kernels=("5.10",), topology=TWO_NODES, nics=IGB)
def test_unobservable_accepts_are_reported(host: Host) -> None:
    document = json.loads(host.check("nearpath measure accepts --for 500ms --json"))
    (unknown,) = document["unknown"]
    assert unknown["fact"] == "accepts of io_uring", unknown
    assert "do not identify the completed request" in unknown["reason"], unknown


@lab(topology=SMT, nics=(Nic("igb", node=1),))
def test_datagrams_are_counted_by_group_and_worker(host: Host) -> None:
    server = host.start(["python3", "-c", SERVER])
    bound = f"ss --no-header --udp --listening 'sport = :{PORT}' | wc -l"
    wait_until(lambda: int(host.check(bound)) == len(CPUS), "the workers have their sockets")

    measuring = start_measuring(host, "measure", "accepts", "--udp", "--port", str(PORT))
    by_chance = answered(host)
    workers = {read for _, read in by_chance}
    agree(host, measured(ended(measuring)), {worker: places(by_chance, worker) for worker in workers})
    assert any(sent != read for sent, read in by_chance)

    host.check(f"nearpath steer --udp --port {PORT}")
    measuring = start_measuring(host, "measure", "accepts", "--udp", "--port", str(PORT))
    assert answered(host) == {(cpu, cpu): DATAGRAMS for cpu in CPUS}
    near = {"same_cpu": DATAGRAMS, "same_node": 0, "other_node": 0}
    agree(host, measured(ended(measuring)), dict.fromkeys(CPUS, near))
    server.kill()
