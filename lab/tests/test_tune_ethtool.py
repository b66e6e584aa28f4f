"""What ethtool sets is set by `tune apply` and put back to the byte; what a driver refuses is reported.

The guest's own ethtool says what there is. Each model of NIC takes some settings and refuses others.
"""

import json
from dataclasses import dataclass
from typing import Any

from lab import Host, Nic
from lab.fixtures import lab, representative
from lab.waiting import wait_until

from .hosts import IGB, MEMORY_NODE, ONE_NODE, TWO_NODES, VIRTIO

ASKED = ("-l", "-g", "-c", "-x", "-k", "-n")
QUEUES = "/sys/class/net/nic0/queues"
# The interrupts of the device and of its queues.
IRQS = r"$(sed -nE 's/^ *([0-9]+):.*(nic0|virtio[0-9]+-(in|out)put).*/\1/p' /proc/interrupts)"
PRIORITY = "ether vlan 40960/0xe000 queue 1"
KEY = ":".join(f"{byte:02x}" for byte in range(1, 41))


@dataclass(frozen=True)
class Requested:
    """A setting, what it is to be, and the words of the guest's ethtool that show it."""

    setting: str
    after: str
    option: str
    reported: tuple[str, ...]


RINGS = Requested("rings", "rx 128 tx 128", "-g", ())
COALESCE = Requested("coalesce", "rx-usecs 50", "-c", ("rx-usecs: 50",))
RSS = Requested("rss", "weight 1 3", "-x", ("0:      0     0     0     0", "1     1     1     1"))
RSS_KEY = Requested("rss-key", KEY, "-x", (KEY,))
GRO = Requested("feature rx-gro", "off", "-k", ("generic-receive-offload: off",))
CHANNELS = Requested("channels", "combined 2", "-l", ("Combined:\t2",))
RULE = Requested("rule 3", PRIORITY, "-n", ())
FILTER = Requested("feature rx-ntuple-filter", "on", "-k", ())
EVERY = (RINGS, COALESCE, RSS, RSS_KEY, GRO, CHANNELS, RULE, FILTER)

TAKEN = {
    "igb": {RINGS, COALESCE, RSS, GRO, CHANNELS},
    "virtio": {RINGS, RSS, RSS_KEY, GRO, CHANNELS},
    "vmxnet3": {RINGS, RSS, GRO},
    "e1000e": {RINGS, COALESCE, GRO},
}
# virtio-net has RSS since Linux 5.18, and sets its rings since 6.0.
LATER = {("virtio", "5.10"): {RINGS, RSS, RSS_KEY}}


def everything(host: Host) -> str:
    """Every byte that ethtool prints, and what a change of channels resets."""
    asked = [f"ethtool {option} nic0 2>&1" for option in ASKED]
    asked.append(f"head -v -n -0 {QUEUES}/*x-*/?ps_* 2>/dev/null")
    asked.append(f"for irq in {IRQS}; do cat /proc/irq/$irq/smp_affinity_list || exit; done")
    return host.check("; ".join(asked))


def plan_of(host: Host, *settings: Requested) -> bytes:
    """A plan of settings, for whatever there is now."""
    plan: dict[str, Any] = json.loads(host.check("nearpath tune plan --nic nic0 --json"))
    plan["changes"] = [
        {
            "id": setting.setting,
            "kind": "test",
            "target": f"ethtool nic0 {setting.setting}",
            "before": setting.after,
            "after": setting.after,
            "why": "a test",
            "finding": None,
            "persist": [],
            "reboot": False,
            "optional": False,
        }
        for setting in settings
    ]
    return json.dumps(plan).encode()


def apply(host: Host, *settings: Requested) -> None:
    """Applies settings, and sees by ethtool that they are there."""
    host.write("/root/plan.json", plan_of(host, *settings))
    host.check("nearpath tune apply /root/plan.json --force")
    for setting in settings:
        reported = host.check(f"ethtool {setting.option} nic0")
        assert all(words in reported for words in setting.reported), (setting, reported)


@lab(tiers=(representative,), topology=TWO_NODES, nics=IGB)
@lab(topology=TWO_NODES, nics=VIRTIO)
@lab(topology=MEMORY_NODE, nics=(Nic("vmxnet3", node=2),))
@lab(topology=ONE_NODE, nics=(Nic("e1000e"),))
def test_set_and_put_back(host: Host) -> None:
    """What the NIC takes is set and put back; what it refuses is reported as not supported."""
    model = host.machine.nics[0].model
    taken = TAKEN[model] - LATER.get((model, host.machine.kernel), set())
    # Not the values that it booted with.
    host.check(f"echo 3 >{QUEUES}/rx-0/rps_cpus")
    host.check(f"for irq in {IRQS}; do echo 0 >/proc/irq/$irq/smp_affinity_list || true; done")
    before = everything(host)

    # First, as the kernel takes no fewer channels than a table of RSS needs that was ever set.
    if CHANNELS in taken:
        apply(host, CHANNELS)
        host.check("nearpath tune rollback")
        assert everything(host) == before, "what the queues had comes back with them"

    apply(host, *(setting for setting in EVERY if setting in taken and setting is not CHANNELS))
    assert everything(host) != before
    states = json.loads(host.check("nearpath tune verify --json"))["journal"]
    assert {entry["state"] for entry in states} == {"applied"}
    host.check("nearpath tune rollback")
    assert everything(host) == before

    for setting in (setting for setting in EVERY if setting not in taken):
        host.write("/root/plan.json", plan_of(host, setting))
        refused = host.run("nearpath tune apply /root/plan.json --force")
        assert refused.status == 1 and setting.setting in refused.err, (setting, refused)
        assert everything(host) == before, setting
    assert json.loads(host.check("nearpath tune status --json"))["journal"] == []


