"""`nearpath show nics`: kinds of interface other than NICs, and other namespaces.

One table: what is created, and what nearpath must show for it. Names, masters and lower interfaces
must agree with `ip`.
"""

import json
from typing import Any

from lab import Host
from lab.fixtures import lab, representative

from .hosts import IGB, TWO_NODES

# By interface: arguments of `ip link add`, its kind, and a specific fact.
MADE: dict[str, tuple[str, str, dict[str, Any]]] = {
    "vlan7": ("link br0 name vlan7 type vlan id 7", "vlan", {"vlan": 7, "link": "br0"}),
    "macvlan1": ("link br0 name macvlan1 type macvlan", "macvlan", {"link": "br0"}),
    "macvtap1": ("link br0 name macvtap1 type macvtap", "macvtap", {"link": "br0"}),
    "bond1": ("bond1 type bond", "bond", {"driver": "bonding"}),
    "port1": ("port1 master bond1 type dummy", "other", {"master": "bond1"}),
    "bridge1": ("bridge1 type bridge", "bridge", {"driver": "bridge"}),
    "veth1": ("veth1 master bridge1 type veth peer name veth2", "veth", {"link": "veth2", "master": "bridge1"}),
    "gre1": ("gre1 type gretap remote 10.9.0.254", "tunnel", {}),
    "vxlan1": ("vxlan1 type vxlan id 9 remote 10.9.0.254 dstport 4789", "tunnel", {}),
    "geneve1": ("geneve1 type geneve id 9 remote 10.9.0.254", "tunnel", {}),
    "ifb7": ("ifb7 type ifb", "other", {}),
}


def nics(host: Host, options: str = "") -> dict[str, dict[str, Any]]:
    """The NICs that nearpath shows, by name."""
    return {nic["name"]: nic for nic in json.loads(host.check(f"nearpath show nics --json {options}"))["nics"]}


def links(host: Host, options: str = "") -> dict[str, dict[str, Any]]:
    """The interfaces that ip shows, by name."""
    return {link["ifname"]: link for link in json.loads(host.check(f"ip {options} -json -details link"))}


@representative
@lab(topology=TWO_NODES, nics=IGB)
def test_kinds(host: Host) -> None:
    host.check(["ip", "-batch", "-"], stdin="".join(f"link add {made}\n" for made, _, _ in MADE.values()).encode())
    host.check("modprobe tun && ip tuntap add tap1 mode tap && ip tuntap add tun1 mode tun")
    shown, tool = nics(host), links(host)
    assert shown.keys() == tool.keys() >= MADE.keys()
    for name, (_, kind, facts) in MADE.items():
        assert shown[name]["kind"] == kind
        assert shown[name].items() >= facts.items()
    assert (shown["tap1"]["kind"], shown["tun1"]["kind"]) == ("tap", "tap")
    for name, nic in shown.items():
        assert (nic["master"], nic["link"]) == (tool[name].get("master"), tool[name].get("link"))
        assert nic["vlan"] == tool[name].get("linkinfo", {}).get("info_data", {}).get("id" if name == "vlan7" else "")


@lab(topology=TWO_NODES, nics=IGB)
def test_a_virtual_function_has_the_node_of_its_nic(host: Host) -> None:
    host.check("modprobe igbvf && echo 1 >/sys/class/net/nic0/device/sriov_numvfs")
    name = host.check("ls /sys/class/net/nic0/device/virtfn0/net").strip()
    host.check(f"ip link set {name} up")
    physical, virtual = (nics(host)[nic] for nic in ("nic0", name))
    assert (physical["kind"], physical["physical_function"]) == ("physical", None)
    assert (virtual["kind"], virtual["physical_function"]) == ("vf", "nic0")
    assert (virtual["driver"], virtual["numa_node"]) == ("igbvf", host.machine.nics[0].node)
    # Its queues' interrupts exist since it is up, named like those of igb.
    for way in ("rx", "tx"):
        (queue,) = virtual[f"{way}_queues"]
        assert host.check(f"grep {name}-{way}-0 /proc/interrupts").split(":")[0].strip() == str(queue["irq"])


@lab(topology=TWO_NODES, nics=IGB)
def test_another_namespace(host: Host) -> None:
    host.check("ip netns add other && ip link add veth1 type veth peer name veth2 netns other")
    inode = int(host.check("stat --dereference --format=%i /run/netns/other"))
    shown, tool = nics(host, "--netns other"), links(host, "-netns other")
    assert shown.keys() == tool.keys() == {"lo", "veth2"}
    for name, nic in shown.items():
        assert (nic["ifindex"], nic["address"]) == (tool[name]["ifindex"], tool[name]["address"])
        assert nic["netns"] == {"name": "other", "inode": inode}
    here = nics(host)
    # The other end is in a namespace that is not shown, and is not confused with a local interface.
    assert "veth2" not in here
    assert (here["veth1"]["kind"], here["veth1"]["link"]) == ("veth", None)
