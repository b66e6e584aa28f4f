"""Priorities on a CPU of their own: `measure irqs --by-priority`, and `tune plan --priority` without n-tuple rules.

The judge is a program in the guest with a packet socket for each CPU (PACKET_FANOUT_CPU): the kernel passes each
packet to that of the CPU that receives it. It knows the class of a packet by a mark in its payload.
"""

import json
from typing import Any

from lab import Host, Job
from lab.fixtures import lab
from lab.waiting import ended, start_measuring, wait_until

from .hosts import IGB, TWO_NODES, VIRTIO
from .steering import take_interrupts
from .test_tune_ethtool import everything

CPUS = range(4)
FRAMES = 10_000
PER_S = 300
# The wire of an emulated NIC may lose some: so many more are sent.
SPARE = 1.3
VLAN = 5
# Each with the PCP of its tag, if it has one, and its DSCP.
CLASSES: dict[str, tuple[int | None, int]] = {"3": (3, 0), "5": (5, 0), "0": (0, 0), "-": (None, 0), "E": (None, 46)}

# Arguments: the tap, the guest's MAC address and IP address, how many frames and how many a second, and the classes.
# Eight flows of each class.
SENDER = f"""
import json, socket, struct, sys, time
tap, mac, address, count, rate, classes = *sys.argv[1:4], int(sys.argv[4]), int(sys.argv[5]), json.loads(sys.argv[6])
out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
out.bind((tap, 0))
head = bytes.fromhex(mac.replace(":", "")) + bytes.fromhex("525400090000")
source = socket.inet_aton(address.rsplit(".", 1)[0] + ".254")
def frame(name, pcp, dscp, flow):
    data = b"CLASS" + name.encode() + bytes(26)
    udp = struct.pack("!HHHH", 20000 + flow, 9, 8 + len(data), 0) + data
    words = [0x4500 | dscp << 2, 20 + len(udp), 0, 0x4000, 64 << 8 | 17, 0,
        *struct.unpack("!HHHH", source + socket.inet_aton(address))]
    check = sum(words)
    words[5] = ~((check & 0xffff) + (check >> 16)) & 0xffff
    tag = b"" if pcp is None else struct.pack("!HH", 0x8100, pcp << 13 | {VLAN})
    return head + tag + b"\\x08\\0" + struct.pack("!10H", *words) + udp
frames = [frame(name, pcp, dscp, flow) for flow in range(8) for name, (pcp, dscp) in classes.items()]
start = time.monotonic()
for number in range(count):
    time.sleep(max(0, start + number / rate - time.monotonic()))
    out.send(frames[number % len(frames)])
"""

# Argument: the interface. Ends when no packet of the classes has come for a while after the first. Prints for each
# class how many came to each CPU.
JUDGE = """
import collections, json, os, select, socket, struct, sys, time
nic = sys.argv[1]
sockets = {}
for cpu in range(os.cpu_count()):
    one = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    one.bind((nic, 3))
    one.setsockopt(socket.SOL_SOCKET, 33, 8 << 20)  # SO_RCVBUFFORCE
    one.setsockopt(263, 18, 2 << 16 | os.getpid() & 0xffff)  # PACKET_FANOUT, PACKET_FANOUT_CPU
    sockets[one] = cpu
print("ready", flush=True)
found = collections.defaultdict(lambda: [0] * len(sockets))
last = time.monotonic() + 120
while time.monotonic() < last:
    ready, _, _ = select.select(list(sockets), [], [], 1)
    for one in ready:
        data, (_, _, kind, *_) = one.recvfrom(2048)
        at = data.find(b"CLASS")
        if at >= 0 and kind != socket.PACKET_OUTGOING:
            found[chr(data[at + 5])][sockets[one]] += 1
            last = time.monotonic() + 5
drops = sum(struct.unpack("II", one.getsockopt(263, 6, 8))[1] for one in sockets)
print(json.dumps({"found": found, "drops": drops}))
"""


def start_judge(host: Host, nic: str) -> Job:
    """Starts the judge, and waits until it sees packets."""
    host.check("rm -f /run/judge")
    job = host.start(["sh", "-c", 'exec python3 -c "$@" >/run/judge', "-", JUDGE, nic])
    wait_until(lambda: host.run("grep -q ready /run/judge").status == 0, "the judge is ready")
    return job


