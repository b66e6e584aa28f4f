"""Packets that Open vSwitch sends to user space are followed: the path continues with the answer.

ovs-vswitchd must not add flows to the datapath, so that every packet misses, is copied to it, and
returns in a new sk_buff. Packets are counted by the guest's TCP and UDP.
"""

import re
import sys
from contextlib import ExitStack

import pytest

from lab import Host
from lab.fixtures import lab
from lab.waiting import ended, start_measuring, wait_until

from .conversations import Conversation, start_server
from .hosts import IGB, TWO_NODES
from .spans import assert_balanced, assert_path, passed

PORT, REFUSED_PORT = 5001, 5002
FLOWS = 2
CONNECTIONS = 2 * FLOWS
ROUNDS = 20
# As many identical packets as can be distinguished in flight.
ALIKE = 16
UNANSWERED = 10

# Linux 5.10 has no types for functions of modules, and skips a kprobe that interrupts another program.
SEEN = {"5.10": 0.9}

RECEIVED = ("ovs_dp_process_packet", "ovs_dp_upcall", "ovs_packet_cmd_execute", "ovs_vport_send")
SENT = ("internal_dev_xmit", "ovs_vport_receive", *RECEIVED)

# Sends identical datagrams at once; then optionally waits until each is answered.
BURST = """
import socket, sys
address, port, number, answered = sys.argv[1], *map(int, sys.argv[2:])
sender = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(number):
    sender.sendto(b"always the same", (address, port))
for _ in range(answered):
    sender.recv(64)
"""

# Accepts a connection and reads all its data.
SINK = """
import socket, sys
server = socket.create_server((sys.argv[1], 0))
print(server.getsockname()[1], flush=True)
connection, _ = server.accept()
taken = 0
while some := connection.recv(1 << 20):
    taken += len(some)
print(taken)
"""
SOURCE = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as connection:
    connection.sendall(bytes(int(sys.argv[3])))
"""
BULK_BYTES = 1 << 20

# Reads a number of datagrams.
TAKER = """
import socket, sys
taker = socket.socket(socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET, socket.SOCK_DGRAM)
taker.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
taker.bind((sys.argv[1], 0))
print(taker.getsockname()[1], flush=True)
for _ in range(int(sys.argv[2])):
    taker.recv(2048)
print("all", flush=True)
"""
# Sends datagrams that the kernel cuts into segments (UDP_SEGMENT, 103).
SEGMENTED = """
import socket, sys
address, port, sends, segments, size = sys.argv[1], *map(int, sys.argv[2:])
sender = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
sender.setsockopt(socket.IPPROTO_UDP, 103, size)
for number in range(sends):
    sender.sendto(bytes([number]) * (segments * size - 1), (address, port))
