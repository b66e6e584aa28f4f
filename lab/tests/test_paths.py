"""The printed path is the one that packets took: over VLAN, bond, bridge, macvlan, macvtap, tap, VXLAN,
Geneve, GRE, a switch and a router, while other programs get a copy of each packet.

A known number of datagrams goes over each wire of a guest (devices.py), different for
each, so that the counts of all spans are correct in only one way.
"""

from lab import Host, Job
from lab.fixtures import lab
from lab.waiting import ended, start_measuring, wait_until

from . import devices
from .hosts import IGB, TWO_NODES
from .spans import assert_balanced, passed, ways

PORT = 7000

# Datagrams over each wire.
SENT = {wire: 11 + number for number, wire in enumerate(devices.WIRES)}
# And through a tap: written by a program, and sent by another one for the first to read.
WRITTEN, READ = 31, 32
TAP, BEHIND_TAP = "10.77.200.2", "10.77.200.1"
TAP_MAC, BEHIND_TAP_MAC = "02:00:00:77:c8:02", "02:00:00:77:c8:01"

READER = f"""
import socket
reader = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
reader.bind(("", {PORT}))
while True:
    reader.recv(2048)
"""

# Like tcpdump: gets a copy of everything that the namespace receives and sends (ETH_P_ALL).
LISTENER = """
import socket
listener = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
while True:
    listener.recv(2048)
"""

# Arguments: pairs of address and number.
SENDER = f"""
import socket, sys
for address, number in zip(sys.argv[1::2], sys.argv[2::2]):
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for _ in range(int(number)):
        sender.sendto(bytes(100), (address, {PORT}))
"""

# The other side of a tap, or of a macvtap: writes frames with datagrams, then reads some.
# Arguments: device, MACs and addresses of destination and source, how many to write, how many to read.
FRAMES = f"""
import fcntl, glob, os, socket, struct, sys
device, to_mac, from_mac, to, source, write, read = sys.argv[1:]
path = "/dev/net/tun"
for number in glob.glob(f"/sys/class/net/{{device}}/tap*/dev"):
    path = f"/run/{{device}}-{{os.getpid()}}"
    os.mknod(path, 0o20600, os.makedev(*map(int, open(number).read().split(":"))))
frames = os.open(path, os.O_RDWR)
# TUNSETIFF, with IFF_TAP | IFF_NO_PI: frames and nothing else.
fcntl.ioctl(frames, 0x400454CA, struct.pack("16sH22x", device.encode(), 0x1002))
addresses = socket.inet_aton(source) + socket.inet_aton(to)
header = struct.pack("!BBHHHBBH", 0x45, 0, 128, 0, 0x4000, 64, 17, 0) + addresses
total = sum(struct.unpack("!10H", header))
header = header[:10] + struct.pack("!H", 0xFFFF - total % 0xFFFF) + header[12:]
ethernet = bytes.fromhex((to_mac + from_mac).replace(":", "")) + b"\\x08\\x00"
for _ in range(int(write)):
    os.write(frames, ethernet + header + struct.pack("!HHHH", {PORT}, {PORT}, 108, 0) + bytes(100))
open(f"/run/{{device}}-{{to}}", "w")
taken = 0
while taken < int(read):
    taken += os.read(frames, 2048)[12:14] == b"\\x08\\x00"
"""


