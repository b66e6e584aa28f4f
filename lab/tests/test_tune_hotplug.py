"""A CPU goes offline and comes back while changes of its NIC are in effect, on virtio-net as it boots.

virtio_net sets the interrupts and the XPS of all its queues each time. What it sets is what the queues had before the
plan, so that only the kernel's own record of CPUs distinguishes that from an administrator who set them back.
"""

import json
from typing import Any

from lab import Host
from lab.fixtures import lab
from lab.waiting import wait_until

from .changes import IRQS, QUEUES
from .hosts import TWO_NODES, VIRTIO

RPS, XPS = f"{QUEUES}/rx-1/rps_cpus", f"{QUEUES}/tx-1/xps_cpus"
# The CPUs of the NIC's node, to which everything is moved, and one that goes though nothing is moved to it.
NEAR, FAR = TWO_NODES.cpus_of(1), TWO_NODES.cpus_of(0)[-1]


def settings(host: Host) -> dict[str, str]:
    """Every affinity, RPS and XPS of the NIC, by path."""
    paths = f"{QUEUES}/rx-*/rps_cpus {QUEUES}/tx-*/xps_cpus"
    said = host.check(
        f"for irq in {IRQS}; do echo /proc/irq/$irq/smp_affinity_list $(cat /proc/irq/$irq/smp_affinity_list); done;"
        f"for file in {paths}; do echo $file $(cat $file); done"
    )
    return dict(line.split(" ", 1) for line in said.splitlines())


def tune(host: Host, *words: str) -> dict[str, Any]:
    """What nearpath says of it."""
    document: dict[str, Any] = json.loads(host.check(["nearpath", "tune", *words, "--json"]))
    return document


def states(host: Host) -> dict[str, str]:
    """The state of each change, by target."""
    return {entry["target"]: entry["state"] for entry in tune(host, "status")["journal"]}


def apply(host: Host) -> dict[str, str]:
    """Moves interrupts, also of the CPU that goes, and RPS and XPS of a queue to the NIC's node; the new values."""
    plan = tune(host, "plan", "--nic", "nic0")
    irqs = [change for change in plan["changes"] if change["kind"] == "irq_affinity"]
    assert {change["before"] for change in irqs} >= {str(FAR)}, plan
    now = settings(host)
    mask = f"{sum(1 << cpu for cpu in NEAR):x}"
    masks = [{**irqs[0], "id": path, "target": path, "before": now[path], "after": mask} for path in (RPS, XPS)]
    for change in masks:
        change.pop("interrupt", None)
    plan["changes"] = irqs + masks
    host.write("/root/plan.json", json.dumps(plan).encode())
    host.check("nearpath tune apply /root/plan.json")
    return {change["target"]: change["after"] for change in plan["changes"]}


def set_online(host: Host, cpu: int, online: int) -> None:
    """Plugs a CPU, or unplugs it."""
    host.check(f"echo {online} >/sys/devices/system/cpu/cpu{cpu}/online")


def is_in_effect(host: Host, wanted: dict[str, str]) -> bool:
    """Whether the host has these values; a mask is written with or without leading zeros."""
    now = settings(host)
    return all(now[path].lstrip("0") == value.lstrip("0") for path, value in wanted.items())


@lab(topology=TWO_NODES, nics=VIRTIO)
def test_watched_across_a_cpu_that_goes_and_undone_while_it_is_offline(host: Host) -> None:
    """What the driver sets is re-applied at once; undone while a CPU is offline, all is as it was once it is back."""
    before = settings(host)
    wanted = apply(host)
    watch = host.start("exec nearpath tune watch --json >/root/watch.jsonl 2>/root/watch.log")
    wait_until(lambda: "watching" in host.run("cat /root/watch.log").out, "it watches")
    set_online(host, FAR, 0)
    wait_until(lambda: is_in_effect(host, wanted), "re-applied")
    wait_until(lambda: set(states(host).values()) == {"applied"}, "and in the journal")
    assert set(states(host)) == set(wanted)

    host.check("nearpath tune rollback")
    assert states(host) == {}
    set_online(host, FAR, 1)
    wait_until(lambda: settings(host) == before, "all as it was")
    watch.kill()
    assert watch.wait().status == 0
    assert settings(host) == before
    notices = [json.loads(line) for line in host.check("cat /root/watch.jsonl").splitlines()]
    assert {notice["event"] for notice in notices} <= {"restored", "lost"}, notices