"""
SENDS, SEGMENTS, SEGMENT_BYTES = 10, 8, 1000

VLAN = 7
IN_VLAN, BEHIND_TRUNK = "10.8.0.1", "10.8.0.2"


@lab(topology=TWO_NODES, nics=IGB)
def test_a_packet_through_user_space_is_followed(host: Host) -> None:
    let_all_miss(host)
    start_server(host, "0-3", PORT)
    before, again = transport(host), sent_again(host)
    measuring = start_measuring(host, "measure", "stages", "--port", str(PORT))
    with ExitStack() as stack:
        for address in (host.machine.address(), host.machine.address6()):
            for protocol in ("udp", "tcp"):
                stack.enter_context(Conversation(host, protocol, address, PORT, FLOWS)).talk(ROUNDS)
    burst(host, host.machine.address6(), PORT, ALIKE, answered=ALIKE)
    wait_until(lambda: connections(host) == "", "the guest has closed its connections")
    document = ended(measuring)
    received, sent = (now - was for now, was in zip(transport(host), before, strict=True))
    again = sent_again(host) - again
    print(document["packets"], f"{again} segments were sent again")

    # As many as TCP and UDP have counted; only this path; and no packet counts twice, before and after.
    assert min(received, sent) >= 4 * FLOWS * ROUNDS + ALIKE
    seen = SEEN.get(host.machine.kernel, 1)
    assert_path(document, "rx", received, *RECEIVED, "internal_dev_recv", "netif_rx", seen=seen)
    assert_path(document, "tx", sent, *SENT, "net_dev_queue", seen=seen)
    lost = document["events_lost"]
    assert seen * received - lost <= passed(document, "rx", end="netif_rx") <= received
    assert received + sent <= document["packets"]["started"] <= (received + sent) / seen + lost
    assert_balanced(document)
    # TCP frees some packets of the handshake and the close without a tracepoint.
    unseen = 2 * (1 - seen) * (received + sent) + lost
    if host.machine.kernel == "7.2":
        # It frees sent packets on the allocating CPU, when that next receives (napi_consume_skb).
        unseen += passed(document, "tx", end="net_dev_xmit") - passed(document, "tx", begin="net_dev_xmit")
    assert document["packets"]["abandoned"] <= 8 * CONNECTIONS + unseen
    assert document["packets"]["collided"] == 0
    # What TCP has received already.
    assert document["packets"]["dropped"] <= again


@lab(topology=TWO_NODES, nics=IGB)
def test_groups_and_timelines_include_user_space(host: Host) -> None:
    let_all_miss(host)
    start_server(host, "0-3", PORT)
    options = ("--per", "process", "--slow", "100ns", "--outliers", "1000")
    measuring = start_measuring(host, "measure", "stages", "--port", str(PORT), "--proto", "udp", *options)
    with Conversation(host, "udp", host.machine.address(), PORT, FLOWS) as talk:
        talk.talk(ROUNDS)
    document = ended(measuring)

    # Packets that its server has read and sent belong to the server, including the part before user space.
    server = next(group for group in document["groups"] if group["name"].startswith("python3/"))
    seen = SEEN.get(host.machine.kernel, 1)
    for direction in ("rx", "tx"):
        for begin, end in (("ovs_dp_process_packet", "ovs_dp_upcall"), ("ovs_dp_upcall", "ovs_packet_cmd_execute")):
            assert seen * FLOWS * ROUNDS <= passed(server, direction, begin, end) <= FLOWS * ROUNDS
    # And a timeline continues with the answer.
    paths = {one["packet"]: [step["stage"] for step in one["path"]] for one in document["outliers"]}
    whole = [path for path in paths.values() if path[0] != "ovs_dp_upcall" and path[-1] in ("sock_recv", "consume_skb")]
    assert whole
    for path in whole:
        assert [stage for stage in path if stage in RECEIVED] in ([*RECEIVED], [*SENT[2:]]), path


@lab(topology=TWO_NODES, nics=IGB)
def test_segments_are_one_packet_and_unanswered_ones_are_abandoned(host: Host) -> None:
    let_all_miss(host)
    host.check(f"ovs-ofctl add-flow br0 udp,tp_dst={REFUSED_PORT},actions=drop")
    frames = transmitted(host)
    measuring = start_measuring(host, "measure", "stages", "--host", host.peer.address())
    send_in_bulk(host)
    burst(host, host.machine.address(), REFUSED_PORT, UNANSWERED)
    wait_until(lambda: refused(host) == UNANSWERED, "ovs-vswitchd has refused the datagrams")
    document = ended(measuring)

    received, sent = (passed(document, direction, end="ovs_dp_upcall") for direction in ("rx", "tx"))
    seen, lost = SEEN.get(host.machine.kernel, 1), document["events_lost"]
    assert received + sent <= document["packets"]["started"] <= (received + sent) / seen + lost
    assert_path(document, "tx", sent, *SENT, "net_dev_queue", seen=seen)
    # Large TCP packets return in segments of at most 1,448 bytes.
    assert transmitted(host) - frames >= BULK_BYTES / 1448 > 1.25 * sent
    assert_path(document, "rx", received - UNANSWERED, "ovs_dp_upcall", "ovs_packet_cmd_execute", seen=seen)
    assert_balanced(document)
    assert document["packets"]["abandoned"] >= UNANSWERED
    assert document["packets"]["collided"] == 0


@lab(topology=TWO_NODES, nics=IGB)
def test_segments_of_a_datagram_are_one_packet(host: Host) -> None:
    if host.machine.kernel == "5.10":
        pytest.skip("before Linux 5.11 datagrams are segmented ahead of Open vSwitch")
    let_all_miss(host)
    frames = transmitted(host)
    which = ("--direction", "tx", "--proto", "udp")
    for address in (host.peer.address(), host.peer.address6()):
        measuring = start_measuring(host, "measure", "stages", "--dst", address, *which)
        send_segmented(host, address)
        document = ended(measuring)

        # One packet goes up, and one returns, regardless of segmentation.
        assert_path(document, "tx", SENDS, *SENT, "net_dev_queue")
        assert_balanced(document)
        assert SENDS <= document["packets"]["started"] <= SENDS + document["events_lost"], document
        assert document["packets"]["collided"] == 0, document
    assert transmitted(host) - frames >= 2 * SENDS * SEGMENTS


@lab(topology=TWO_NODES, nics=IGB)
def test_tags_may_be_removed_and_added_in_user_space(host: Host) -> None:
    make_vlan(host)
    let_all_miss(host)
    start_server(host, "0-3", PORT)
    measuring = start_measuring(host, "measure", "stages", "--port", str(PORT), "--proto", "udp")
    host.check(["ip", "netns", "exec", "left", "python3", "-c", BURST, IN_VLAN, str(PORT), str(ALIKE), str(ALIKE)])
    document = ended(measuring)

    abandoned = document["packets"]["abandoned"]
    seen = SEEN.get(host.machine.kernel, 1) * (1 - abandoned / ALIKE)
    assert abandoned <= (document["events_lost"] if host.machine.kernel not in SEEN else ALIKE / 4)
    assert_path(document, "rx", ALIKE, *RECEIVED, "internal_dev_recv", "netif_rx", seen=seen)
    assert_path(document, "tx", ALIKE, *SENT, "net_dev_queue", seen=seen)
    # In both directions, each sent by one end and received by the other.
    assert 4 * ALIKE <= document["packets"]["started"] <= 4 * ALIKE / seen
    assert_balanced(document)
    assert document["packets"]["collided"] == 0


def make_vlan(host: Host) -> None:
    """A namespace `left` behind a trunk of the bridge, with br0 in one of its VLANs: Open vSwitch removes the tag
    on receive and adds it on transmit.
    """
    left = "ip -netns left"
    host.check(
        "modprobe 8021q && ip netns add left"
        " && ip link add left0 netns left type veth peer name trunk"
        f" && {left} link add link left0 name left0.{VLAN} type vlan id {VLAN}"
        f" && {left} link set left0 up && {left} link set left0.{VLAN} up && ip link set trunk up"
        f" && {left} address add {BEHIND_TRUNK}/24 dev left0.{VLAN} && ip address add {IN_VLAN}/24 dev br0"
        f" && ovs-vsctl add-port br0 trunk trunks={VLAN} && ovs-vsctl set port br0 tag={VLAN}"
        f" && ip neighbour add {BEHIND_TRUNK} dev br0 nud permanent"
        f" lladdr $({left} --json link show left0 | grep -o '[0-9a-f:]\\{{17\\}}' | head -n 1)"
        f" && {left} neighbour add {IN_VLAN} dev left0.{VLAN} nud permanent lladdr $(cat /sys/class/net/br0/address)"
    )


def send_in_bulk(host: Host) -> None:
    """Sends from the guest to the peer, by a connection."""
    with host.peer.start([sys.executable, "-c", SINK, host.peer.address()]) as sink:
        assert sink.stdout
        port = sink.stdout.readline().strip()
        host.check(["python3", "-c", SOURCE, host.peer.address(), port, str(BULK_BYTES)])
        assert sink.stdout.read().strip() == str(BULK_BYTES)


def send_segmented(host: Host, address: str) -> None:
    """Sends datagrams of several segments each from the guest to the peer, which reads them individually."""
    segments = SENDS * SEGMENTS
    with host.peer.start([sys.executable, "-c", TAKER, address, str(segments)]) as taker:
        assert taker.stdout
        arguments = (taker.stdout.readline().strip(), str(SENDS), str(SEGMENTS), str(SEGMENT_BYTES))
        host.check(["python3", "-c", SEGMENTED, address, *arguments])
        assert taker.stdout.readline() == "all\n"


def transmitted(host: Host) -> int:
    """Frames that the NIC has sent."""
    return int(host.read("/sys/class/net/nic0/statistics/tx_packets"))


def refused(host: Host) -> int:
    """Datagrams that ovs-vswitchd's rule has dropped."""
    rule = host.check(f"ovs-ofctl dump-flows br0 udp,tp_dst={REFUSED_PORT}")
    return int(rule.partition("n_packets=")[2].partition(",")[0])


