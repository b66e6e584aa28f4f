"""TCP packets that are retransmitted, segmented, or merged: each has one outcome.

Between two namespaces of a guest (devices.py). The segments are counted by TCP, by the qdisc
that loses some, and by the devices.
"""

from lab import Host
from lab.fixtures import lab
from lab.waiting import ended, start_measuring, wait_until

from . import devices
from .hosts import IGB, TWO_NODES
from .spans import assert_balanced, passed, ways

PORT = 7001
MESSAGES = 60
LOSS_PERCENT = 20
BULK_BYTES = 2 << 20

# Answers what it receives on each connection, or only reads it.
SERVER = f"""
import socket, sys
server = socket.create_server(("", {PORT}))
while True:
    connection, _ = server.accept()
    with connection:
        while some := connection.recv(1 << 20):
            if sys.argv[1] == "answer":
                connection.sendall(some)
"""

# Messages, each sent after the previous answer, so that no two share a segment.
CONVERSATION = f"""
import socket, sys
with socket.create_connection((sys.argv[1], {PORT})) as connection:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for _ in range({MESSAGES}):
        connection.sendall(bytes(100))
        left = 100
        while left:
            left -= len(connection.recv(left))
"""

BULK = f"""
import socket, sys
with socket.create_connection((sys.argv[1], {PORT})) as connection:
    connection.sendall(bytes({BULK_BYTES}))
"""


@lab(topology=TWO_NODES, nics=IGB)
def test_a_retransmission_is_a_separate_packet(host: Host) -> None:
    devices.make(host, "veth")
    wire = devices.device("veth")
    host.check(f"tc -netns left qdisc add dev {wire} root netem loss {LOSS_PERCENT}%")
    serve(host, "answer")
    measuring = start_measuring(host, "measure", "stages", "--proto", "tcp", "--dport", str(PORT))
    host.check(inside("left", CONVERSATION, devices.address("veth", "right")))
    wait_until(lambda: connections(host) == "", "all connections are closed")
    document = ended(measuring)

    counted = tcp(host, "left")
    sent = counted["OutSegs"] + counted["RetransSegs"]
    lost = int(host.check(f"tc -netns left -s qdisc show dev {wire}").partition("dropped ")[2].partition(",")[0])
    assert counted["RetransSegs"] > 0 and lost > 0
    assert sum(ways(document, "tx", "net_dev_queue").values()) == sent
    assert passed(document, "tx", end="kfree_skb") == lost
    assert ways(document, "tx", "net_dev_start_xmit") == {"netif_rx": sent - lost}
    assert passed(document, "rx", end="netif_receive_skb") == sent - lost
    assert document["packets"]["started"] == sent + sent - lost
    assert_balanced(document)


@lab(topology=TWO_NODES, nics=IGB)
def test_segments_are_one_packet_when_sent_and_many_when_received(host: Host) -> None:
    wires = ("veth", "vxlan")
    devices.make(host, *wires)
    # The veth under the tunnel accepts only single segments, the other one does not segment itself; its
    # other end merges packets.
    host.check("ip -netns left link set vxlan-raw gso_max_segs 1")
    host.check("ip netns exec left ethtool -K veth-raw tso off && ip netns exec right ethtool -K veth-raw gro on")
    serve(host, "take")
    before = frames(host)
    measuring = start_measuring(host, "measure", "stages", "--proto", "tcp", "--dport", str(PORT))
    for wire in wires:
        host.check(inside("left", BULK, devices.address(wire, "right")))
    wait_until(lambda: connections(host) == "", "all connections are closed")
    document = ended(measuring)

    segments = frames(host) - before
    sent = document["packets"]["started"] - segments
    # Each is sent by its device, those of the tunnel by two; none ends where it is segmented.
    tunnelled = passed(document, "tx", "net_dev_start_xmit", "net_dev_queue")
    assert ways(document, "tx", "net_dev_queue") == {"net_dev_start_xmit": sent + tunnelled}
    assert 0 < tunnelled < sent < segments / 2
    ends = {end: passed(document, "tx", end=end) for end in ("netif_rx", "consume_skb", "kfree_skb")}
    assert sum(ends.values()) == sent, ends
    # The stack receives fewer packets than its devices.
    assert passed(document, "rx", end="netif_receive_skb") < segments
    assert_balanced(document)
    assert document["packets"]["dropped"] == document["packets"]["collided"] == 0


def inside(namespace: str, program: str, *arguments: str) -> list[str]:
    return ["ip", "netns", "exec", namespace, "python3", "-c", program, *arguments]


def serve(host: Host, what: str) -> None:
    host.start(inside("right", SERVER, what))
    listening = f"ip netns exec right ss --no-header --tcp --listening 'sport = :{PORT}'"
    wait_until(lambda: host.check(listening) != "", "the server listens")


def connections(host: Host) -> str:
    """The remaining connections, except those in TIME-WAIT."""
    ss = "ss --no-header --tcp --numeric exclude listening exclude time-wait"
    return "".join(host.check(f"ip netns exec {end} {ss}") for end in devices.ENDS)


def tcp(host: Host, namespace: str) -> dict[str, int]:
    """TCP's counters in a namespace."""
    lines = host.check(f"ip netns exec {namespace} cat /proc/net/snmp").splitlines()
    names, numbers = (line.split()[1:] for line in lines if line.startswith("Tcp:"))
    return dict(zip(names, map(int, numbers), strict=True))


def frames(host: Host) -> int:
    """Packets received by the devices on the right: at the end of the wire and of the tunnel."""
    files = [f"/sys/class/net/{name}/statistics/rx_packets" for name in ("veth-raw", "vxlan0")]
    return sum(map(int, host.check(["ip", "netns", "exec", "right", "cat", *files]).split()))
