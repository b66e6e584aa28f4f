"""What limits TCP connections: eight at once, each limited by something else, and each must be named by its own.

Every connection has a veth pair of its own between two namespaces, so that a qdisc affects it alone. The judge is
what was set up; the figures of each connection are compared with ss(8) of the guest.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from lab import Host
from lab.fixtures import EVERY_CASE, lab, representative, skips_in_guest
from lab.payload import payload_of_tests

from .hosts import IGB, TWO_NODES
from .ss import compare

KERNEL_TEST = "kernel_tcp"


@pytest.fixture(scope="module")
def payload(lab_here: None) -> Path:
    """nearpath, and its own tests."""
    return payload_of_tests("nearpath", KERNEL_TEST)


SETUP = """
set -e
modprobe -a veth sch_tbf sch_netem
for name in red blue; do ip netns add $name; ip -n $name link set lo up; done
i=0
for qdisc in "$@"; do
    ip -n red link add r$i type veth peer name b$i netns blue
    ip -n red addr add 10.78.$i.1/24 dev r$i
    ip -n blue addr add 10.78.$i.2/24 dev b$i
    ip -n red link set r$i up
    ip -n blue link set b$i up
    [ "$qdisc" = none ] || ip netns exec red tc qdisc add dev r$i root $qdisc
    i=$((i + 1))
done
"""

# Arguments: the scenes as JSON. One process per scene, each with its end of the connection.
SERVERS = """
import json, os, socket, sys, time
for number, scene in enumerate(json.loads(sys.argv[1])):
    if os.fork():
        continue
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if "rcvbuf" in scene:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, scene["rcvbuf"])
    listener.bind((f"10.78.{number}.2", 7000 + number))
    listener.listen(scene.get("backlog", 16))
    print("listens", flush=True)
    if "backlog" in scene:
        time.sleep(3600)
    connection, _ = listener.accept()
    while data := connection.recv(scene.get("read", 65536)):
        time.sleep(scene.get("read_pause", 0))
    sys.exit()
os.wait()
"""

CLIENTS = """
import json, os, socket, sys, time
for number, scene in enumerate(json.loads(sys.argv[1])):
    if os.fork():
        continue
    address = (f"10.78.{number}.2", 7000 + number)
    if "backlog" in scene:
        waiting = []
        for _ in range(3 * scene["backlog"]):
            waiting.append(socket.socket())
            waiting[-1].setblocking(False)
            waiting[-1].connect_ex(address)
        time.sleep(3600)
    client = socket.socket()
    if "congestion" in scene:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, scene["congestion"].encode())
    if "sndbuf" in scene:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, scene["sndbuf"])
    client.connect(address)
    data = bytes(scene.get("write", 65536))
    while True:
        client.sendall(data)
        time.sleep(scene.get("write_pause", 0))
