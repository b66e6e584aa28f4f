"""nearpath in a separate PID namespace, as in a container: its ids are those that ps shows there, and an exited task
has the cgroup that it was in. On the oldest kernel and the newest, whose types differ.
"""

import json
from typing import Any

from lab import Host
from lab.fixtures import lab

from .hosts import IGB, TWO_NODES

PORT = 8099
# A server, sequential clients, and nearpath's results for the server's process by its id there.
SCRIPT = f"""
python3 -m http.server {PORT} >/dev/null 2>&1 & SERVER=$!
while :; do python3 -c '
import socket
socket.create_connection(("127.0.0.1", {PORT})).send(bytes(100))'; sleep 0.1; done >/dev/null 2>&1 & CLIENTS=$!
nearpath measure accepts --json --for 5s --pid $SERVER >/tmp/accepts
nearpath measure stages --json --for 5s --per process --port {PORT} --slow 1us --max-overhead none >/tmp/stages
kill $SERVER $CLIENTS
echo $SERVER
"""


@lab(kernels=("5.10", "7.2"), topology=TWO_NODES, nics=IGB)
def test_ids_are_those_of_the_namespace(host: Host) -> None:
    status, out, err = host.run(["unshare", "-pf", "--mount-proc", "sh", "-c", SCRIPT], timeout_s=120)
    assert status == 0, err
    server = int(out)
    assert server < 100, "the namespace is young"

    accepts = document(host, "/tmp/accepts")
    workers = [worker for listener in accepts["listeners"] for worker in listener["workers"]]
    assert workers, (accepts, err)
    assert {worker["pid"] for worker in workers} == {server}, accepts

    stages = document(host, "/tmp/stages")
    names = [group["name"] for group in stages["groups"]]
    assert f"python3/{server}" in names, (names, err)
    # The clients are short-lived. Processes outside the namespace have no id in it.
    blamed = [share["who"] for outlier in stages["outliers"] for share in outlier["budget"] if share["who"]]
    tasks = [who for who in blamed if who["comm"]]
    pythons = [who for who in tasks if who["comm"] == "python3"]
    assert pythons, (tasks, err)
    assert all(who["cgroup"] for who in pythons), pythons
    assert all(who["pid"] for who in pythons), pythons


def document(host: Host, path: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(host.read(path))
    return found
