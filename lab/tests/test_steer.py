"""Steering on two nodes with SMT: fewer workers than CPUs, so that core, cache and node decide.

Server and client are in the guest: packets of a pinned client to its own machine are received on the
client's CPU. The server reports the CPU on which the kernel received a connection (SO_INCOMING_CPU).
"""

import json
from collections.abc import Iterator
from typing import Any

from lab import Host, Job, Nic
from lab.fixtures import lab, representative
from lab.waiting import ended, start_measuring, wait_until

from .hosts import SMT
from .test_btf import hide_btf

PORT = 8181
# Each with the CPU of the nearest worker: its sibling's, else one on its node.
NEAREST = {0: 0, 1: 0, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 4}
WORKERS = sorted(set(NEAREST.values()))
CONNECTIONS = 20

# Arguments: the CPU of each worker. Every worker holds all sockets and accepts from its own.
SERVER = f"""
import os, socket, sys

def listener():
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind(("127.0.0.1", {PORT}))
    sock.listen(512)
    return sock

cpus = [int(cpu) for cpu in sys.argv[1:]]
sockets = [listener() for _ in cpus]
for sock, cpu in zip(sockets, cpus):
    if os.fork() == 0:
        os.sched_setaffinity(0, {{cpu}})
        while True:
            connection, _ = sock.accept()
            received = connection.getsockopt(socket.SOL_SOCKET, 49)
            connection.sendall(b"%d %d" % (received, cpu))
            connection.close()
os.wait()
"""

# Arguments: CPUs. Prints a line for each connection: the client's CPU, and the server's answer.
CLIENT = f"""
import os, socket, sys

for cpu in sys.argv[1:]:
    os.sched_setaffinity(0, {{int(cpu)}})
    for _ in range({CONNECTIONS}):
        with socket.create_connection(("127.0.0.1", {PORT})) as connection:
            print(cpu, connection.makefile().read())
"""


def accepted(host: Host) -> Iterator[tuple[int, int]]:
    """The CPU on which each connection is received, and the one of the worker that accepts it."""
    words = ["python3", "-c", CLIENT, *map(str, NEAREST)]
    for line in host.check(words).splitlines():
        sent, received, worker = map(int, line.split())
        assert sent == received, line
        yield received, worker


def counted(document: dict[str, Any]) -> None:
    """Compares the measurement with the connections that were made, all to the nearest worker."""
    (listener,) = document["listeners"]
    assert listener["local"] == f"127.0.0.1:{PORT}"
    accepts = {int(worker["cpus"]): worker["accepts"] for worker in listener["workers"]}
    assert accepts == {worker: CONNECTIONS * list(NEAREST.values()).count(worker) for worker in WORKERS}
    assert listener["same_cpu"] == CONNECTIONS * len(WORKERS), listener
    assert listener["other_node"] == listener["unknown"] == document["lost"] == 0, document
    assert listener["accepts"] == CONNECTIONS * len(NEAREST)


def groups(host: Host, *arguments: str) -> list[dict[str, Any]]:
    """The server's REUSEPORT group, while it exists."""
    status = json.loads(host.check(["nearpath", "steer", "status", "--json", *arguments]))
    return [group for group in status["groups"] if group["local"] == f"127.0.0.1:{PORT}"]


def listeners(host: Host) -> int:
    """The server's sockets."""
    return int(host.check(f"ss --no-header --tcp --listening 'sport = :{PORT}' | wc -l"))


def start_server(host: Host) -> Job:
    """Starts the server; waits until it accepts connections."""
    server = host.start(["python3", "-c", SERVER, *map(str, WORKERS)])
    wait_until(lambda: listeners(host) == len(WORKERS), "the server listens")
    return server