"""

Scene = dict[str, Any]

# What is set up, and what each end must say; None: that end has no part in it. `then`: a qdisc that is added once the
# connection is established.
SCENES: list[Scene] = [
    {"write": 2000, "write_pause": 0.05, "red": "application", "blue": "peer"},
    {"read": 1000, "read_pause": 0.05, "red": "reader", "blue": "reader"},
    {"qdisc": "netem delay 50ms", "rcvbuf": 16384, "red": "receive_window", "blue": "receive_window"},
    {"qdisc": "netem delay 50ms", "sndbuf": 16384, "red": "send_buffer", "blue": "peer"},
    {"qdisc": "netem delay 20ms loss 3%", "red": "congestion_window", "blue": "peer"},
    {"qdisc": "tbf rate 2mbit burst 5kb latency 100ms", "red": "path", "blue": "peer"},
    {"then": "netem loss 70%", "red": "timeouts", "blue": None},
    {"backlog": 4, "red": "backlog", "blue": "backlog"},
]

SECONDS = 20
# Of the intervals.
RIGHT = 0.95


# Losses limit CUBIC, which takes each for a sign of congestion, and not BBR, which paces what it sends: the path does,
# if it has a rate, or a send buffer that is small for it. Without a rate, BBR on a fast host comes to fill the 4 MiB
# that `tcp_wmem` allows.
LOSSY: list[Scene] = [
    {"qdisc": "netem delay 50ms loss 1%", "congestion": "cubic", "red": "congestion_window", "blue": "peer"},
    {"qdisc": "netem delay 50ms loss 1% rate 20mbit", "congestion": "bbr", "red": "path", "blue": "peer"},
    {"qdisc": "netem delay 50ms loss 1%", "congestion": "bbr", "sndbuf": 65536, "red": "send_buffer", "blue": "peer"},
]

# What is lost at a policer was not queued: the RTT does not rise.
POLICED: list[Scene] = [{"qdisc": "netem delay 20ms", "police": "10mbit", "red": "congestion_window", "blue": "peer"}]


def start(host: Host, played: list[Scene], *before: str) -> None:
    """Sets the scenes up, runs the commands `before` any connects, and starts the connections."""
    qdiscs = [scene.get("qdisc", "none") for scene in played]
    if any(scene.get("congestion") == "bbr" for scene in played):
        host.check("modprobe tcp_bbr")
    host.check(["bash", "-c", SETUP, "setup", *qdiscs])
    for number, scene in enumerate(played):
        if "police" in scene:
            tc = "modprobe -a sch_ingress cls_matchall act_police; ip netns exec blue tc"
            host.check(f"{tc} qdisc add dev b{number} ingress")
            police = f"police rate {scene['police']} burst 15k drop"
            host.check(f"ip netns exec blue tc filter add dev b{number} ingress matchall action {police}")
    for command in before:
        host.check(command)
    scenes = json.dumps(played)
    host.start(["ip", "netns", "exec", "blue", "python3", "-c", SERVERS, scenes])
    host.check(f"until [ $(ip netns exec blue ss -Hltn | wc -l) -ge {len(played)} ]; do sleep 0.2; done")
    host.start(["ip", "netns", "exec", "red", "python3", "-c", CLIENTS, scenes])
    for number, scene in enumerate(played):
        peer = f"10.78.{number}.2"
        host.check(f"until ip netns exec red ss -Htn state established dst {peer} | grep -q .; do sleep 0.2; done")
        if "then" in scene:
            # The address of the peer is not looked for again, as that may fail.
            host.check(f"ip -n red neigh change {peer} dev r{number} nud permanent")
            host.check(f"ip netns exec red tc qdisc add dev r{number} root {scene['then']}")
    # The slow start of the others.
    host.check("sleep 5")


def verdicts(host: Host, namespace: str, scenes: int) -> list[list[dict[str, Any]]]:
    """The connections of each scene, in each interval."""
    # An emulated CPU needs more time for ten readings per second than the limit allows.
    command = ["nearpath", "measure", "tcp", "--netns", namespace, "--json", "--max-overhead", "none"]
    printed = host.check([*command, "--for", f"{SECONDS}s", "--interval", "1s"])
    seen: list[list[dict[str, Any]]] = [[] for _ in range(scenes)]
    for line in printed.splitlines()[:-1]:
        for connection in json.loads(line)["connections"]:
            # The scene has the third number of the address.
            seen[int(connection["src"].split(".")[2])].append(connection)
    return seen


def limit_of(connection: dict[str, Any]) -> str:
    return str((connection["verdict"] or {"limit": "none"})["limit"])


# The figures that explain a verdict.
FIGURES = (
    "verdict",
    "limits",
    "rtt_ns",
    "rttvar_ns",
    "min_rtt_ns",
    "receiver_rtt_ns",
    "cwnd",
    "in_flight",
    "send_window_bytes",
    "receive_window_bytes",
    "receive_ssthresh_bytes",
    "receive_queue_bytes",
    "receive_memory_bytes",
    "receive_buffer_bytes",
    "last_received_ms",
    "rwnd_limited_share",
    "interval",
)


@lab(topology=TWO_NODES, nics=IGB)
@pytest.mark.parametrize("played", [SCENES, POLICED, LOSSY], ids=["eight", "policed", "lossy"])
def test_each_connection_is_named_by_its_own_limit(host: Host, played: list[Scene]) -> None:
    start(host, played)
    wrong = []
    for namespace in ("red", "blue"):
        for scene, seen in zip(played, verdicts(host, namespace, len(played)), strict=True):
            named = Counter(limit_of(connection) for connection in seen)
            wanted = scene[namespace]
            # Clients that were accepted into a backlog wait as if they had nothing to send.
            if wanted == "backlog" and namespace == "red":
                named.pop("application", None)
            if wanted is None:
                continue
            # A connection that has ended is limited by nothing.
            is_there = wanted == "backlog" or named.total() >= SECONDS - 1
            if not is_there or named[wanted] < RIGHT * named.total():
                others = [{name: c[name] for name in FIGURES} for c in seen if limit_of(c) != wanted]
                wrong += [f"{namespace} {scene}: {dict(named)}", *map(str, others)]
    assert not wrong, "\n".join(wrong)


# Arguments: the scene and the namespace. `lossy`: data was lost in both directions, and all of it is acknowledged.
# `closed`: the reader has stopped.
QUIET = """
import socket, sys, time
scene = sys.argv[1]
listener = socket.create_server(("10.78.0.2", 7100)) if sys.argv[2] == "blue" else None
if listener:
    end, _ = listener.accept()
