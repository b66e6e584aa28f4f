"""What limits TCP connections: eight at once, each limited by something else, and each must be named by its own.

Every connection has a veth pair of its own between two namespaces, so that a qdisc affects it alone. The judge is
what was set up; the figures of each connection are compared with ss(8) of the guest.
"""

import json
from collections import Counter
from typing import Any

import pytest

from lab import Host
from lab.fixtures import lab, lengthy, representative, smoke

from .hosts import IGB, TWO_NODES

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
    if "sndbuf" in scene:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, scene["sndbuf"])
    client.connect(address)
    data = bytes(scene.get("write", 65536))
    while True:
        client.sendall(data)
        time.sleep(scene.get("write_pause", 0))
"""

Scene = dict[str, Any]

# What is set up, and what each end must say; None: that end has no part in it.
SCENES: list[Scene] = [
    {"write": 2000, "write_pause": 0.05, "red": "application", "blue": "peer"},
    {"read": 1000, "read_pause": 0.05, "red": "reader", "blue": "reader"},
    {"qdisc": "netem delay 50ms", "rcvbuf": 16384, "red": "receive_window", "blue": "receive_window"},
    {"qdisc": "netem delay 50ms", "sndbuf": 16384, "red": "send_buffer", "blue": "peer"},
    {"qdisc": "netem delay 20ms loss 3%", "red": "congestion_window", "blue": "peer"},
    {"qdisc": "tbf rate 2mbit burst 5kb latency 100ms", "red": "path", "blue": "peer"},
    {"qdisc": "netem loss 70%", "red": "timeouts", "blue": None},
    {"backlog": 4, "red": "backlog", "blue": "backlog"},
]

SECONDS = 20
# Of the intervals.
RIGHT = 0.95


def start(host: Host) -> None:
    qdiscs = [scene.get("qdisc", "none") for scene in SCENES]
    host.check(["bash", "-c", SETUP, "setup", *qdiscs])
    scenes = json.dumps(SCENES)
    host.start(["ip", "netns", "exec", "blue", "python3", "-c", SERVERS, scenes])
    host.check(f"until [ $(ip netns exec blue ss -Hltn | wc -l) -ge {len(SCENES)} ]; do sleep 0.2; done")
    host.start(["ip", "netns", "exec", "red", "python3", "-c", CLIENTS, scenes])
    # All but those that wait for the backlog, and the slow start of the others.
    host.check(
        f"until [ $(ip netns exec red ss -Htn state established | wc -l) -ge {len(SCENES)} ]; do sleep 0.2; done"
    )
    host.check("sleep 5")


def verdicts(host: Host, namespace: str) -> list[Counter[str]]:
    """How often each limit was named for the connections of each scene."""
    command = ["nearpath", "measure", "tcp", "--netns", namespace, "--json"]
    printed = host.check([*command, "--for", f"{SECONDS}s", "--interval", "1s"])
    named: list[Counter[str]] = [Counter() for _ in SCENES]
    for line in printed.splitlines()[:-1]:
        for connection in json.loads(line)["connections"]:
            # The scene has the third number of the address.
            number = int(connection["src"].split(".")[2])
            verdict = connection["verdict"] or {"limit": "none"}
            named[number][verdict["limit"]] += 1
    return named


@lengthy
@lab(topology=TWO_NODES, nics=IGB)
def test_each_of_eight_connections_is_named_by_its_own_limit(host: Host) -> None:
    start(host)
    wrong = []
    for namespace in ("red", "blue"):
        for scene, named in zip(SCENES, verdicts(host, namespace), strict=True):
            wanted = scene[namespace]
            # Clients that were accepted into a backlog wait as if they had nothing to send.
            if wanted == "backlog" and namespace == "red":
                named.pop("application", None)
            if wanted is not None and named[wanted] < RIGHT * named.total():
                wrong.append(f"{namespace} {scene}: {dict(named)}")
    assert not wrong, "\n".join(wrong)


# Names of ss(8), and how nearpath's fields are in its units.
FIELDS = {
    "mss": "mss",
    "pmtu": "pmtu",
    "rcvmss": "receive_mss",
    "advmss": "advertised_mss",
    "cwnd": "cwnd",
    "bytes_sent": "bytes_sent",
    "bytes_acked": "bytes_acked",
    "bytes_received": "bytes_received",
    "segs_out": "segments_out",
    "segs_in": "segments_in",
    "data_segs_out": "segments_sent",
    "data_segs_in": "segments_received",
    "delivered": "delivered",
    "rcv_space": "receive_space_bytes",
    "rcv_ssthresh": "receive_ssthresh_bytes",
    "snd_wnd": "send_window_bytes",
}
TIMES = {"rto": "rto_ns", "minrtt": "min_rtt_ns", "rcv_rtt": "receiver_rtt_ns", "ato": "ato_ns"}

IDLE = """
import socket, time
listener = socket.create_server(("127.0.0.1", 7100))
client = socket.create_connection(("127.0.0.1", 7100))
server, _ = listener.accept()
client.sendall(bytes(100000))
left = 100000
while left:
    left -= len(server.recv(left))
server.sendall(bytes(500))
client.recv(400)
time.sleep(3600)
"""


@representative
@smoke
@lab(topology=TWO_NODES, nics=IGB)
@pytest.mark.parametrize("option", ["--sport", "--dport"])
def test_the_numbers_are_those_of_ss(host: Host, option: str) -> None:
    host.start(["python3", "-c", IDLE])
    host.check("until [ $(ss -Htn state established sport = :7100 | wc -l) -eq 1 ]; do sleep 0.2; done; sleep 1")
    side = "sport" if option == "--sport" else "dport"
    words = host.check(f"ss -tieHnO state established {side} = :7100").split()
    said = dict(word.split(":", 1) for word in words if ":" in word)
    printed = host.check(["nearpath", "measure", "tcp", option, "7100", "--for", "500ms", "--json"])
    (connection,) = json.loads(printed)["connections"]
    compared = 0
    for name, field in FIELDS.items():
        if name in said:
            compared += 1
            assert connection[field] == int(said[name]), name
    for name, field in TIMES.items():
        if name in said:
            compared += 1
            assert connection[field] == pytest.approx(float(said[name]) * 1e6), name
    rtt, rttvar = map(float, said["rtt"].split("/"))
    assert (connection["rtt_ns"], connection["rttvar_ns"]) == pytest.approx((rtt * 1e6, rttvar * 1e6))
    assert compared >= 15, said
    assert connection["receive_queue_bytes"] == (100 if side == "dport" else 0)
