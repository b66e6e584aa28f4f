"""`nearpath bench paths` to a Linux guest by KVM and vhost, which answers with nearpath's own reflector.

The judge is the guest's kernel, which counts the datagrams that it has received.
"""

from typing import Any

from lab import Host, linux_guest
from lab.fixtures import lab

from .hosts import TWO_NODES
from .linux_guests import payload, start_guest
from .test_bench_paths import NIC, NICS, RATE, ROUNDS, SECONDS, add_vlan, bring_up, is_whole, of_targets

__all__ = ["payload"]

VLAN, MAC, TAP_NAME = 50, "52:54:00:aa:00:50", "tap5"
ADDRESS = f"10.9.{1 + VLAN}.50"


def received(host: Host) -> int:
    """Datagrams of UDP that the guest's kernel has received."""
    command = f"echo cat /proc/net/snmp | ip netns exec prober busybox nc {ADDRESS} {linux_guest.SHELL_PORT}"
    names, counts = (line.split() for line in host.check(command).splitlines() if line.startswith("Udp:"))
    return int(dict(zip(names, counts, strict=True))["InDatagrams"])


@lab(kernels=("6.12",), topology=TWO_NODES, nics=NICS)
def test_the_way_into_a_linux_guest_is_split(host: Host) -> None:
    bring_up(host, ())
    add_vlan(host, VLAN)
    host.check(f"ovs-vsctl add-port br0 {NIC}.{VLAN}")
    qemu = start_guest(host, TAP_NAME, MAC, ADDRESS)
    before = received(host)
    reports: list[dict[str, Any]] = []
    while not reports or (not is_whole(reports[-1]) and len(reports) < 3):
        target = f"linux={ADDRESS}:{linux_guest.REFLECTOR_PORT}"
        reports.append(of_targets(host, [target], "--load", "none"))
    counted = received(host) - before
    rows = [row for report in reports for row in report["paths"] if row["path"] == "linux"]
    assert counted == sum(row["sent"] + row["uncounted"] for row in rows), (counted, rows)
    row = rows[-1]
    sent = RATE * SECONDS * ROUNDS
    assert (row["sent"], row["received"], row["not_split"]) == (sent, sent, None), row
    queue = row["vm"]["queue"]
    assert (row["vm"]["pid"], row["vm"]["name"], queue["tap"]) == (qemu.pid, "web1", TAP_NAME), row["vm"]
    counts = {span["span"]: span["count"] for span in queue["spans"]}
    print(counts, queue["without_interrupt"])
    assert counts["handler_to_vhost"] == sent, counts
    # While the guest polls its ring, it wants no interrupt: the way ends there.
    assert counts["whole"] == counts["kvm_to_guest"] == sent - queue["without_interrupt"] >= 0.8 * sent, counts
