"""`nearpath show`: NICs, what their drivers report and what they do not support, against ip, ethtool, tc,
ovs-vsctl and sysfs."""

import json
import re
from typing import Any

from lab import Machine

from .hosts import on_every_host
from .show import COUNTERS, Reading, asked

NETNS = "stat --dereference --format=%i /proc/self/ns/net"
LINKS, QDISCS = (command for command in COUNTERS if command.startswith(("ip ", "tc ")))

# The facts that `show` has in common with each ethtool option.
FACTS = {"channels": "-l", "rings": "-g", "coalesce": "-c", "rss": "-x", "ntuple": "-n"}

# What each model's driver does not support: no model supports everything.
REFUSED = {
    "igb": {"rss.key"},
    "virtio": {"ntuple", "speed_mbps"},
    "vmxnet3": {"coalesce", "ntuple", "rss.key"},
    "e1000e": {"channels", "rss", "ntuple"},
}

# What it also did not support on this kernel.
REFUSED_ON_5_10 = {"virtio": {"rss"}, "vmxnet3": {"channels"}}

DRIVERS = {"igb": "igb", "virtio": "virtio_net", "vmxnet3": "vmxnet3", "e1000e": "e1000e"}

# `ethtool -k` has other names for some of the kernel's features,
OLD_NAMES = {
    "rx-checksumming": "rx-checksum",
    "generic-segmentation-offload": "tx-generic-segmentation",
    "generic-receive-offload": "rx-gro",
    "large-receive-offload": "rx-lro",
    "rx-vlan-offload": "rx-vlan-hw-parse",
    "tx-vlan-offload": "tx-vlan-hw-insert",
    "ntuple-filters": "rx-ntuple-filter",
    "receive-hashing": "rx-hashing",
}
# and combinations of several.
SUMS = {"tx-checksumming", "scatter-gather", "tcp-segmentation-offload"}


def links(text: str) -> dict[str, dict[str, Any]]:
    """The interfaces of `ip -json link`, by name."""
    return {link["ifname"]: link for link in json.loads(text)}


def number(text: str) -> int | None:
    """A number of ethtool, which prints `n/a` for none."""
    return None if text == "n/a" else int(text)


def answered(reading: Reading, fact: str) -> dict[str, str]:
    """ethtool's output for a fact, for the NICs whose drivers report it."""
    answers = {name: reading.answers[f"ethtool {FACTS[fact]} {name}"][0] for name in asked(reading.machine)}
    reported = {name: answer.text for name, answer in answers.items() if not answer.unsupported}
    assert reported.keys() == {name for name, nic in reading.nics.items() if nic[fact] is not None}, fact
    return reported


@on_every_host
def test_interfaces(reading: Reading) -> None:
    tool = links(reading.tool(LINKS))
    assert reading.nics.keys() == tool.keys()
    for name, nic in reading.nics.items():
        link = tool[name]
        assert (nic["ifindex"], nic["address"], nic["mtu_bytes"]) == (link["ifindex"], link["address"], link["mtu"])
        assert nic["state"] == link["operstate"].lower()
        assert (nic["master"], nic["link"]) == (link.get("master"), link.get("link"))


@on_every_host
def test_nics_are_those_of_the_machine(machine: Machine, reading: Reading) -> None:
    for index, made in enumerate(machine.nics):
        nic = reading.nics[f"nic{index}"]
        assert nic["address"] == machine.mac(index)
        assert nic["driver"] == DRIVERS[made.model]
        assert nic["kind"] == ("virtio" if made.is_virtio else "physical")
        # With one node the firmware reports none; there is only that one.
        assert nic["numa_node"] == made.node
        assert ((f"nic nic{index}", "numa_node") in reading.unknown) == (nic["numa_node"] is None)


@on_every_host
def test_devices(reading: Reading) -> None:
    for name in asked(reading.machine):
        nic = reading.nics[name]
        driver = reading.answers[f"ethtool -i {name}"][0].text
        reported = dict(line.partition(": ")[::2] for line in driver.splitlines() if ": " in line)
        assert nic["driver"] == reported.get("driver")
        node = reading.of_device(name, "numa_node")
        only = 0 if len(reading.machine.topology.cores) == 1 else None
        assert nic["numa_node"] == (only if node in (None, "-1") else int(node))
        assert nic["local_cpus"] == reading.of_device(name, "local_cpulist")
        assert nic["bus"] == (reported["bus-info"] or None)
    of_device = ("bus", "numa_node", "local_cpus", "speed_mbps", "physical_function")
    for name, nic in reading.nics.items():
        if not name.startswith("nic"):
            assert [nic[field] for field in of_device] == [None] * len(of_device)
        assert nic["netns"] == {"name": None, "inode": int(reading.tool(NETNS))}
    assert (reading.nics["lo"]["kind"], reading.nics["lo"]["driver"]) == ("loopback", None)


