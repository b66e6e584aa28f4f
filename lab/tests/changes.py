"""Changes of a guest, and what nearpath must show after them.

A table of commands in execution order: for each, the NIC models whose driver
supports it (the others must refuse), and what nearpath's document must then contain.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lab import Machine

EVERY_MODEL = frozenset({"igb", "virtio", "e1000e", "vmxnet3"})

# The interrupts of nic0's device; those of a virtio device belong to its PCI function.
IRQS = "$(ls /sys/class/net/nic0/device/msi_irqs || ls /sys/class/net/nic0/device/../msi_irqs)"
QUEUES = "/sys/class/net/nic0/queues"


@dataclass(frozen=True)
class Change:
    """A change of a guest, and what the document has after it, but not before."""

    name: str
    command: str
    shown: Callable[[dict[str, Any]], Any]
    value: Any
    taken_by: frozenset[str] = EVERY_MODEL
    # Models whose driver did not support it on Linux 5.10.
    later: frozenset[str] = frozenset()

    def is_taken(self, machine: Machine) -> bool:
        """Whether the driver of a machine's nic0 supports it."""
        model = machine.nics[0].model
        return model in self.taken_by and not (machine.kernel == "5.10" and model in self.later)


def _nic(name: str, *path: str) -> Callable[[dict[str, Any]], Any]:
    """A fact of a NIC, by the path to it; `None` where there is none."""

    def find(shown: dict[str, Any]) -> Any:
        found: Any = next((nic for nic in shown["nics"] if nic["name"] == name), None)
        for step in path:
            found = None if found is None else found.get(step)
        return found

    return find


def _queues(field: str, queue: int | None = None) -> Callable[[dict[str, Any]], Any]:
    """The values of a field of nic0's queues, or of those with one number; a direction
    without the field is omitted."""

    def find(shown: dict[str, Any]) -> Any:
        queues = (found for found in shown["queues"] if found["nic"] == "nic0")
        return {found[field] for found in queues if queue in (None, found["queue"]) and found[field] is not None}

    return find


def _qdiscs(shown: dict[str, Any]) -> Any:
    return [(qdisc["kind"], qdisc["handle"], qdisc["parent"]) for qdisc in _nic("nic0", "qdiscs")(shown)]


def _shares(shown: dict[str, Any]) -> Any:
    """The share of the RSS table that each queue has."""
    table = _nic("nic0", "rss", "indirection")(shown) or []
    return [table.count(queue) / len(table) for queue in sorted(set(table))]


def _huge_pages(shown: dict[str, Any]) -> Any:
    return shown["nodes"][0]["hugepages"][str(2 << 20)]["total"]


CHANGES = (
    Change("mtu", "ip link set nic0 mtu 1400", _nic("nic0", "mtu_bytes"), 1400),
    Change(
        "channels",
        "ethtool -L nic0 combined 2",
        lambda shown: (_nic("nic0", "channels", "combined")(shown), len(_nic("nic0", "rx_queues")(shown))),
        (2, 2),
        frozenset({"igb", "virtio"}),
    ),
    Change(
        "rings",
        "ethtool -G nic0 rx 128",
        _nic("nic0", "rings", "rx"),
        128,
        later=frozenset({"virtio"}),
    ),
    Change(
        "coalescing",
        "ethtool -C nic0 rx-usecs 50",
        _nic("nic0", "coalesce", "rx-usecs"),
        50,
        frozenset({"igb", "e1000e"}),
    ),
    Change("offloads", "ethtool -K nic0 gro off", _nic("nic0", "offloads", "rx-gro"), False),
    Change(
        "rss",
        "ethtool -X nic0 weight 1 3",
        _shares,
        [1 / 4, 3 / 4],
        frozenset({"igb", "virtio", "vmxnet3"}),
        later=frozenset({"virtio"}),
    ),
    Change(
        "affinity",
        f"for irq in {IRQS}; do echo $((irq % 2 * 2)) >/proc/irq/$irq/smp_affinity_list; done",
        _queues("affinity"),
        {"0", "2"},
    ),
    # A different mask for each queue.
    Change(
        "rps",
        f"for queue in {QUEUES}/rx-*; do printf %x $((4 + ${{queue##*-}})) >$queue/rps_cpus; done",
        _queues("rps_cpus", 0),
        {"2"},
    ),
    Change("rfs", f"echo 256 >{QUEUES}/rx-0/rps_flow_cnt", _queues("rps_flow_cnt", 0), {256}),
    Change(
        "xps",
        f"for queue in {QUEUES}/tx-*; do printf %x $((4 + ${{queue##*-}})) >$queue/xps_cpus; done",
        _queues("xps_cpus", 0),
        {"2"},
        # A NIC with one queue has no choice.
        frozenset({"igb", "virtio", "vmxnet3"}),
    ),
    Change(
        "xps_by_rx_queue",
        f"echo 2 >{QUEUES}/tx-1/xps_rxqs",
        lambda shown: [queue["xps_rxqs"] for queue in _nic("nic0", "tx_queues")(shown)][:2],
        [[], [1]],
        frozenset({"igb", "virtio", "vmxnet3"}),
    ),
    Change(
        "qdiscs",
        "tc qdisc replace dev nic0 root handle 1: prio"
        " && tc qdisc add dev nic0 parent 1:2 handle 8001: netem limit 77 && tc qdisc add dev nic0 clsact",
        _qdiscs,
        [("prio", "1:0", "root"), ("netem", "8001:0", "1:2"), ("clsact", "ffff:0", "ingress")],
    ),
    Change(
        "ovs_internal_port",
        "ovs-vsctl add-port br0 port1 -- set interface port1 type=internal",
        _nic("port1", "kind"),
        "ovs_internal",
    ),
    Change(
        "ovs_tunnel",
        "ovs-vsctl add-port br0 vxlan1 -- set interface vxlan1 type=vxlan options:remote_ip=10.9.0.254",
        lambda shown: [_nic("vxlan_sys_4789", field)(shown) for field in ("kind", "master")],
        ["tunnel", "ovs-system"],
    ),
    Change("state", "ip link set br0 down", _nic("br0", "state"), "down"),
    Change(
        "huge_pages",
        "echo 2 >/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages",
        _huge_pages,
        2,
    ),
)
