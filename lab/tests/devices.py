"""Upper (stacked) devices in a guest: namespaces `left` and `right` with a wire for each kind.

A wire is a veth pair with such a device on both ends, or with a bridge or router between. Its network is
10.77.N.0/24, with .1 on the left and .2 on the right; through a tunnel 10.77.(N + 100).0/24. Neighbours are
static, so that no packet waits for address resolution.
"""

from lab import Host
from lab.waiting import wait_until

WIRES = ("veth", "vlan", "bond", "bridge", "macvlan", "macvtap", "vxlan", "geneve", "overgre", "switched", "routed")
ENDS = ("left", "right")
TUNNELS = ("vxlan", "geneve", "overgre")

# The devices on top of a wire's ends, and those that they become ports of, as arguments of `ip link add`.
ON_TOP = {
    "vlan": "link {raw} type vlan id 7",
    "macvlan": "link {raw} type macvlan mode private",
    "macvtap": "link {raw} type macvtap mode private",
    "vxlan": "type vxlan id 7 dstport 4789 local {mine} remote {other}",
    "geneve": "type geneve id 7 remote {other}",
    # (gre0 and gretap0 are the kernel's own.)
    "overgre": "type gretap key 7 local {mine} remote {other}",
}
MASTERS = {"bond": "type bond mode active-backup miimon 10", "bridge": "type bridge forward_delay 0"}

NO_OTHER_PACKETS = "net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1"


def address(wire: str, end: str, inner: bool = True) -> str:
    """The address of a program on an end: through the tunnel, if the wire has one, or outside."""
    return f"10.77.{_number(wire, inner)}.{ENDS.index(end) + 1}"


def mac(wire: str, end: str, inner: bool = True) -> str:
    """The MAC of the device that has this address."""
    return f"02:00:00:77:{_number(wire, inner):02x}:{ENDS.index(end) + 1:02x}"


def device(wire: str) -> str:
    """The name of that device, on both ends."""
    return f"{wire}0" if wire in (*ON_TOP, *MASTERS) else f"{wire}-raw"


def make(host: Host, *wires: str) -> None:
    """Creates the namespaces with some wires; waits until they carry packets."""
    for name in (*ENDS, "between"):
        host.check(f"ip netns add {name} && ip netns exec {name} sysctl -qw {NO_OTHER_PACKETS} net.ipv4.ip_forward=1")
    _batch(host, "", [line for wire in wires for line in _pairs(wire)])
    for name in ENDS:
        _batch(host, name, ["link set lo up", *(line for wire in wires for line in _end(wire, name))])
    _batch(host, "between", [line for wire in wires for line in _between(wire)])

    def carry() -> bool:
        shown = [host.check(f"ip -netns {name} -oneline link show up") for name in ENDS]
        return all(f"{device(wire)}:" in one.replace("@", ":") for wire in wires for one in shown) and not any(
            "NO-CARRIER" in one for one in shown
        )

    wait_until(carry, "all devices carry packets")


def _number(wire: str, inner: bool) -> int:
    return WIRES.index(wire) + (100 if inner and wire in TUNNELS else 0)


def _batch(host: Host, name: str, lines: list[str]) -> None:
    """Runs a batch of `ip` commands in a namespace."""
    where = ["-netns", name] if name else []
    host.check(["ip", *where, "-batch", "-"], stdin="".join(f"{line}\n" for line in lines).encode())


def _pairs(wire: str) -> list[str]:
    """A pair from left to right, or from each to the device between."""
    if wire not in ("switched", "routed"):
        return [f"link add {wire}-raw netns left type veth peer name {wire}-raw netns right"]
    return [f"link add {wire}-raw netns {end} type veth peer name {wire}-{end} netns between" for end in ENDS]


def _end(wire: str, end: str) -> list[str]:
    """One end: its devices, its address, and its neighbour."""
    (other,) = {*ENDS} - {end}
    raw, top = f"{wire}-raw", device(wire)
    lines = [f"link set {raw} up"]
    if wire in TUNNELS:
        lines += _addressed(wire, end, other, raw, inner=False)
    if wire in ON_TOP:
        mine, far = (address(wire, one, inner=False) for one in (end, other))
        lines.append(f"link add {top} {ON_TOP[wire].format(raw=raw, mine=mine, other=far)}")
    if wire in MASTERS:
        lines += [
            f"link add {top} {MASTERS[wire]}",
            f"link set {raw} down",
            f"link set {raw} master {top}",
            f"link set {raw} up",
        ]
    return [*lines, *_addressed(wire, end, other, top)]


def _addressed(wire: str, end: str, other: str, dev: str, inner: bool = True) -> list[str]:
    mine, far = address(wire, end, inner), address(wire, other, inner)
    beyond = f"02:00:00:77:ff:{ENDS.index(end):02x}" if wire == "routed" else mac(wire, other, inner)
    return [
        f"link set {dev} address {mac(wire, end, inner)} up",
        f"address add {mine}/32 dev {dev}",
        f"route add {far} dev {dev} src {mine}",
        f"neighbour add {far} lladdr {beyond} nud permanent dev {dev}",
    ]


def _between(wire: str) -> list[str]:
    """A bridge, or a router."""
    if wire == "switched":
        ports = [f"link set switched-{end} master switch up" for end in ENDS]
        return ["link add switch type bridge forward_delay 0", *ports, "link set switch up"]
    if wire == "routed":
        return [line for end in ENDS for line in _routed(end)]
    return []


def _routed(end: str) -> list[str]:
    dev, far = f"routed-{end}", address("routed", end)
    return [
        f"link set {dev} address 02:00:00:77:ff:{ENDS.index(end):02x} up",
        f"route add {far} dev {dev}",
        f"neighbour add {far} lladdr {mac('routed', end)} nud permanent dev {dev}",
    ]
