"""UDP from the peer to a guest: the reader and the sender.

The sender opens a socket for each flow, so that flows have different source ports and a
NIC with queues spreads them.
"""

import contextlib
import subprocess
import sys
from collections.abc import Iterator

from lab import Host, Job
from lab.waiting import wait_until

PORT = 9000

# Datagrams with this many bytes are the test's own, wherever they are seen.
PAYLOAD_BYTES = 777

# Their `len` in the kernel, without the Ethernet header: IPv4 and UDP headers are 28 bytes.
PACKET_BYTES = PAYLOAD_BYTES + 28

READER = f"""
import socket
reader = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
reader.bind(("", {PORT}))
while True:
    reader.recv(65536)
"""

# Arguments: address, flows, datagrams per flow, datagrams per second (an emulated NIC drops bursts).
SENDER = f"""
import socket, sys, time
address, flows, each, rate = sys.argv[1], *map(int, sys.argv[2:])
senders = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(flows)]
for sender in senders:
    sender.connect((address, {PORT}))
start = time.monotonic()
for number in range(flows * each):
    time.sleep(max(0, start + number / rate - time.monotonic()))
    senders[number % flows].send(bytes({PAYLOAD_BYTES}))
"""

ENDLESS = 10**9


def start_reader(host: Host) -> Job:
    """Starts the guest's reader; waits until its socket is bound."""
    reader = host.start(["python3", "-c", READER])

    def listening() -> bool:
        assert reader.running(), reader.result
        return host.check(f"ss --no-header --udp --listening 'sport = :{PORT}'") != ""

    wait_until(listening, "the guest's reader is bound")
    return reader


def send(host: Host, flows: int, each: int, rate: int = 1000) -> None:
    """Sends datagrams from the peer, and waits until they are sent."""
    done = host.peer.run(_sender(host, flows, each, rate))
    assert done.status == 0, done


@contextlib.contextmanager
def stream(host: Host, flows: int = 8, rate: int = 200) -> Iterator[subprocess.Popen[str]]:
    """A block during which the peer sends."""
    with host.peer.start(_sender(host, flows, ENDLESS, rate)) as sender:
        try:
            yield sender
        finally:
            sender.kill()


def _sender(host: Host, flows: int, each: int, rate: int) -> list[str]:
    numbers = (str(number) for number in (flows, each, rate))
    return [sys.executable, "-c", SENDER, host.machine.address(), *numbers]
