"""A server is bound by the cpuset of its cgroup: its threads and its memory move to the NIC's node, and
everything is restored.
"""

import json
from typing import Any

from lab import Host
from lab.fixtures import lab, representative
from lab.waiting import wait_until

from .conversations import start_server
from .hosts import TWO_NODES, VIRTIO

FAR_CPU, _ = TWO_NODES.cpus_of(0)
NEAR = TWO_NODES.cpus_of(1)
PORT = 5001
CGROUPS = "/sys/fs/cgroup"
SERVER = f"{CGROUPS}/app/server"


def tuned(host: Host, *words: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(host.check(["nearpath", "tune", *words, "--json"]))
    return document


def state(host: Host, server: int) -> str:
    """The exact contents of everything that may be changed, and where the server's threads may run."""
    return host.check(
        f"head -v {SERVER}/cpuset.cpus {SERVER}/cpuset.mems; grep -H Cpus_allowed_list /proc/{server}/task/*/status"
    )


@representative
@lab(topology=TWO_NODES, nics=VIRTIO)
def test_a_cgroup_is_bound_and_released(host: Host) -> None:
    server = start_server(host, str(FAR_CPU), PORT)
    host.check(f"mountpoint -q {CGROUPS} || mount -t cgroup2 none {CGROUPS}; mkdir -p {SERVER}")
    host.check(f"echo {server.pid} >{SERVER}/cgroup.procs")
    asked = ["--nic", "nic0", "--pid", str(server.pid), "--cpuset"]

    # The controller is off for it, and must not be enabled implicitly.
    plan = tuned(host, "plan", *asked)
    kinds = {change["kind"] for change in plan["changes"]}
    assert "cpuset" not in kinds and "thread_affinity" in kinds, plan
    assert any("cpuset controller is not" in note for note in plan["notes"]), plan["notes"]
    assert "cpuset" not in host.check(f"cat {CGROUPS}/app/cgroup.subtree_control")

    host.check(f"echo +cpuset >{CGROUPS}/cgroup.subtree_control && echo +cpuset >{CGROUPS}/app/cgroup.subtree_control")
    # An empty cpuset could not be restored, since the kernel rejects it with processes in the cgroup.
    plan = tuned(host, "plan", *asked)
    assert any("is empty, and that cannot be restored" in note for note in plan["notes"]), plan["notes"]
    host.check(f"echo 0-3 >{SERVER}/cpuset.cpus && echo 0-1 >{SERVER}/cpuset.mems")

    before = state(host, server.pid)
    plan = tuned(host, "plan", *asked)
    changes = {change["target"].split()[0]: change["after"] for change in plan["changes"]}
    assert changes["cpuset.mems"] == "1", plan
    assert not any(change["kind"] == "thread_affinity" for change in plan["changes"]), plan
    host.write("/root/plan.json", json.dumps(plan).encode())
    made = tuned(host, "apply", "/root/plan.json")
    assert len(made["changes"]) == len(plan["changes"]), made

    assert host.check(f"cat {SERVER}/cpuset.cpus").strip() == changes["cpuset.cpus"]
    allowed = host.check(f"grep -h Cpus_allowed_list /proc/{server.pid}/task/*/status").split()[1::2]
    assert allowed and set(allowed) == {changes["cpuset.cpus"]}, allowed
    # Its heap has moved, if memory follows cpuset.mems; else the plan has said that it stays.
    heap = host.check(f"grep heap /proc/{server.pid}/numa_maps")
    (why,) = (change["why"] for change in plan["changes"] if change["target"].startswith("cpuset.mems"))
    if host.machine.kernel == "5.10":
        assert "memory on other nodes stays there" in why and "N0=" in heap, (why, heap)
    else:
        assert "memory on other nodes moves to node 1" in why and "N1=" in heap and "N0=" not in heap, (why, heap)
    assert tuned(host, "plan", *asked)["changes"] == [], "there is nothing left to do"
    assert {entry["state"] for entry in tuned(host, "status")["journal"]} == {"applied"}

    host.check("nearpath tune rollback")
    assert state(host, server.pid) == before
    assert tuned(host, "status")["journal"] == []


@lab(topology=TWO_NODES, nics=VIRTIO)
def test_memory_of_a_process_with_a_device_stays(host: Host) -> None:
    """A saved plan does not move what a device may write to since; nor does undoing it."""
    server = start_server(host, str(FAR_CPU), PORT)
    host.check(f"mountpoint -q {CGROUPS} || mount -t cgroup2 none {CGROUPS}; mkdir -p {SERVER}")
    host.check(f"echo +cpuset >{CGROUPS}/cgroup.subtree_control && echo +cpuset >{CGROUPS}/app/cgroup.subtree_control")
    host.check(f"echo {server.pid} >{SERVER}/cgroup.procs && echo 0-3 >{SERVER}/cpuset.cpus")
    host.check(f"echo 0 >{SERVER}/cpuset.mems")
    plan = tuned(host, "plan", "--nic", "nic0", "--pid", str(server.pid), "--cpuset")
    host.write("/root/plan.json", json.dumps(plan).encode())
    assert any(change["target"].startswith("cpuset.mems") for change in plan["changes"]), plan

    # What matters is the name that the descriptor has.
    opens = f"exec 3>/dev/uio9; echo $$ >{SERVER}/workers/cgroup.procs; exec sleep 600"
    host.check(f"mkdir {SERVER}/workers")
    device = host.start(opens)
    wait_until(lambda: host.check(f"cat {SERVER}/workers/cgroup.procs").strip() != "", "it is in the cgroup")
    before = state(host, server.pid)
    for words in ("apply /root/plan.json", "apply /root/plan.json --force", "apply /root/plan.json --dry-run"):
        refused = host.run(f"nearpath tune {words}")
        assert refused.status == 1 and "/dev/uio9 open" in refused.err, refused
    assert state(host, server.pid) == before
    assert tuned(host, "status")["journal"] == []

    device.kill("KILL")
    device.wait()
    host.check("nearpath tune apply /root/plan.json")
    device = host.start(opens)
    wait_until(lambda: host.check(f"cat {SERVER}/workers/cgroup.procs").strip() != "", "it is in the cgroup again")
    refused = host.run("nearpath tune rollback")
    assert refused.status == 1 and "/dev/uio9 open" in refused.out + refused.err, refused
    assert host.check(f"cat {SERVER}/cpuset.mems").strip() == "1"
    device.kill("KILL")
    device.wait()
    host.check("nearpath tune rollback")
    assert state(host, server.pid) == before