else:
    end = socket.create_connection(("10.78.0.2", 7100))
if scene == "lossy":
    # Until both ends have retransmitted, received out of order, and reduced their windows (ss prints no higher
    # ssthresh). A reduction that proves wrong is undone as soon as the receiver has reported it: it has to last.
    lasts = False
    while True:
        info = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 228)
        ssthresh, retransmits, out_of_order = (int.from_bytes(info[at : at + 4], "little") for at in (76, 100, 224))
        is_reduced = retransmits > 0 and out_of_order > 0 and ssthresh < 0xFFFF
        end.sendall(bytes([is_reduced]) + bytes(19999))
        data = b""
        while len(data) < 20000:
            data += end.recv(20000 - len(data))
        lasted, lasts = lasts, is_reduced and data[0]
        if lasts and lasted:
            break
        if lasts:
            time.sleep(0.5)
    end.sendall(bytes(500))
    end.recv(400)
elif not listener:
    end.setblocking(False)
    try:
        while True:
            end.send(bytes(65536))
    except BlockingIOError:
        pass
print("quiet", flush=True)
time.sleep(3600)
"""


def uptime_ms(host: Host) -> float:
    """The guest's clock: virtual time, of which an idle guest has more than the machine that it runs on."""
    return float(host.check("cat /proc/uptime").split()[0]) * 1000


@lab(topology=TWO_NODES, nics=IGB)
@pytest.mark.parametrize("scene", ["lossy", pytest.param("closed", marks=representative)])
def test_the_numbers_are_those_of_ss(host: Host, scene: str) -> None:
    """Every word that ss prints has its field, with the same number."""
    host.check(["bash", "-c", SETUP, "setup", "netem delay 3ms loss 3%" if scene == "lossy" else "none"])
    if scene == "lossy":
        host.check("ip netns exec blue tc qdisc add dev b0 root netem delay 3ms 2ms loss 3%")
        host.check("sysctl -qw net.ipv4.tcp_ecn=1; ip netns exec red sysctl -qw net.ipv4.tcp_ecn=1")
    for namespace in ("blue", "red"):
        host.start(f"ip netns exec {namespace} python3 -c '{QUIET}' {scene} {namespace} >/tmp/{namespace}.log")
        if namespace == "blue":
            host.check("until ip netns exec blue ss -Hltn | grep -q 7100; do sleep 0.2; done")
    host.check("until grep -q quiet /tmp/red.log && grep -q quiet /tmp/blue.log; do sleep 0.2; done")
    if scene == "lossy":
        # All is acknowledged: a last retransmission comes seconds later if round trips were long.
        waits = "ip netns exec $ns ss -HtnoO state established | grep -q 'timer:(on'"
        host.check(f"for ns in red blue red; do while {waits}; do sleep 0.2; done; done")
    # Delayed acknowledgements are over.
    host.check("sleep 3")
    seen = set()
    for namespace, side in (("red", "dport"), ("blue", "sport")):
        began = uptime_ms(host)
        ss = f"ip netns exec {namespace} ss -tieHnmO state established {side} = :7100"
        fields = host.check(ss).split()
        # The queues, and the two ends.
        (receive_queue, send_queue), words = map(int, fields[:2]), fields[4:]
        measure = ["nearpath", "measure", "tcp", "--netns", namespace, f"--{side}", "7100", "--for", "500ms", "--json"]
        (connection,) = json.loads(host.check(measure))["connections"]
        moves, within_ms = scene == "closed", uptime_ms(host) - began
        assert (connection["receive_queue_bytes"], connection["send_queue_bytes"]) == (receive_queue, send_queue)
        seen |= compare(words, connection, moves=moves, within_ms=within_ms)
    wanted = {"skmem", "cwnd", "rtt", "ts", "sack", "minrtt", "rcv_space", "ino", "sk", "wscale"}
    if scene == "lossy":
        wanted |= {"retrans", "ssthresh", "bytes_retrans", "rcv_ooopack", "busy", "rcv_rtt", "delivered"}
    assert wanted <= seen, wanted - seen


