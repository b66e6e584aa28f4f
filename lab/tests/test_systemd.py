"""Services of a running systemd are bound to the NIC's node by systemd; interrupts are banned from irqbalance,
or it is stopped; and everything is restored.
"""

import json
from typing import Any

from lab import Host
from lab.fixtures import lab, representative
from lab.waiting import wait_until

from .conversations import SERVER
from .hosts import TWO_NODES, VIRTIO

FAR = TWO_NODES.cpus_of(0)
NEAR = TWO_NODES.cpus_of(1)
PORT = 5001
SERVICE = f"""
[Service]
ExecStart=/usr/bin/python3 /root/server.py {PORT}
"""


def tuned(host: Host, *words: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(host.check(["nearpath", "tune", *words, "--json"]))
    return document


def boot_systemd(host: Host, *services: str) -> None:
    """Makes process 1 systemd, and starts services."""
    host.check("kill -USR1 1")
    wait_until(lambda: host.run("systemctl is-active basic.target").status == 0, "systemd has started")
    for service in services:
        host.check(["systemctl", "start", service])


def shown(host: Host, unit: str, *properties: str) -> dict[str, str]:
    """systemd's properties of a unit."""
    words = [f"--property={name}" for name in properties]
    lines = host.check(["systemctl", "show", *words, unit]).splitlines()
    return dict(line.split("=", 1) for line in lines)


def allowed(host: Host, unit: str) -> set[str]:
    """The CPUs that its threads may run on."""
    pid = shown(host, unit, "MainPID")["MainPID"]
    return set(host.check(f"grep -h Cpus_allowed_list /proc/{pid}/task/*/status").split()[1::2])


def files_below_run(host: Host) -> str:
    """The drop-ins in which systemd keeps runtime settings until the next boot, and their contents."""
    return host.check("find /run/systemd/system.control -type f -print -exec cat {} + 2>/dev/null | sort || true")


@representative
@lab(topology=TWO_NODES, nics=VIRTIO)
def test_a_service_is_bound_by_systemd_and_released(host: Host) -> None:
    host.write("/root/server.py", SERVER.encode())
    host.write("/etc/systemd/system/answer.service", SERVICE.encode())
    boot_systemd(host, "answer")
    wait_until(lambda: f":{PORT} " in host.check("ss -Htuln"), "the service is bound")
    asked = ["--nic", "nic0", "--unit", "answer", "--cpuset"]

    before = allowed(host, "answer")
    drop_ins = files_below_run(host)
    plan = tuned(host, "plan", *asked)
    changes = {change["target"]: change["after"] for change in plan["changes"]}
    assert changes["unit answer.service AllowedMemoryNodes"] == "1", plan
    cpus = changes["unit answer.service AllowedCPUs"]
    host.write("/root/plan.json", json.dumps(plan).encode())
    made = tuned(host, "apply", "/root/plan.json")
    assert len(made["changes"]) == len(plan["changes"]), made
    assert allowed(host, "answer") == {cpus}
    # The drop-in was read: the next one starts there, whatever the cpuset.
    assert shown(host, "answer", "CPUAffinity", "NUMAPolicy", "NUMAMask") == {
        "CPUAffinity": cpus,
        "NUMAPolicy": "bind",
        "NUMAMask": "1",
    }
    assert tuned(host, "plan", *asked)["changes"] == [], "there is nothing left to do"
    assert {entry["state"] for entry in tuned(host, "status")["journal"]} == {"applied"}

    host.check("nearpath tune rollback")
    assert tuned(host, "status")["journal"] == []
    assert allowed(host, "answer") == before
    assert files_below_run(host) == drop_ins, "nothing is left"
    assert shown(host, "answer", "NeedDaemonReload") == {"NeedDaemonReload": "no"}
    assert shown(host, "answer", "CPUAffinity", "AllowedCPUs", "AllowedMemoryNodes", "NUMAPolicy") == {
        "CPUAffinity": "",
        "AllowedCPUs": "",
        "AllowedMemoryNodes": "",
        "NUMAPolicy": "n/a",
    }


@lab(topology=TWO_NODES, nics=VIRTIO)
def test_a_drop_in_replaces_the_lists_of_others(host: Host) -> None:
    host.write("/root/server.py", SERVER.encode())
    theirs = f"[Service]\nCPUAffinity={FAR}\nNUMAPolicy=bind\nNUMAMask=0\n"
    host.check("mkdir -p /etc/systemd/system/answer.service.d")
    host.write("/etc/systemd/system/answer.service", SERVICE.encode())
    host.write("/etc/systemd/system/answer.service.d/10-theirs.conf", theirs.encode())
    boot_systemd(host, "answer")
    wait_until(lambda: f":{PORT} " in host.check("ss -Htuln"), "the service is bound")
    before = shown(host, "answer", "CPUAffinity", "NUMAMask")

    plan = tuned(host, "plan", "--nic", "nic0", "--unit", "answer")
    [drop_in] = [change for change in plan["changes"] if change["kind"] == "unit_drop_in"]
    cpus = drop_in["after"].split("CPUAffinity=")[-1].splitlines()[0]
    host.write("/root/plan.json", json.dumps(plan).encode())
    tuned(host, "apply", "/root/plan.json")
    assert shown(host, "answer", "CPUAffinity", "NUMAMask") == {"CPUAffinity": cpus, "NUMAMask": "1"}
    host.check("systemctl restart answer")
    assert allowed(host, "answer") == {cpus}
    host.check("nearpath tune rollback")
    assert shown(host, "answer", "CPUAffinity", "NUMAMask") == before


@lab(topology=TWO_NODES, nics=VIRTIO)
def test_irqbalance_gets_bans_or_is_stopped(host: Host) -> None:
    boot_systemd(host, "irqbalance")
    pid = shown(host, "irqbalance", "MainPID")["MainPID"]
    wait_until(lambda: host.run(f"ls /run/irqbalance/irqbalance{pid}.sock").status == 0, "irqbalance listens")
    arguments = host.check("cat /etc/default/irqbalance")

    plan = tuned(host, "plan", "--nic", "nic0")
    targets = {change["target"]: change for change in plan["changes"]}
    [running] = [change for target, change in targets.items() if target.startswith(f"irqbalance pid {pid} ")]
    planned = {target.split("/")[3] for target in targets if target.startswith("/proc/irq/")}
    assert set(running["after"].split()) >= planned != set(), running
    host.write("/root/plan.json", json.dumps(plan).encode())
    tuned(host, "apply", "/root/plan.json")
    # The daemon itself reports them. Bans do not survive a reboot: numbers then belong to other interrupts.
    again = tuned(host, "plan", "--nic", "nic0")
    assert not [change for change in again["changes"] if "irqbalance" in change["target"]], again
    assert host.check("cat /etc/default/irqbalance") == arguments
    assert {entry["state"] for entry in tuned(host, "status")["journal"]} == {"applied"}

    # A restarted daemon gets them again.
    host.check("systemctl restart irqbalance")
    pid = shown(host, "irqbalance", "MainPID")["MainPID"]
    wait_until(lambda: host.run(f"ls /run/irqbalance/irqbalance{pid}.sock").status == 0, "irqbalance listens")
    assert any(entry["state"] == "lost" for entry in tuned(host, "status")["journal"])
    host.check("nearpath tune watch --once")
    again = tuned(host, "plan", "--nic", "nic0")
    assert not [change for change in again["changes"] if "irqbalance" in change["target"]], again
    assert {entry["state"] for entry in tuned(host, "status")["journal"]} == {"applied"}
    host.check("nearpath tune rollback")
    assert host.check("cat /etc/default/irqbalance") == arguments
    undone = tuned(host, "plan", "--nic", "nic0")
    [running] = [change for change in undone["changes"] if change["target"].startswith("irqbalance pid")]
    assert running["before"] == "", running

    host.check("nearpath tune apply --nic nic0 --stop-irqbalance")
    assert shown(host, "irqbalance", "ActiveState") == {"ActiveState": "inactive"}
    host.check("nearpath tune rollback")
    assert shown(host, "irqbalance", "ActiveState") == {"ActiveState": "active"}
