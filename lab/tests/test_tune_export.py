"""What is tuned outlasts more than the command: the exported script finds the interrupts of a NIC by
themselves, makes and undoes the plan; and `tune watch` makes again what a driver's reload loses.
"""

import json
import re
from typing import Any

from lab import Host
from lab.fixtures import lab
from lab.waiting import wait_until

from .changes import IRQS
from .hosts import IGB, TWO_NODES, VIRTIO
from .steering import FAR_MASK, steer
from .test_tune import SETTINGS
from .test_tune_ethtool import everything

QUEUES = "/sys/class/net/nic0/queues"


def misplace(host: Host, cpu: int) -> None:
    """All interrupts of the NIC on a CPU, and RPS to the far node."""
    host.check(f"for irq in {IRQS}; do echo {cpu} >/proc/irq/$irq/smp_affinity_list || true; done")
    steer(host, FAR_MASK)


def nearpath(host: Host, *words: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(host.check(["nearpath", "tune", *words, "--json"]))
    return document


def settings(host: Host) -> str:
    """Every byte of what may be changed; reading XPS of a device with one queue is refused."""
    return host.run(SETTINGS).out


def affinities(host: Host) -> list[str]:
    """Where the interrupts of nic0's queues may go."""
    queues = json.loads(host.check("nearpath show queues --json"))["queues"]
    return [queue["affinity"] for queue in queues if queue["nic"] == "nic0"]


@lab(topology=TWO_NODES, nics=VIRTIO)
def test_an_exported_script_finds_the_interrupts(host: Host) -> None:
    misplace(host, 0)
    before = settings(host)
    plan = nearpath(host, "plan", "--nic", "nic0")
    irqs = [change for change in plan["changes"] if change["kind"] == "irq_affinity"]
    assert len(irqs) >= 4 and all(change["interrupt"]["nic"] == "nic0" for change in irqs), plan
    assert all("systemd" in change["persist"] for change in irqs), plan
    # As if another boot had given the numbers to others, and found other devices first.
    for change in irqs:
        change["target"] = f"/proc/irq/{100_000 + irqs.index(change)}/smp_affinity_list"
        change["interrupt"]["name"] = re.sub(r"^virtio\d+", "virtio99", change["interrupt"]["name"])
    host.write("/root/plan.json", json.dumps(plan).encode())
    host.check("nearpath tune export /root/plan.json --as sh -o /root/tune.sh")
    said = host.check("/root/tune.sh apply")
    count = len(plan["changes"])
    assert f"changed {count} of {count} settings" in said, said
    assert nearpath(host, "plan", "--nic", "nic0")["changes"] == [], "there is nothing left to do"
    assert "not" not in host.check("/root/tune.sh status")
    assert host.check("/root/tune.sh apply") == f"changed 0 of {count} settings\n"
    host.check("/root/tune.sh undo")
    assert settings(host) == before


@lab(topology=TWO_NODES, nics=IGB)
def test_an_exported_script_restores_what_channels_and_rings_reset(host: Host) -> None:
    """To the byte what the NIC had in this boot, not what it had when the plan was made."""
    misplace(host, 2)
    host.check("ethtool -X nic0 weight 1 3 && ethtool -C nic0 rx-usecs 50 && ethtool -G nic0 rx 512")
    host.check(f"echo 5 >{QUEUES}/rx-3/rps_cpus && echo 256 >{QUEUES}/rx-3/rps_flow_cnt")
    host.check(f"echo 8 >{QUEUES}/tx-0/xps_cpus && echo 2 >{QUEUES}/tx-3/xps_rxqs")
    before = everything(host)
    plan = nearpath(host, "plan", "--nic", "nic0")
    wanted = (("channels", "combined 3", "combined 2"), ("rings", "rx 256", "rx 128"))
    wanted += (("coalesce", "rx-usecs 3", "rx-usecs 30"),)
    plan["changes"] = [
        {"id": what, "kind": what, "target": f"ethtool nic0 {what}", "before": old, "after": new, "why": "a test"}
        | {"finding": None, "persist": [], "reboot": False, "optional": False}
        for what, old, new in wanted
    ]
    host.write("/root/plan.json", json.dumps(plan).encode())
    host.check("nearpath tune export /root/plan.json --as sh -o /root/tune.sh")
    assert "changed 3 of 3 settings" in host.check("/root/tune.sh apply")
    assert affinities(host) == ["2"] * 4, "the queues that are left keep theirs"
    assert host.check("/root/tune.sh apply") == "changed 0 of 3 settings\n"
    host.check("/root/tune.sh undo")
    assert everything(host) == before


def apply(host: Host) -> tuple[list[str], set[str]]:
    """Plans and applies; the affinities and masks that are there then."""
    made = nearpath(host, "apply", "--nic", "nic0")
    assert {"smp_affinity_list", "rps_cpus"} <= {change["target"].split("/")[-1] for change in made["changes"]}
    return affinities(host), masks(host)


def masks(host: Host) -> set[str]:
    return set(host.check(f"cat {QUEUES}/rx-*/rps_cpus").split())


@lab(topology=TWO_NODES, nics=VIRTIO)
def test_settings_are_restored_after_a_reload_of_the_driver(host: Host) -> None:
    misplace(host, 0)
    placed = apply(host)
    watch = host.start("exec nearpath tune watch --json >/root/watch.jsonl 2>/root/watch.log")
    wait_until(lambda: "watching the changes" in host.run("cat /root/watch.log").out, "nearpath watches")
    device = "$(basename $(readlink -f /sys/class/net/nic0/device/..))"
    host.check(
        f"device={device}; cd /sys/bus/pci/drivers/virtio-pci;"
        " echo $device >unbind; ! test -e /sys/class/net/nic0; echo $device >bind;"
        # The name that the guest's network had given to it.
        " nic=$(ls /sys/bus/pci/devices/$device/virtio*/net); ip link set $nic name nic0 || test $nic = nic0;"
        " ip link set nic0 up"
    )
    restored(host, placed)
    events = [json.loads(line) for line in host.read("/root/watch.jsonl").decode().splitlines()]
    assert any(e["event"] == "restored" and "smp_affinity_list" in e["target"] for e in events), events
    assert not any(event["event"] == "failed" for event in events), events
    watch.kill("TERM")
    assert watch.wait().status == 0
    host.check("nearpath tune verify && nearpath tune rollback")


@lab(topology=TWO_NODES, nics=IGB)
def test_settings_are_restored_after_a_change_of_channels(host: Host) -> None:
    misplace(host, 2)
    placed = apply(host)
    host.check("ethtool -L nic0 combined 1 && ethtool -L nic0 combined 4")
    host.check("nearpath tune watch --once")
    restored(host, placed)
    host.check("nearpath tune verify && nearpath tune rollback")


def restored(host: Host, placed: tuple[list[str], set[str]]) -> None:
    """Waits until the NIC has what it had."""
    wait_until(lambda: (affinities(host), masks(host)) == placed, f"the NIC has {placed} again")