@lab(topology=TWO_NODES, nics=IGB)
def test_the_printed_path_is_the_one_taken(host: Host) -> None:
    devices.make(host, *devices.WIRES)
    make_tap(host)
    for namespace in (*devices.ENDS, "between"):
        host.start(inside(namespace, LISTENER))
    host.start(inside("right", READER))
    right = host.start(frames("right", "macvtap", 0, SENT["macvtap"]))
    wait_until(lambda: listening(host), "all programs listen")
    measuring = start_measuring(host, "measure", "stages", "--proto", "udp", "--host", "10.77.0.0/16")

    finished(host.start(frames("left", "macvtap", SENT["macvtap"], 0)))
    finished(right)
    ours = [word for wire in SENT if wire != "macvtap" for word in (devices.address(wire, "right"), str(SENT[wire]))]
    host.check(inside("left", SENDER, *ours))
    tap = host.start(
        ["ip", "netns", "exec", "right", "python3", "-c", FRAMES, "tap0", TAP_MAC, BEHIND_TAP_MAC]
        + [TAP, BEHIND_TAP, str(WRITTEN), str(READ)]
    )
    wait_until(lambda: host.run(f"test -e /run/tap0-{TAP}").status == 0, "the frames are written")
    host.check(inside("right", SENDER, BEHIND_TAP, str(READ)))
    finished(tap)
    delivered = sum(SENT.values()) - SENT["macvtap"] + WRITTEN
    tunnels = SENT["vxlan"] + SENT["geneve"]
    wait_until(lambda: datagrams(host) == delivered + tunnels, "the reader has got all")
    document = ended(measuring)

    twice = SENT["switched"] + SENT["routed"]
    received = sum(SENT.values()) + twice + WRITTEN
    sent = sum(SENT.values()) + twice + READ
    packets = document["packets"]
    assert packets["started"] == received + sent
    assert_balanced(document)
    assert packets["dropped"] == packets["collided"] == 0
    assert packets["abandoned"] <= 2

    def rx(begin: str) -> dict[str, int]:
        return ways(document, "rx", begin)

    # IP may get inner packets of tunnels as a list.
    in_list = rx("netif_receive_skb").get("udp_rcv", 0)
    assert in_list <= tunnels + SENT["overgre"]
    # (GRE's inner packets start after decapsulation, since the filter matches UDP.)
    by_ip = (
        SENT["veth"]
        + SENT["bridge"]
        + 2 * tunnels
        + SENT["overgre"]
        + SENT["switched"]
        + 2 * SENT["routed"]
        + WRITTEN
        - in_list
    )
    assert rx("netif_receive_skb") == {
        "vlan_do_receive": SENT["vlan"],
        "bond_handle_frame": SENT["bond"],
        "br_handle_frame": SENT["bridge"] + SENT["switched"],
        "macvlan_handle_frame": SENT["macvlan"] + SENT["macvtap"],
        "ip_rcv": by_ip,
    } | ({"udp_rcv": in_list} if in_list else {})
    assert rx("vlan_do_receive") == {"ip_rcv": SENT["vlan"]}
    assert rx("bond_handle_frame") == {"ip_rcv": SENT["bond"]}
    assert rx("br_handle_frame") == {"netif_receive_skb": SENT["bridge"], "net_dev_queue": SENT["switched"]}
    assert rx("macvlan_handle_frame") == {"ip_rcv": SENT["macvlan"], "tap_handle_frame": SENT["macvtap"]}
    assert rx("tap_handle_frame") == {"consume_skb": SENT["macvtap"]}
    assert rx("udp_rcv")["gro_cells_receive"] == tunnels
    assert sum(rx("udp_rcv").values()) == delivered + tunnels
    # If a copy is still in use, the tunnel uses netif_rx instead of NAPI.
    assert sum(rx("gro_cells_receive").values()) == tunnels
    # (Packets written into a tap start there.)
    assert passed(document, "rx", end="netif_receive_skb") == received + SENT["bridge"] + tunnels - WRITTEN
    assert rx("ip_rcv") == {
        "udp_rcv": by_ip + SENT["vlan"] + SENT["bond"] + SENT["macvlan"] - SENT["routed"],
        "net_dev_queue": SENT["routed"],
    }

    # By two devices, except on the veth and on the tap themselves.
    direct = SENT["veth"] + 2 * twice
    upper = sum(SENT.values()) - SENT["veth"] - twice
    assert passed(document, "tx", end="net_dev_start_xmit") == direct + 2 * upper + READ
    started = ways(document, "tx", "net_dev_start_xmit")
    assert (started["net_dev_queue"], started["netif_rx"]) == (upper, direct + upper)
    # The program may read a frame before the tap has reported it.
    assert passed(document, "tx", end="consume_skb") == READ


def make_tap(host: Host) -> None:
    """A tap in `right`, for a program."""
    ip = "ip -netns right"
    host.check(
        f"modprobe tun && {ip} tuntap add tap0 mode tap"
        f" && {ip} link set tap0 address {TAP_MAC} up && {ip} address add {TAP}/24 dev tap0"
        f" && {ip} neighbour add {BEHIND_TAP} lladdr {BEHIND_TAP_MAC} nud permanent dev tap0"
    )


def inside(namespace: str, program: str, *arguments: str) -> list[str]:
    return ["ip", "netns", "exec", namespace, "python3", "-c", program, *arguments]


def frames(end: str, wire: str, write: int, read: int) -> list[str]:
    """The program at the other side of a wire's tap."""
    (other,) = {*devices.ENDS} - {end}
    macs = (devices.mac(wire, one) for one in (other, end))
    addresses = (devices.address(wire, one) for one in (other, end))
    return inside(end, FRAMES, devices.device(wire), *macs, *addresses, str(write), str(read))


def listening(host: Host) -> bool:
    """Whether a program listens in each namespace, and those that read do."""
    sockets = [host.check(f"ip netns exec {name} cat /proc/net/packet") for name in (*devices.ENDS, "between")]
    bound = host.check(f"ip netns exec right ss --no-header --udp --listening 'sport = :{PORT}'")
    opened = host.run(f"test -e /run/macvtap0-{devices.address('macvtap', 'left')}").status == 0
    return all(len(one.splitlines()) > 1 for one in sockets) and bound != "" and opened


def datagrams(host: Host) -> int:
    """Datagrams that UDP has received in `right`, for programs and for tunnels."""
    lines = host.check("ip netns exec right cat /proc/net/snmp").splitlines()
    names, numbers = (line.split() for line in lines if line.startswith("Udp:"))
    return int(numbers[names.index("InDatagrams")])


def finished(job: Job) -> None:
    result = job.wait()
    assert result.status == 0, result