@representative
@lab(topology=SMT, nics=(Nic("igb", node=1),))
def test_connections_reach_the_nearest_worker(host: Host) -> None:
    server = start_server(host)

    by_chance = list(accepted(host))
    assert len(by_chance) == len(NEAREST) * CONNECTIONS
    assert any(NEAREST[received] != worker for received, worker in by_chance)

    plan = json.loads(host.check(f"nearpath steer --port {PORT} --json"))
    assert plan["applied"], plan
    (change,) = plan["changes"]
    sockets = change["target"]["reuseport_group"]["sockets"]
    choices = change["after"]["program"]["nearest"]["choices"]
    # CPUs that the guest does not have are unknown.
    known = [choice for choice in choices if choice["nearness"]]
    chosen = [sockets[worker]["workers"][0]["cpus"] for choice in known for worker in choice["workers"]]
    assert sorted(set(chosen)) == [str(cpu) for cpu in WORKERS], plan
    measuring = start_measuring(host, "measure", "accepts", "--port", str(PORT))
    assert [NEAREST[received] for received, _ in by_chance] == [worker for _, worker in accepted(host)]
    counted(ended(measuring))

    (group,) = groups(host)
    assert group["program"] == "nearpath", group
    assert host.run("nearpath steer off").status == 0
    assert any(NEAREST[received] != worker for received, worker in accepted(host))

    # The classic program counts the sockets in the order in which they were opened.
    host.check(f"nearpath steer --port {PORT} --cbpf")
    assert all(worker == WORKERS[received % len(WORKERS)] for received, worker in accepted(host))

    server.kill()
    wait_until(lambda: listeners(host) == 0, "the server has ended")
    assert groups(host) == []
    status = json.loads(host.check("nearpath steer status --json"))
    assert ["sockets were closed" in gone["reason"] for gone in status["gone"]] == [True], status


@lab(kernels=("6.1",), topology=SMT, nics=(Nic("igb", node=1),))
def test_steers_with_btf_from_a_file(host: Host) -> None:
    btf = ("--btf", hide_btf(host))
    start_server(host)
    steer = ["nearpath", "steer", "--port", str(PORT)]
    status, out, err = host.run(steer)
    assert (status, out, err.count("\n")) == (1, "", 1), (out, err)
    assert "has no BTF" in err and "--btf FILE" in err, err

    host.check([*steer, *btf])
    assert all(NEAREST[received] == worker for received, worker in accepted(host))
    (group,) = groups(host, *btf)
    assert group["program"] == "nearpath", group
    assert len(group["sockets"]) == len(WORKERS), group

    host.check(["nearpath", "steer", "off", *btf])
    (group,) = groups(host, *btf)
    assert group["program"] is None, group
    assert any(NEAREST[received] != worker for received, worker in accepted(host))


def far(a: int, b: int) -> int:
    """The distance between two CPUs of the host: itself, its sibling, its node, another one."""
    return 0 if a == b else 1 if a // 2 == b // 2 else 2 if a // 4 == b // 4 else 3


@lab(topology=SMT, nics=(Nic("igb", node=1),))
def test_a_plan_moves_the_workers_of_a_port_and_steers_to_them(host: Host) -> None:
    server = start_server(host)
    plan = json.loads(host.check(f"nearpath tune plan --nic nic0 --port {PORT} --json"))
    kinds = [change["kind"] for change in plan["changes"]]
    assert kinds.count("reuseport") == 1 and "thread_affinity" in kinds, plan
    host.write("/root/plan.json", json.dumps(plan).encode())
    host.check("nearpath tune apply /root/plan.json")

    (group,) = groups(host)
    assert group["program"] == "nearpath", group
    # They were forked one after the other.
    workers = sorted(map(int, host.check(f"pgrep -P {server.pid}").split()))
    cpus = dict(zip(WORKERS, (int(host.check(f"taskset -cp {pid}").split()[-1]) for pid in workers), strict=True))
    assert all(cpu in SMT.cpus_of(1) for cpu in cpus.values()), cpus
    for received, worker in accepted(host):
        assert far(received, cpus[worker]) == min(far(received, cpu) for cpu in cpus.values()), (received, cpus)

    host.check("nearpath tune rollback")
    (group,) = groups(host)
    assert group["program"] is None, group
    assert [host.check(f"taskset -cp {pid}").split()[-1] for pid in workers] == [str(cpu) for cpu in WORKERS]