@on_every_host
def test_speed(reading: Reading) -> None:
    for name in asked(reading.machine):
        reported = re.search(r"^\tSpeed: (\d+)Mb/s$", reading.tool(f"ethtool {name}"), re.MULTILINE)
        assert reading.nics[name]["speed_mbps"] == (int(reported[1]) if reported else None)


@on_every_host
def test_channels(reading: Reading) -> None:
    for name, reported in answered(reading, "channels").items():
        both = re.findall(r"^(RX|TX|Other|Combined):\s+(\S+)$", reported, re.MULTILINE)
        most, now = ({kind.lower(): number(value) for kind, value in half} for half in (both[:4], both[4:]))
        assert reading.nics[name]["channels"] == now | {f"{kind}_max": value for kind, value in most.items()}


@on_every_host
def test_rings(reading: Reading) -> None:
    for name, reported in answered(reading, "rings").items():
        both = re.findall(r"^(RX|TX):\s+(\S+)$", reported, re.MULTILINE)
        most, now = ({kind.lower(): number(value) for kind, value in half} for half in (both[:2], both[2:]))
        assert reading.nics[name]["rings"] == now | {f"{kind}_max": value for kind, value in most.items()}


@on_every_host
def test_coalescing(reading: Reading) -> None:
    for name, reported in answered(reading, "coalesce").items():
        # ethtool writes rx-frames, rx-frame-low, and sample-interval; the kernel uses other names.
        numbers = re.findall(r"^(\S+): (\d+)$", reported, re.MULTILINE)
        words = {re.sub("-frames?", "-max-frames", word): int(value) for word, value in numbers}
        if (interval := words.pop("sample-interval", None)) is not None:
            words["rate-sample-interval"] = interval
        for title, word in (("Adaptive", "use-adaptive"), ("CQE mode", "use-cqe-mode")):
            ((rx, tx),) = re.findall(rf"^{title} RX: (\S+)  TX: (\S+)$", reported, re.MULTILINE)
            words |= {f"{word}-{way}": int(on == "on") for way, on in (("rx", rx), ("tx", tx)) if on != "n/a"}
        assert reading.nics[name]["coalesce"] == words


@on_every_host
def test_offloads(reading: Reading) -> None:
    for name in asked(reading.machine):
        (reported,) = json.loads(reading.tool(f"ethtool --json -k {name}"))
        features = {word: state for word, state in reported.items() if word not in SUMS | {"ifname"}}
        assert reading.nics[name]["offloads"] == {
            OLD_NAMES.get(word, word): state["active"] for word, state in features.items()
        }
        fixed = {OLD_NAMES.get(word, word) for word, state in features.items() if state["fixed"]}
        assert set(reading.nics[name]["fixed_offloads"]) == fixed


@on_every_host
def test_rss(reading: Reading) -> None:
    for name, reported in answered(reading, "rss").items():
        rows = re.findall(r"^ +\d+:((?: +\d+)+)$", reported, re.MULTILINE)
        ((key, functions),) = re.findall(r"RSS hash key:\n(.*)\nRSS hash function:\n((?s:.*))", reported)
        on = re.findall(r"^ +(\w+): on$", functions, re.MULTILINE)
        rss = reading.nics[name]["rss"]
        assert rss["indirection"] == [int(queue) for row in rows for queue in row.split()]
        assert rss["key"] == (None if key == "Operation not supported" else key)
        assert [rss["function"]] == on


@on_every_host
def test_ntuple_rules(reading: Reading) -> None:
    for name, reported in answered(reading, "ntuple").items():
        # No model accepts a rule, but some report the number 0.
        assert "Total 0 rules" in reported
        assert reading.nics[name]["ntuple"] == []


