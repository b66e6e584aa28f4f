"""Tunnels over IPv6 that carry IPv6: a packet is followed through encapsulation and decapsulation."""

from lab import Host
from lab.fixtures import lab
from lab.waiting import ended, start_measuring, wait_until

from .hosts import IGB, TWO_NODES
from .spans import assert_balanced, passed, ways

PORT = 7000
# The tunnels, as arguments of `ip link add`, and how many datagrams go through each.
TUNNELS = {
    "vxlan6": ("type vxlan id 7 dstport 4789 local {mine} remote {other}", 11),
    "geneve6": ("type geneve id 7 remote {other}", 12),
}
SENT = sum(number for _, number in TUNNELS.values())
ENDS = ("left", "right")
# Datagrams that a reader takes at the moment in which its socket reports them.
FEW = 2
# The kernel repeats multicast reports after a while (ms), and solicits routers, also through a tunnel.
QUIET = ["mldv2_unsolicited_report_interval=3600000", "router_solicitations=0"]
MACS = {"left": "02:00:00:77:00:01", "right": "02:00:00:77:00:02"}

READER = f"""
import select, socket
reader = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
reader.bind(("::", {PORT}))
for _ in range({SENT}):
    # Not in recv: of a call that was under way when probes were attached no end is seen.
    select.select([reader], [], [])
    reader.recv(2048)
"""
SENDER = f"""
import socket, sys
for address, number in zip(sys.argv[1::2], sys.argv[2::2]):
    sender = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    for _ in range(int(number)):
        sender.sendto(bytes(100), (address, {PORT}))
"""


@lab(topology=TWO_NODES, nics=IGB)
def test_ipv6_goes_through_tunnels_over_ipv6(host: Host) -> None:
    make(host)
    reader = host.start(["ip", "netns", "exec", "right", "python3", "-c", READER])
    wait_until(lambda: listening(host), "the reader is bound")
    measuring = start_measuring(host, "measure", "stages", "--proto", "udp", "--host", "fd77::/16")
    words = [word for name, (_, number) in TUNNELS.items() for word in (inner(name, "right"), str(number))]
    host.check(["ip", "netns", "exec", "left", "python3", "-c", SENDER, *words])
    assert reader.wait().status == 0
    document = ended(measuring)

    def rx(begin: str) -> dict[str, int]:
        return ways(document, "rx", begin)

    packets = document["packets"]
    assert 2 * SENT <= packets["started"] <= 2 * SENT + FEW
    assert_balanced(document)
    assert packets["dropped"] == packets["collided"] == 0
    # IP may get inner packets of tunnels as a list.
    in_list = rx("netif_receive_skb").get("udpv6_rcv", 0)
    assert in_list + rx("netif_receive_skb")["ipv6_rcv"] <= 2 * SENT
    # Linux 5.10 skips a kprobe that interrupts another's program.
    unseen = SENT // 4 if host.machine.kernel == "5.10" else document["events_lost"]
    assert packets["abandoned"] <= unseen + FEW
    assert list(rx("ipv6_rcv")) == ["udpv6_rcv"]
    assert 2 * SENT - unseen <= in_list + rx("ipv6_rcv")["udpv6_rcv"] <= 2 * SENT
    assert SENT - unseen <= rx("udpv6_rcv")["gro_cells_receive"] <= SENT
    # (One that its reader takes at the moment in which the socket reports it may have both spans.)
    assert 2 * SENT - unseen <= sum(rx("udpv6_rcv").values()) <= 2 * SENT + 1
    assert passed(document, "rx", end="netif_receive_skb") == 2 * SENT
    # On the tunnel, and on the wire below it.
    assert passed(document, "tx", end="net_dev_start_xmit") == 2 * SENT
    assert ways(document, "tx", "net_dev_start_xmit") == {"net_dev_queue": SENT, "netif_rx": SENT}


def outer(end: str) -> str:
    return f"fd77::{ENDS.index(end) + 1}"


def inner(name: str, end: str) -> str:
    return f"fd77:{list(TUNNELS).index(name) + 1}::{ENDS.index(end) + 1}"


def make(host: Host) -> None:
    """Two namespaces joined by a veth pair, with the tunnels over it, and static neighbours."""
    settings = [f"net.ipv6.conf.default.{setting}" for setting in QUIET]
    for end in ENDS:
        host.check(["ip", "netns", "add", end])
        host.check(["ip", "netns", "exec", end, "sysctl", "-qw", *settings])
    host.check("ip link add wire netns left type veth peer name wire netns right")
    for end, other in zip(ENDS, reversed(ENDS), strict=True):
        lines = [
            "link set lo up",
            f"link set wire address {MACS[end]} addrgenmode none up",
            f"address add {outer(end)}/64 dev wire nodad",
            f"neighbour add {outer(other)} lladdr {MACS[other]} nud permanent dev wire",
        ]
        for name, (kind, _) in TUNNELS.items():
            lines += [
                f"link add {name} {kind.format(mine=outer(end), other=outer(other))}",
                f"link set {name} address {MACS[end]} addrgenmode none up",
                f"address add {inner(name, end)}/64 dev {name} nodad",
                f"neighbour add {inner(name, other)} lladdr {MACS[other]} nud permanent dev {name}",
            ]
        host.check(["ip", "-netns", end, "-batch", "-"], stdin="".join(f"{line}\n" for line in lines).encode())


def listening(host: Host) -> bool:
    return host.check(f"ip netns exec right ss --no-header --udp --listening 'sport = :{PORT}'") != ""
