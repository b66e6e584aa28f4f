"""A datagram is counted once, however fast its reader: the socket reports it on one CPU while another reads it."""

from lab import Host
from lab.fixtures import lab
from lab.waiting import ended, start_measuring, wait_until

from .hosts import IGB, TWO_NODES
from .spans import assert_balanced, ways

PORT = 7000
DATAGRAMS = 10_000
RACES = 4

# It never sleeps, so it may read a datagram before its socket has reported it. Arguments: CPU, how many.
READER = f"""
import os, socket, sys
os.sched_setaffinity(0, {{int(sys.argv[1])}})
reader = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
# SO_RCVBUFFORCE: it may be kept from its CPU for long.
reader.setsockopt(socket.SOL_SOCKET, 33, 32 << 20)
reader.bind(("", {PORT}))
reader.setblocking(False)
open("/run/reader", "w")
taken = 0
while taken < int(sys.argv[2]):
    try:
        reader.recv(2048)
        taken += 1
    except BlockingIOError:
        pass
"""

# Waits after each until the reader polls again. Arguments: CPU, how many.
SENDER = f"""
import os, socket, sys, time
os.sched_setaffinity(0, {{int(sys.argv[1])}})
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(int(sys.argv[2])):
    sender.sendto(bytes(100), ("127.0.0.1", {PORT}))
    until = time.perf_counter() + 0.0008
    while time.perf_counter() < until:
        pass
"""


@lab(topology=TWO_NODES, nics=IGB)
def test_datagrams_of_a_fast_reader_are_counted_once(host: Host) -> None:
    reader = host.start(["python3", "-c", READER, "3", str(DATAGRAMS)])
    wait_until(lambda: host.run("test -e /run/reader").status == 0, "the reader reads")
    measuring = start_measuring(host, "measure", "stages", "--port", str(PORT))
    senders = [host.start(["python3", "-c", SENDER, cpu, str(DATAGRAMS // 2)]) for cpu in "01"]
    for job in (*senders, reader):
        assert job.wait().status == 0, job.result
    document = ended(measuring)

    assert document["packets"]["started"] == 2 * DATAGRAMS
    assert_balanced(document)
    # It may take the one that its socket is about to report.
    after = ways(document, "rx", "udp_rcv")
    assert after.keys() <= {"sk_data_ready", "sock_recv"}
    assert abs(sum(after.values()) - DATAGRAMS) <= RACES
    # docs/measuring.md, What is counted.
    assert document["packets"]["abandoned"] <= DATAGRAMS // 1000
