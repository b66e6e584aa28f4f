"""How long a server takes to answer, on each kernel: one that answers after 20 ms, over TCP and UDP of the guest's own
addresses. It is alone on its port, and what it is asked is known.
"""

import json
from typing import Any

from lab import Host
from lab.fixtures import lab, smoke
from lab.waiting import ended, start_measuring, wait_until

from .hosts import IGB, TWO_NODES

PORT = 8184
REQUESTS = 20
WORK_S = 0.02
# An emulated guest is slow: what it does besides may take as long as the work ten times over.
MOST_S = 10 * WORK_S

SERVER = f"""
import socket, threading, time

def stream():
    listener = socket.create_server(("127.0.0.1", {PORT}))
    connection, _ = listener.accept()
    while connection.recv(64):
        time.sleep({WORK_S})
        connection.sendall(b"answer")

datagrams = socket.socket(type=socket.SOCK_DGRAM)
datagrams.bind(("127.0.0.1", {PORT}))
threading.Thread(target=stream).start()
while True:
    _, client = datagrams.recvfrom(64)
    time.sleep({WORK_S})
    datagrams.sendto(b"answer", client)
"""

CLIENT = f"""
import socket

with socket.create_connection(("127.0.0.1", {PORT})) as stream:
    for _ in range({REQUESTS}):
        stream.sendall(b"request")
        assert stream.recv(64)
with socket.socket(type=socket.SOCK_DGRAM) as datagrams:
    datagrams.connect(("127.0.0.1", {PORT}))
    for _ in range({REQUESTS}):
        datagrams.send(b"request")
        assert datagrams.recv(64)
"""


@smoke
@lab(topology=TWO_NODES, nics=IGB)
def test_a_server_takes_as_long_as_it_works(host: Host) -> None:
    host.start(["python3", "-c", SERVER])
    wait_until(lambda: bool(host.check(f"ss -Hltn sport = :{PORT}")), "the server listens")
    measuring = start_measuring(host, "measure", "answers", "--port", str(PORT))
    host.check(["python3", "-c", CLIENT])
    measured: dict[str, Any] = ended(measuring)
    by_protocol = {server["protocol"]: server for server in measured["servers"]}
    if measured["unknown"]:
        assert host.machine.kernel in ("5.10", "6.1"), measured["unknown"]
        assert set(by_protocol) == {"tcp"}
    else:
        assert set(by_protocol) == {"tcp", "udp"}
    for server in by_protocol.values():
        assert server["answers"] == REQUESTS, server
        assert WORK_S <= server["p50_ns"] / 1e9 <= MOST_S, server
    # The drops' program has the same needs.
    dropped = json.loads(host.check(["nearpath", "measure", "drops", "--for", "1s", "--json"]))
    assert dropped["extrapolated"] == 0