def received(host: Host, count: int, by: str = "pcp") -> tuple[dict[str, list[int]], dict[str, Any]]:
    """Sends mixed frames: where those of each class arrived, and nearpath's matrix."""
    # One interval: at each the kernel patches the branch where programs are counted, which emulation may execute then.
    options = (f"--by-priority={by}", "--interval", "10m")
    measuring = start_measuring(host, "measure", "irqs", "--nic", "nic0", *options)
    judge = start_judge(host, "nic0")
    sends = int(count * SPARE)
    words = ["tap0", host.machine.mac(0), host.machine.address(0), str(sends), str(PER_S), json.dumps(CLASSES)]
    sent = host.peer.run(["python3", "-c", SENDER, *words], timeout_s=60 + sends / PER_S)
    assert sent.status == 0, sent
    judged = judge.wait(120)
    assert judged.status == 0, judged
    document = ended(measuring, lines=True)
    report = json.loads(host.check("tail -n 1 /run/judge"))
    assert report["drops"] == 0, report
    found: dict[str, list[int]] = report["found"]
    assert sum(map(sum, found.values())) >= count, (found, host.check("ethtool -S nic0; ip -s link show nic0"))
    return found, document["priorities"]


def by_cpu(matrix: dict[str, Any], priority: int | None) -> list[int]:
    """The packets of a priority by CPU, over all queues."""
    rows = [row["per_cpu"] for row in matrix["rows"] if row["priority"] == priority]
    return [sum(row[cpu] for row in rows) for cpu in CPUS]


def assert_agrees(matrix: dict[str, Any], found: dict[str, list[int]], classes: dict[int, str]) -> None:
    """nearpath's counts of tagged packets are those of the judge, by CPU."""
    for priority, name in classes.items():
        assert by_cpu(matrix, priority) == found[name], (priority, matrix, found)


def assert_mostly(found: dict[str, list[int]], cpu: int) -> None:
    """All arrive on one CPU, but for those of an interrupt that was moved and fires once more on its old one."""
    assert all(counts[cpu] > 0.9 * sum(counts) for counts in found.values()), found


def settled(host: Host) -> None:
    """Waits until nic0 has a link again: a driver may restart its queues for an XDP program."""
    wait_until(lambda: host.run("grep -q 1 /sys/class/net/nic0/carrier").status == 0, "nic0 has a link")
    wait_until(lambda: host.run(f"ping -c 1 -W 1 {host.peer.address()}").status == 0, "the peer answers")


def state(host: Host) -> str:
    """All that a plan may change, to the byte."""
    return everything(host) + host.check(
        "ip -d -o link show nic0 | sed 's/ state [A-Z]*//'; for irq in /proc/irq/[0-9]*; do "
        "echo $irq $(cat $irq/smp_affinity_list); done"
    )


@lab(kernels=("6.12",), topology=TWO_NODES, nics=IGB)
@lab(kernels=("5.10", "6.1", "7.2"), topology=TWO_NODES, nics=IGB)
def test_a_vlan_priority_has_its_cpu_alone(host: Host) -> None:
    """All packets of PCP 3 arrive on CPU 3 and no others, at 10,000 mixed frames; undone to the byte."""
    host.check(f"modprobe 8021q && ip link add link nic0 name nic0.{VLAN} type vlan id {VLAN}")
    host.check(f"ip link set nic0.{VLAN} up")
    # The worst that there is: everything is on one CPU.
    take_interrupts(host, 3)
    found, matrix = received(host, 1_000)
    assert_agrees(matrix, found, {3: "3", 5: "5", 0: "0"})
    assert_mostly(found, 3)
    before = state(host)

    plan = json.loads(host.check("nearpath tune plan --nic nic0 --priority 3:3 --json"))
    kinds = [change["kind"] for change in plan["changes"]]
    assert kinds.index("feature") < kinds.index("xdp") < kinds.index("irq_affinity"), plan
    host.write("/root/plan.json", json.dumps(plan).encode())
    host.check("nearpath tune apply /root/plan.json")
    settled(host)
    assert json.loads(host.check("nearpath tune verify --json"))["journal"]
    found, matrix = received(host, FRAMES)
    assert_agrees(matrix, found, {3: "3", 5: "5", 0: "0"})
    assert found["3"][:3] == [0, 0, 0], found
    assert found["3"][3] >= FRAMES // len(CLASSES) // SPARE, found
    assert all(counts[3] == 0 for name, counts in found.items() if name != "3"), found
    others = [row for row in matrix["rows"] if row["priority"] != 3]
    assert all(row["per_cpu"][3] == 0 for row in others), matrix
    # A second plan finds it in place.
    again = json.loads(host.check("nearpath tune plan --nic nic0 --priority 3:3 --json"))
    assert not [change for change in again["changes"] if change["kind"] in ("feature", "xdp", "irq_affinity")], again

    host.check("nearpath tune rollback")
    settled(host)
    assert state(host) == before
    assert json.loads(host.check("nearpath tune status --json"))["journal"] == []
    found, _ = received(host, 1_000)
    assert_mostly(found, 3)


