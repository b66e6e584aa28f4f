"""`nearpath bench paths` to a virtual host and to virtual machines in it: by a tap in Open vSwitch, or in a bridge, or
to which XDP redirects frames, and by a macvtap.

The probes come from a NIC of the same virtual host, in a network namespace of its own, through the peer's bridge and
the other NIC. The judges are the guests, which count the probes that they have taken.
"""

import json
import subprocess
import tempfile
from pathlib import Path as FilePath
from typing import Any, NamedTuple

from lab import Host, Nic
from lab.fixtures import lab
from lab.payload import PROJECT
from lab.vms import TinyVm, device_of, macvtap, start_program

from .hosts import TWO_NODES

NICS = (Nic("virtio", node=1), Nic("igb", node=0))
# The NIC that the paths begin at, and that of the prober.
NIC, PROBER = "nic1", "nic0"
RATE, SECONDS, ROUNDS, SIZE = 25, 2, 1, 64
# What stands before a datagram's payload where the guest counts: virtio, Ethernet, IPv4, UDP.
HEADERS = 12 + 14 + 20 + 8
STAGES = ("handler_to_vhost", "vhost_to_kvm", "kvm_to_guest", "whole")


class Path(NamedTuple):
    """A way to a guest."""

    vlan: int  # Of the NIC; 0: none.
    mac: str
    commands: str  # What makes it, with what it is on.
    tap: str

    @property
    def address(self) -> str:
        """The guest's."""
        return f"10.9.{1 + self.vlan}.{int(self.mac[-2:])}"


def tap(name: str) -> str:
    """Commands that make a tap."""
    return f"ip tuntap add dev {name} mode tap vnet_hdr && ip link set {name} up"


def redirected_by_xdp(mode: str) -> str:
    """Commands that make a tap, and redirect the frames for its guest to it. Answers go another way: tc sends them to
    the NIC, which has no interface with the guest's address, and so takes its frames only if it takes all."""
    return (
        f"{tap('tap3')} && tc qdisc add dev tap3 clsact && ip link set {NIC} promisc on"
        f" && tc filter add dev tap3 ingress matchall action mirred egress redirect dev {NIC}"
        " && bpftool prog load /tmp/to_tap.o /sys/fs/bpf/to_tap pinmaps /sys/fs/bpf"
        " && bpftool map update pinned /sys/fs/bpf/tap key 0 0 0 0 value $(cat /sys/class/net/tap3/ifindex) 0 0 0"
        f" && bpftool net attach {mode} pinned /sys/fs/bpf/to_tap dev {NIC}"
    )


PATHS = {
    "ovs": Path(
        10,
        "52:54:00:aa:00:10",
        f"{tap('tap0')} && ovs-vsctl add-port br0 {NIC}.10 -- add-port br0 tap0",
        "tap0",
    ),
    "bridge": Path(
        20,
        "52:54:00:aa:00:20",
        f"{tap('tap1')} && ip link add br1 type bridge && ip link set {NIC}.20 master br1"
        " && ip link set tap1 master br1 && ip link set br1 up"
        " && bridge fdb add 52:54:00:aa:00:20 dev tap1 master static",
        "tap1",
    ),
    "macvtap": Path(0, "52:54:00:aa:00:30", macvtap(NIC, "tap2", "52:54:00:aa:00:30"), "tap2"),
    "xdp": Path(0, "52:54:00:aa:00:40", redirected_by_xdp("xdpdrv"), "tap3"),
    "generic xdp": Path(0, "52:54:00:aa:00:40", redirected_by_xdp("xdpgeneric"), "tap3"),
}


def joined_nics(host: Host) -> None:
    """Joins both NICs outside, and gives that of the prober a network namespace."""
    wire = "ip link add wire type bridge && ip link set wire up"
    ports = " && ".join(f"ip link set tap{index} master wire" for index in range(2))
    joined = host.peer.run(["sh", "-c", f"{wire} && {ports}"])
    assert joined.status == 0, joined
    host.check(
        f"ovs-vsctl del-port br0 {PROBER} && ip netns add prober && ip link set {PROBER} netns prober"
        f" && ip -n prober link set lo up && ip -n prober link set {PROBER} up"
        f" && ip -n prober address add 10.9.1.200/24 dev {PROBER}"
    )


def bring_up(host: Host, names: tuple[str, ...]) -> dict[str, TinyVm]:
    """The paths with a guest each that answers, and a reflector on the host."""
    joined_nics(host)
    host.check(
        "modprobe -a tun macvtap kvm_amd vhost_net 8021q bridge"
        " && ovs-vsctl set Open_vSwitch . other_config:max-idle=600000"
    )
    vms = {}
    for number, name in enumerate(names):
        path = PATHS[name]
        prober = add_vlan(host, path.vlan) if path.vlan else PROBER
        if name.endswith("xdp"):
            host.write("/tmp/to_tap.o", compiled("to_tap.bpf.c"))
        host.check(path.commands)
        words = ["-e", "-c", str(1 + number % 3)]
        device = device_of(host, path.tap) if name == "macvtap" else path.tap
        vms[name] = start_program(host, [*words, device], f"vm-{name.replace(' ', '-')}")
        host.check(
            f"ip -n prober neighbour replace {path.address} lladdr {path.mac} dev {prober} nud permanent"
            + (f" && ovs-appctl fdb/add br0 {path.tap} 0 {path.mac}" if name == "ovs" else "")
        )
    host.start(["nearpath", "bench", "reflect", "--bind", host.machine.address(1)])
    return vms