@lab(topology=TWO_NODES, nics=IGB)
def test_the_counters_are_those_of_nstat(host: Host) -> None:
    """Of a connection through losses, between two readings of nstat."""
    host.check(["bash", "-c", SETUP, "setup", "netem delay 3ms loss 4%"])
    # It sends packets of its own.
    for namespace in ("red", "blue"):
        host.check(f"ip netns exec {namespace} sysctl -qw net.ipv6.conf.all.disable_ipv6=1")
    host.start("nearpath measure tcp --netns red --for 1h --json >/tmp/measured.json 2>/tmp/begun")
    host.check("until grep -q measuring /tmp/begun; do sleep 0.2; done")

    def counters() -> dict[str, int]:
        kernel: dict[str, int] = json.loads(host.check("ip netns exec red nstat -azsj"))["kernel"]
        return kernel

    before = counters()
    host.start("ip netns exec blue iperf3 -4 -s -1 >/dev/null")
    host.check("until ip netns exec blue ss -Hltn | grep -q 5201; do sleep 0.2; done")
    host.check("ip netns exec red iperf3 -4 -c 10.78.0.2 -t 5 >/dev/null; sleep 2")
    after = counters()
    host.check("pkill -INT nearpath; until python3 -m json.tool /tmp/measured.json >/dev/null; do sleep 0.2; done")
    ours = json.loads(host.check("cat /tmp/measured.json"))["counters"]
    risen = {name: after[name] - before[name] for name in after if after[name] > before.get(name, 0)}
    assert risen["TcpRetransSegs"] > 0
    assert {name: ours.get(name) for name in risen} == risen
    assert ours.keys() <= risen.keys() | {name for name in ours if name not in after}


# Scenes in which no figure depends on the speed of the machine.
SCENES_OF_EACH_KERNEL = (
    "connections_that_end_are_listed",
    "races::a_port_that_is_used_again_is_another_connection",
    "races::ipv4_in_an_ipv6_socket_is_shown_and_found_as_ipv4",
    "races::subflows_of_mptcp_are_connections_that_are_not_in_the_backlog",
    "samples::data_waits_for_its_reader_as_long_as_that_makes_it_wait",
    "samples::a_closed_window_and_the_cpu_of_the_reader_are_seen",
)


@lab(topology=TWO_NODES, nics=IGB)
def test_events_and_samples(host: Host) -> None:
    """What programs see of connections, with the hooks of each kernel."""
    host.run("modprobe -a veth")
    binary = "NEARPATH_BINARY=/usr/local/bin/nearpath"
    test = f"{EVERY_CASE} {binary} {KERNEL_TEST} --exact {' '.join(SCENES_OF_EACH_KERNEL)} --nocapture --test-threads 1"
    # Before Linux 5.11 maps count as locked memory.
    status, out, err = host.run(f"ulimit -l unlimited; {test}", timeout_s=400)
    print(out)
    assert status == 0, out + err
    assert f"{len(SCENES_OF_EACH_KERNEL)} passed" in out
    skipped = skips_in_guest(host, err)
    assert skipped == [] or (host.machine.kernel == "5.10" and all("MPTCP" in reason for reason in skipped))