@lab(kernels=("6.1", "6.12"), topology=TWO_NODES, nics=VIRTIO)
def test_a_dscp_has_its_cpu_alone(host: Host) -> None:
    """The same for a DSCP on virtio, whose driver may not take XDP programs: then generically."""
    take_interrupts(host, 2)
    before = state(host)
    host.check("nearpath tune apply --nic nic0 --priority dscp46:0")
    settled(host)
    # An interrupt moves when it fires: the first of each queue still comes to the CPU that the driver had set.
    received(host, 400, by="dscp")
    found, matrix = received(host, 2_000, by="dscp")
    assert found["E"][1:] == [0, 0, 0], found
    assert found["E"][0] >= 400 / SPARE, found
    assert all(counts[0] == 0 for name, counts in found.items() if name != "E"), found
    assert by_cpu(matrix, 46) == found["E"], (matrix, found)
    # A program that the driver did not take is found, and no other is.
    is_generic = "xdpgeneric" in host.check("ip link show dev nic0")
    findings = json.loads(host.check("nearpath diagnose --measure tcp --for 1s --json"))["findings"]
    assert is_generic == ("xdp_generic" in {finding["check"] for finding in findings}), (is_generic, findings)
    host.check("nearpath tune rollback")
    settled(host)
    assert state(host) == before


# Reads what is sent to port 9, so that packets have an end.
READER = """
import socket
reader = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
reader.bind(("0.0.0.0", 9))
while True:
    reader.recv(100)
"""

# The CPUs on which the kernel receives packets of a DSCP, with and without an XDP program on the NIC, as long as the
# first argument says in seconds. A packet that was under way at a switch may be counted on the wrong side.
BOTH_SIDES = """
import json, select, socket, subprocess, sys, time
sockets = {}
for cpu in range(4):
    one = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    one.bind(("nic0", 3))
    one.setsockopt(263, 18, 2 << 16 | 4242)  # PACKET_FANOUT, PACKET_FANOUT_CPU
    sockets[one] = cpu
counts = {False: [0] * 4, True: [0] * 4}
print("ready", flush=True)
looked = 0
while not select.select([sys.stdin], [], [], 0)[0]:
    if time.monotonic() - looked > 0.2:
        looked = time.monotonic()
        link = subprocess.run(["ip", "-o", "link", "show", "nic0"], capture_output=True, text=True).stdout
        attached = "xdp" in link
    for one in select.select(list(sockets), [], [], 0.1)[0]:
        data = one.recv(2048)
        at = data.find(b"CLASS")
        if at >= 0 and data[at + 5 : at + 6] == b"E":
            counts[attached][sockets[one]] += 1
print(json.dumps({"without": counts[False], "with": counts[True]}))
"""