def add_vlan(host: Host, vlan: int) -> str:
    """A network of its own between both NICs; the prober's interface."""
    prober = f"{PROBER}.{vlan}"
    host.check(
        f"ip link add link {NIC} name {NIC}.{vlan} type vlan id {vlan} && ip link set {NIC}.{vlan} up"
        f" && ip -n prober link add link {PROBER} name {prober} type vlan id {vlan}"
        f" && ip -n prober link set {prober} up && ip -n prober address add 10.9.{1 + vlan}.200/24 dev {prober}"
    )
    return prober


def compiled(source: str) -> bytes:
    """A BPF program of lab/vm."""
    with tempfile.TemporaryDirectory() as folder:
        program = FilePath(folder) / "program.o"
        words = ["clang", "-O2", "-g", "-target", "bpf", "-c", PROJECT / "lab/vm" / source, "-o", program]
        subprocess.run(words, check=True)
        return program.read_bytes()


def compared(host: Host, names: tuple[str, ...], *options: str) -> dict[str, Any]:
    """The document of `bench paths`."""
    return of_targets(host, [f"{name}={PATHS[name].address}:9000" for name in names], *options)


def of_targets(host: Host, targets: list[str], *options: str) -> dict[str, Any]:
    """The same, with the targets besides the host as options."""
    return of_only(host, [f"host={host.machine.address(1)}", *targets], *options)


def of_only(host: Host, targets: list[str], *options: str) -> dict[str, Any]:
    """The same, with all targets as options."""
    times = ["--rate", str(RATE), "--for", f"{SECONDS}s", "--rounds", str(ROUNDS), "--late-after", "5s"]
    words = ["nearpath", "bench", "paths", *targets, "--from", "prober", *times, "--size", str(SIZE), "--json"]
    document: dict[str, Any] = json.loads(host.check([*words, *options], timeout_s=600))
    return document


def assert_every_stage_passed(row: dict[str, Any], vm: TinyVm, tap: str) -> None:
    """Without load: each probe was followed to the guest, and nothing but the probes."""
    sent = RATE * SECONDS * ROUNDS
    assert (row["sent"], row["received"], row["lost"], row["not_split"]) == (sent, sent, 0, None), row
    queue = row["vm"]["queue"]
    assert (row["vm"]["pid"], queue["tap"], queue["queue"]) == (vm.pid, tap, 0), row
    counts = {span["span"]: span["count"] for span in queue["spans"]}
    assert all(counts[stage] == sent for stage in STAGES), counts
    # Where NET_RX polls already, a packet has no interrupt of its own.
    assert counts["interrupt_to_handler"] >= sent / 2, counts
    whole = next(span for span in queue["spans"] if span["span"] == "whole")
    assert whole["p50_ns"] < row["percentiles"]["50"], "the way in is a part of the round trip"


def is_whole(report: dict[str, Any]) -> bool:
    """Whether no probe was lost without load: where the machine stands still, answers come too late."""
    return all(row["lost"] == 0 for row in report["paths"] if row["load"] == "none")


def assert_paths_split(host: Host, names: tuple[str, ...]) -> None:
    """Every path without load and with nearpath's own, which goes to the same port of the same guest."""
    vms = bring_up(host, names)
    reports: list[dict[str, Any]] = []
    while not reports or (not is_whole(reports[-1]) and len(reports) < 3):
        reports.append(compared(host, names, "--load", "none,udp", "--load-rate", "560k", "--seed", "7"))
    rows = {(row["path"], row["load"]): row for row in reports[-1]["paths"]}
    print(f"tries: {len(reports)}", json.dumps(reports[-1]["order"]), reports[-1]["notes"])
    assert reports[-1]["seed"] == 7
    assert sorted(map(tuple, reports[-1]["order"])) == sorted([*rows] * ROUNDS), "each once a round"
    for load in ("none", "udp"):
        row = rows["host", load]
        assert row["vm"] is None and f"this host itself ({NIC})" in row["not_split"], row
    for name, vm in vms.items():
        assert_every_stage_passed(rows[name, "none"], vm, PATHS[name].tap)
        loaded = rows[name, "udp"]
        own = loaded["own_load"]
        assert own["answered"] >= 0.5 * own["sent"] > 0, loaded
        entered = {span["span"]: span["count"] for span in loaded["vm"]["queue"]["spans"]}["whole"]
        assert loaded["received"] <= entered <= loaded["sent"], loaded
        # The guest's own count: all probes that were sent, and none that nearpath has not sent.
        notes = vm.end().notes
        assert len(notes) < 8192, "it has notes of all"
        probes = [n for n in notes if n.payload[:4] == b"npL1" and n.length == HEADERS + SIZE]
        of_path = [row for report in reports for row in report["paths"] if row["path"] == name]
        sent = sum(row["sent"] + row["uncounted"] for row in of_path)
        # Those that are lost may have reached it or not, and so may those that do not count, where any are.
        least = sum(row["received"] for row in of_path) + rows[name, "none"]["uncounted"]
        assert least <= len(probes) <= sent, (len(probes), least, sent)


@lab(kernels=("6.12",), topology=TWO_NODES, nics=NICS)
def test_stages_of_a_tap_and_a_macvtap_are_those_of_their_guests(host: Host) -> None:
    assert_paths_split(host, ("ovs", "macvtap"))


@lab(kernels=("6.1", "6.12", "7.2"), topology=TWO_NODES, nics=NICS)
def test_every_path_is_split(host: Host) -> None:
    assert_paths_split(host, ("ovs", "bridge", "macvtap", "xdp"))


@lab(kernels=("6.1", "6.12", "7.2"), topology=TWO_NODES, nics=NICS)
def test_a_generic_redirect_is_split(host: Host) -> None:
    """Of the kernel's own XDP, by which frames are sk_buffs already. It cannot be on a NIC beside the driver's."""
    assert_paths_split(host, ("generic xdp",))