@on_every_host
def test_unsupported_facts_are_unknown_with_a_reason(machine: Machine, reading: Reading) -> None:
    for name, nic in reading.nics.items():
        refused = {fact for fact in (*FACTS, "speed_mbps") if nic[fact] is None}
        refused |= {"rss.key"} if nic["rss"] and nic["rss"]["key"] is None else set()
        reasons = {fact for subject, fact in reading.unknown if subject == f"nic {name}"}
        if name.startswith("nic"):
            model = machine.nics[int(name.removeprefix("nic"))].model
            older = REFUSED_ON_5_10 if machine.kernel == "5.10" else {}
            assert refused == REFUSED[model] | older.get(model, set())
        else:
            # A software interface has no speed.
            refused.discard("speed_mbps")
        assert refused == reasons & {*FACTS, "speed_mbps", "rss.key"}


@on_every_host
def test_qdiscs(reading: Reading) -> None:
    before, after = reading.between(json.loads, QDISCS)
    for name, nic in reading.nics.items():
        low, high = ([qdisc for qdisc in reported if qdisc["dev"] == name] for reported in (before, after))
        assert len(nic["qdiscs"]) == len(low) == len(high)
        for qdisc, was, is_now in zip(nic["qdiscs"], low, high, strict=True):
            assert (qdisc["kind"], qdisc["handle"]) == (was["kind"], f"{was['handle']}0")
            # tc omits zeros; ffff:fff1 is the parent of ingress qdiscs.
            parent = "root" if was.get("root") else was["parent"]
            assert qdisc["parent"] == {"ffff:fff1": "ingress"}.get(parent, re.sub("^:", "0:", parent))
            assert was["drops"] <= qdisc["drops"] <= is_now["drops"]
            assert qdisc["backlog_packets"] in (was["qlen"], is_now["qlen"])


@on_every_host
def test_statistics(reading: Reading) -> None:
    before, after = reading.between(links, LINKS)
    for name, nic in reading.nics.items():
        for way in ("rx", "tx"):
            low, high = (reported[name]["stats64"][way] for reported in (before, after))
            assert {"bytes", "packets", "errors", "dropped"} <= low.keys()
            for counter, count in low.items():
                plain = counter if counter in ("multicast", "collisions") else f"{way}_{counter}"
                # ip has other names for these.
                plain = {"rx_missed": "rx_missed_errors", "tx_carrier_changes": ""}.get(plain, plain)
                if plain:
                    assert count <= nic["statistics"][plain] <= high[counter], (name, plain)


@on_every_host
def test_traffic_is_counted(machine: Machine, readings: dict[str, Reading]) -> None:
    for index, _ in enumerate(machine.nics):
        counted = readings["booted"].nics[f"nic{index}"]["statistics"]
        assert counted["rx_packets"] >= 20
        assert counted["tx_packets"] >= 20


@on_every_host
def test_ovs(reading: Reading) -> None:
    reported = json.loads(reading.tool("ovs-vsctl --format=json --columns=name,type,ifindex list interface"))
    interfaces = {index: (name, kind) for name, kind, index in reported["data"]}
    of_ovs = {nic["ifindex"]: nic for nic in reading.nics.values() if nic["ifindex"] in interfaces}
    assert of_ovs.keys() == interfaces.keys()
    for index, nic in of_ovs.items():
        name, kind = interfaces[index]
        # The bridge's own port and other internal ports have no master: they belong to the datapath.
        assert (nic["kind"] == "ovs_internal", nic["master"]) == (
            (True, None) if kind == "internal" else (False, "ovs-system")
        ), name
    datapath = reading.nics["ovs-system"]
    assert (datapath["kind"], datapath["driver"]) == ("ovs_internal", "openvswitch")
    ports = {"nic0"} if reading.state == "booted" else {"nic0", "port1", "vxlan1"}
    assert set(reading.tool("ovs-vsctl list-ports br0").split()) == ports


@on_every_host
def test_the_text_has_a_line_for_each_interface(readings: dict[str, Reading]) -> None:
    reading = readings["changed"]
    heading, *rows = reading.tool("nearpath show nics").split("\n\n")[0].splitlines()[1:]
    columns = re.split("  +", heading)
    lines = [dict(zip(columns, re.split("  +", row.strip()), strict=True)) for row in rows]
    for line, nic in zip(lines, reading.shown["nics"], strict=True):
        node, master = nic["numa_node"], nic["master"]
        assert (line["NAME"], line["KIND"]) == (nic["name"], nic["kind"])
        assert line["NODE"] == ("-" if node is None else str(node))
        assert line["MASTER"] == ("-" if master is None else master)