@lab(kernels=("6.1", "6.12"), topology=TWO_NODES, nics=IGB)
def test_a_trial_of_a_priority_ends_with_a_verdict(host: Host) -> None:
    """The program is attached and detached by the trial, and stays only if the verdict is better. The judge sees on
    which CPU the packets of the class are received meanwhile."""
    take_interrupts(host, 2)
    host.start(["python3", "-c", READER])
    host.write("/run/both.py", BOTH_SIDES.encode())
    host.check("mkfifo /run/end")
    judge = host.start("exec python3 /run/both.py </run/end >/run/both")
    holder = host.start("exec sleep infinity >/run/end")
    wait_until(lambda: host.run("grep -q ready /run/both").status == 0, "the judge is ready")
    words = ["tap0", host.machine.mac(0), host.machine.address(0), "1000000", "150"]
    sender = host.peer.start(["python3", "-c", SENDER, *words, json.dumps({"-": (None, 0), "E": (None, 46)})])
    before = state(host)
    asked = "--nic nic0 --priority dscp46:3 --only nic0/xdp --port 9 --metric mean --try-for 30s --warm-up 1s"
    report = json.loads(host.check(f"nearpath tune try {asked} --json", timeout_s=900))
    sender.kill()
    sender.communicate()
    holder.kill()
    assert judge.wait(60).status == 0
    counts = json.loads(host.check("tail -n 1 /run/both"))

    assert report["verdict"] in ("better", "worse", "no_difference", "inconclusive"), report
    # Both sides had packets; nearly all of them where they were due.
    assert sum(counts["without"]) > 200 and sum(counts["with"]) > 200, counts
    assert counts["without"][2] > 0.9 * sum(counts["without"]), counts
    assert counts["with"][3] > 0.9 * sum(counts["with"]), counts
    is_attached = "xdp" in host.check("ip -o link show nic0")
    applied = json.loads(host.check("nearpath tune status --json"))["journal"]
    assert report["kept"] == is_attached == bool(applied), (report["kept"], is_attached, applied)
    assert report["kept"] == (report["verdict"] == "better"), report
    host.check("nearpath tune rollback")
    settled(host)
    assert state(host) == before


# Sends datagrams to an address, with SO_PRIORITY 3 and with none.
SEND_PRIORITIES = """
import socket, sys
for priority in (3, 0):
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.setsockopt(socket.SOL_SOCKET, 12, priority)
    for _ in range(10):
        sender.sendto(b"WAY BACK %d" % priority + bytes(20), (sys.argv[1], 9))
"""

# Prints the VLAN priority of each such datagram that comes in by the tap, with the SO_PRIORITY that it was sent
# with. The kernel takes the tag out of the packet: the socket reports it beside (PACKET_AUXDATA).
SEE_PRIORITIES = """
import json, socket, struct, sys
see = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
see.bind((sys.argv[1], 3))
see.setsockopt(263, 8, 1)
see.settimeout(60)
seen = []
print("ready", flush=True)
while len(seen) < 20:
    data, controls, _, _ = see.recvmsg(2048, 256)
    at = data.find(b"WAY BACK ")
    if at >= 0:
        (aside,) = [struct.unpack("IIIHHHH", value) for level, kind, value in controls if (level, kind) == (263, 8)]
        tci = aside[5] if aside[0] & 16 else int.from_bytes(data[14:16], "big")  # TP_STATUS_VLAN_VALID
        seen.append([int(data[at + 9 : at + 10]), tci >> 13])
print(json.dumps(seen))
"""


@lab(kernels=("5.10", "6.12"), topology=TWO_NODES, nics=IGB)
def test_the_way_back_of_a_priority_is_tagged(host: Host) -> None:
    """What is sent with SO_PRIORITY 3 leaves with PCP 3, as the peer sees; and does not once the plan is undone."""
    host.check(
        f"modprobe 8021q && ip link add link nic0 name nic0.{VLAN} type vlan id {VLAN} egress-qos-map 2:5"
        f" && ip link set nic0.{VLAN} up && ip address add 10.9.55.1/24 dev nic0.{VLAN}"
        f" && ip neighbour add 10.9.55.2 lladdr 52:54:00:09:00:02 dev nic0.{VLAN} nud permanent"
    )
    before = host.check(f"ip -d link show nic0.{VLAN}")

    def tags() -> set[tuple[int, int]]:
        see = host.peer.start(["python3", "-c", SEE_PRIORITIES, "tap0"])
        assert see.stdout is not None and "ready" in str(see.stdout.readline())
        host.check(["python3", "-c", SEND_PRIORITIES, "10.9.55.2"])
        return {(priority, pcp) for priority, pcp in json.loads(see.communicate(timeout=90)[0])}

    assert tags() == {(3, 0), (0, 0)}
    asked = f"--nic nic0 --priority 3:3 --only nic0.{VLAN}/egress-qos-map"
    host.check(f"nearpath tune apply {asked}")
    assert "egress-qos-map { 2:5 3:3 }" in host.check(f"ip -d link show nic0.{VLAN}")
    assert tags() == {(3, 3), (0, 0)}
    assert {entry["state"] for entry in json.loads(host.check("nearpath tune verify --json"))["journal"]} == {"applied"}
    host.check("nearpath tune rollback")
    assert host.check(f"ip -d link show nic0.{VLAN}") == before
    assert tags() == {(3, 0), (0, 0)}