def let_all_miss(host: Host) -> None:
    """Makes ovs-vswitchd add no flows, and removes existing ones."""
    host.check("ovs-vsctl set Open_vSwitch . other_config:flow-limit=0")
    wait_until(lambda: "(limit 0)" in host.check("ovs-appctl upcall/show"), "ovs-vswitchd has taken the limit")
    host.check("ovs-appctl revalidator/purge")


def burst(host: Host, address: str, port: int, number: int, answered: int = 0) -> None:
    """Sends datagrams from the peer."""
    done = host.peer.run([sys.executable, "-c", BURST, address, str(port), str(number), str(answered)])
    assert done.status == 0, done


def connections(host: Host) -> str:
    return host.check(f"ss --no-header --tcp --numeric 'sport = :{PORT}'")


def sent_again(host: Host) -> int:
    """Segments that TCP has sent again on either side, as when an answer took long on a busy machine."""
    texts = host.check("cat /proc/net/snmp"), host.peer.run(["cat", "/proc/net/snmp"]).out
    names_and_numbers = (re.findall(r"^Tcp: (.*)$", text, re.MULTILINE) for text in texts)
    return sum(int(numbers.split()[names.split().index("RetransSegs")]) for names, numbers in names_and_numbers)


def transport(host: Host) -> tuple[int, int]:
    """Packets that the guest's TCP and UDP have received and sent."""
    lines = [line.split() for line in host.check("cat /proc/net/snmp /proc/net/snmp6").splitlines()]
    counts = {words[0]: int(words[1]) for words in lines if len(words) == 2}
    for names, numbers in zip(lines, lines[1:], strict=False):
        if names[0] == numbers[0] and names[0] in ("Tcp:", "Udp:"):
            counts |= {names[0] + name: int(number) for name, number in zip(names[1:], numbers[1:], strict=True)}
    received = ("Tcp:InSegs", "Udp:InDatagrams", "Udp6InDatagrams")
    # What TCP sends again is not one of OutSegs (`__tcp_retransmit_skb`).
    sent = ("Tcp:OutSegs", "Tcp:RetransSegs", "Udp:OutDatagrams", "Udp6OutDatagrams")
    return sum(counts[name] for name in received), sum(counts[name] for name in sent)