@lab(topology=TWO_NODES, nics=VIRTIO)
def test_a_change_waits_for_its_cpu(host: Host) -> None:
    """The driver's own value is there again when its CPU is back: nobody has set it back, and it is re-applied."""
    before = settings(host)
    wanted = apply(host)
    gone = NEAR[-1]
    set_online(host, gone, 0)
    lacking = {target for target, state in states(host).items() if state != "applied"}
    assert lacking, "the driver has set some of them"
    assert all(states(host)[target] == "drifted" for target in lacking), states(host)
    exported = host.run("nearpath tune export --applied --as sh")
    assert exported.status == 0 and "drift" not in exported.err, exported
    host.check("nearpath tune watch --once")
    set_online(host, gone, 1)
    host.check("nearpath tune watch --once")
    assert is_in_effect(host, wanted), (settings(host), wanted)
    journal = {entry["target"]: entry["before"] for entry in tune(host, "status")["journal"]}
    assert journal == {target: before[target] for target in wanted}
    host.check("nearpath tune rollback")
    assert settings(host) == before

    # Nobody but an administrator sets it back without a CPU that goes.
    apply(host)
    for path in wanted:
        host.write(path, before[path].encode())
    host.check("nearpath tune watch --once")
    assert settings(host) == before


@lab(topology=TWO_NODES, nics=VIRTIO)
def test_a_thread_waits_for_its_cpu(host: Host) -> None:
    """The kernel lets a thread run on all CPUs when its own goes; once that is back, the affinity is re-applied."""
    gone = NEAR[-1]
    # One that sleeps would keep its affinity: the kernel looks when it wakes up.
    job = host.start("while :; do sleep 0.1; done")
    stat = host.check(["cat", f"/proc/{job.pid}/stat"])
    start = stat.rpartition(")")[2].split()[22 - 3]
    target = f"affinity pid {job.pid} tid {job.pid} start {start}"

    def cpus() -> str:
        return host.check(f"grep Cpus_allowed_list /proc/{job.pid}/status").split()[1]

    before = cpus()
    plan = tune(host, "plan", "--nic", "nic0")
    change = {"id": "thread", "kind": "thread_affinity", "target": target, "before": before, "after": str(gone)}
    change |= {"finding": None, "persist": [], "reboot": False, "optional": False, "why": "a test"}
    host.write("/root/plan.json", json.dumps(plan | {"changes": [change]}).encode())
    host.check("nearpath tune apply /root/plan.json")
    assert cpus() == str(gone)

    set_online(host, gone, 0)
    wait_until(lambda: cpus() != str(gone), "the kernel lets it run elsewhere")
    assert states(host) == {target: "drifted"}
    host.check("nearpath tune watch --once")
    assert cpus() != str(gone)
    set_online(host, gone, 1)
    host.check("nearpath tune watch --once")
    assert cpus() == str(gone)
    (entry,) = tune(host, "status")["journal"]
    assert (entry["target"], entry["state"], entry["before"]) == (target, "applied", before)
    host.check("nearpath tune rollback")
    assert cpus() == before

    # Nobody but an administrator lets it run elsewhere without a CPU that goes.
    host.check("nearpath tune apply /root/plan.json")
    host.check(f"taskset -cp {before} {job.pid}")
    host.check("nearpath tune watch --once")
    assert cpus() == before
    job.kill()
