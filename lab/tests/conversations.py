"""Conversations between the peer and a guest, in UDP or TCP: each message is answered before the next.

So nothing is lost, the guest's reader sleeps when a message arrives, and the guest receives
as many packets with data as messages were sent.
"""

import subprocess
import sys
from types import TracebackType
from typing import IO, Self, cast

from lab import Host, Job
from lab.host import PATIENCE_S
from lab.waiting import wait_until

# Less than a segment.
MESSAGE_BYTES = 800

# Arguments: ports. Each is served in UDP and TCP, over IPv4 and IPv6.
SERVER = """
import select, socket, sys, threading

def start(function, *arguments):
    threading.Thread(target=function, args=arguments).start()

def udp(server):
    while True:
        # Not in recvfrom: of a call that was under way when probes were attached no end is seen.
        select.select([server], [], [])
        server.sendto(*server.recvfrom(65536))

def tcp(server):
    server.listen()
    while True:
        start(answer, server.accept()[0])

def answer(connection):
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while message := connection.recv(65536):
        connection.sendall(message)

for port in sys.argv[1:]:
    for family in (socket.AF_INET, socket.AF_INET6):
        for serve, kind in ((udp, socket.SOCK_DGRAM), (tcp, socket.SOCK_STREAM)):
            server = socket.socket(family, kind)
            if family == socket.AF_INET6:
                server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            server.bind(("", int(port)))
            start(serve, server)
"""

# Arguments: udp or tcp, address, port, flows. Each line of standard input is a number of rounds over all
# flows.
CLIENT = f"""
import random, socket, sys

protocol, address, port, flows = sys.argv[1:]
family = socket.AF_INET6 if ":" in address else socket.AF_INET
kind = {{"udp": socket.SOCK_DGRAM, "tcp": socket.SOCK_STREAM}}[protocol]
sockets = [socket.socket(family, kind) for _ in range(int(flows))]
# Successive ports differ in few bits: with the random key of some boots, the NIC hashes them all to one queue.
ports = random.sample(range(10_000, 60_000), len(sockets))
for each, own in zip(sockets, ports):
    each.bind(("", own))
    # An answer that is lost ends it, with an error.
    each.settimeout({PATIENCE_S / 2})
    each.connect((address, int(port)))
    if protocol == "tcp":
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
for line in sys.stdin:
    for _ in range(int(line)):
        for each in sockets:
            each.send(bytes({MESSAGE_BYTES}))
            left = {MESSAGE_BYTES}
            while left:
                left -= len(each.recv(left))
    print("done", flush=True)
"""


def start_server(host: Host, cpus: str, *ports: int) -> Job:
    """Starts the guest's end, pinned to some CPUs; waits until it is ready."""
    server = host.start(["taskset", "--cpu-list", cpus, "python3", "-c", SERVER, *map(str, ports)])

    def listening() -> bool:
        assert server.running(), server.result
        sockets = host.check("ss --no-header --tcp --udp --listening --numeric").splitlines()
        return all(sum(f":{port} " in line for line in sockets) == 4 for port in ports)

    wait_until(listening, "the guest's server is bound")
    return server


class Conversation:
    """The peer's end, with the connections of all its flows open. Use it in a `with` block."""

    def __init__(self, host: Host, protocol: str, address: str, port: int, flows: int) -> None:
        self.host, self.port, self.flows = host, port, flows
        words = [sys.executable, "-c", CLIENT, protocol, address, str(port), str(flows)]
        self.client = host.peer.start(words, stdin=subprocess.PIPE)

    def talk(self, rounds: int) -> None:
        """Exchanges messages of each flow, each with its answer and the answer's acknowledgement."""
        stdin, stdout = cast(IO[str], self.client.stdin), cast(IO[str], self.client.stdout)
        stdin.write(f"{rounds}\n")
        stdin.flush()
        assert stdout.readline() == "done\n", self.client.communicate()

        def acknowledged() -> bool:
            sockets = self.host.check(f"ss --no-header --tcp --numeric 'sport = :{self.port}'").splitlines()
            return all(send_queue == "0" for _, _, send_queue, *_ in map(str.split, sockets))

        wait_until(acknowledged, "all data of the guest is acknowledged")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.client.kill()
        self.client.communicate()