@lab(topology=TWO_NODES, nics=IGB)
def test_a_nic_without_rules_is_told_of(host: Host) -> None:
    """A VLAN priority asked of a NIC that takes no n-tuple rules: the plan says so, and plans no rule."""
    plan = json.loads(host.check("nearpath tune plan --nic nic0 --priority 5:1 --json"))
    (xdp,) = [change for change in plan["changes"] if change["kind"] == "xdp"]
    assert "rx-ntuple-filter" in xdp["why"] and xdp["after"] == "pcp 5 cpu 1", plan
    assert not [change for change in plan["changes"] if "rule" in change["target"]], plan["changes"]


@lab(topology=TWO_NODES, nics=IGB)
def test_a_nic_that_pretends_is_found_out(host: Host) -> None:
    """ethtool reports success for a rule that igb has refused. nearpath reports the refusal, and undoes the rest of the
    plan, although that was accepted."""
    pretended = host.run("ethtool -N nic0 flow-type ether vlan 0xa000 m 0x1fff action 3 loc 3")
    assert pretended.status == 0, pretended
    assert "Total 0 rules" in host.check("ethtool -n nic0"), "and there is none"
    before = everything(host)
    host.write("/root/plan.json", plan_of(host, COALESCE, RINGS, RULE))
    refused = host.run("nearpath tune apply /root/plan.json --force")
    assert refused.status == 1 and RULE.setting in refused.err, refused
    assert everything(host) == before
    assert json.loads(host.check("nearpath tune status --json"))["journal"] == []


@lab(topology=TWO_NODES, nics=VIRTIO)
def test_channels_for_the_cores_near(host: Host) -> None:
    """Four channels for two near cores: with one requested for each, they are two; a second plan places them."""
    asked = "--nic nic0 --channels near"
    plan = json.loads(host.check(f"nearpath tune plan {asked} --json"))
    assert [(change["before"], change["after"]) for change in plan["changes"]] == [("combined 4", "combined 2")]
    assert any("plan again" in note for note in plan["notes"])
    host.check(f"nearpath tune apply {asked}")
    again = json.loads(host.check(f"nearpath tune apply {asked} --json"))
    assert any(change["target"].startswith("/proc/irq/") for change in again["changes"]), again
    assert json.loads(host.check(f"nearpath tune plan {asked} --json"))["changes"] == []
    host.check("nearpath tune rollback")
    assert "Combined:\t4" in host.check("ethtool -l nic0").split("Current")[1]


@lab(topology=TWO_NODES, nics=IGB)
@lab(topology=ONE_NODE, nics=(Nic("e1000e"),))
def test_a_delay_that_the_driver_does_not_take_is_left_out(host: Host) -> None:
    """These drivers refuse delays of 4 to 9 µs: what is optional is left out, and the planner picks another."""
    before = everything(host)
    assert host.run("ethtool -C nic0 rx-usecs 8").status != 0
    plan = json.loads(plan_of(host, Requested("coalesce", "rx-usecs 8", "-c", ()), RINGS))
    for optional in (False, True):
        plan["changes"][0]["optional"] = optional
        host.write("/root/plan.json", json.dumps(plan).encode())
        made = host.run("nearpath tune apply /root/plan.json --force --json")
        if optional:
            document = json.loads(made.out)
            assert [change["target"] for change in document["changes"]] == ["ethtool nic0 rings"], document
            assert "does not accept this value" in document["skipped"][0]["reason"], document
            host.check("nearpath tune rollback")
        else:
            assert made.status == 1 and "does not accept this value" in made.err, made
        assert everything(host) == before

    # The undo of the rings has reset the device: what it reports is complete when its link is up again.
    wait_until(lambda: host.read("/sys/class/net/nic0/carrier") == b"1\n", "nic0 has a link")
    plan = json.loads(host.check("nearpath tune plan --nic nic0 --json"))
    delays = [change for change in plan["changes"] if change["kind"] == "coalescing"]
    assert len(delays) == 1, plan
    [delay] = delays
    assert delay["after"] == "rx-usecs 10", delay
    plan["changes"] = [delay]
    host.write("/root/plan.json", json.dumps(plan).encode())
    assert json.loads(host.check("nearpath tune apply /root/plan.json --json"))["skipped"] == []
    assert "rx-usecs:\t10" in host.check("ethtool -c nic0") or "rx-usecs: 10" in host.check("ethtool -c nic0")
    host.check("nearpath tune rollback")
    assert everything(host) == before
