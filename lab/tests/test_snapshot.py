"""A snapshot taken in a guest shows and diagnoses the guest wherever it is read.

It is read in the guest and outside: the documents are identical, byte for byte. It shows
what the guest itself showed before and after it was taken, except for counters, which lie between.
"""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab import Host
from lab.fixtures import lab, representative

from .hosts import EVERY
from .traffic import start_reader

# Values that change on an idle host, by their paths in `show --json`.
# (The kernel adapts byte queue limits to the packets that are sent.)
VOLATILE = re.compile(
    r"/(cpu_time|softnet)/\d+/(?!cpu$)\w+"
    r"|/(softirqs|irqs|arch_irqs)/\d+/(counts|total)"
    r"|/nodes/\d+/(free_bytes|numastat/\w+)"
    r"|/nics/\d+/(statistics|driver_counters)/[^/]+"
    r"|/nics/\d+/tx_timeouts"
    r"|/nics/\d+/qdiscs/\d+/(drops|backlog_packets)"
    r"|(/nics/\d+/tx_queues|/queues)/\d+/byte_limit/limit"
)

# Those that are not counters, and may decrease. (The kernel corrects idle time afterwards.)
LEVEL = re.compile(r".*/(free_bytes|backlog_packets|backlog|input_queue|process_queue|idle|iowait|limit)")

# The kernel moves an interrupt when it next fires, possibly long after the request.
MOVED = re.compile(r"/irqs/\d+/effective_affinity|/queues/\d+/(effective_affinity|irq_nodes)")

# Checks that use counters (differences on a running host, totals in a snapshot), the check of
# readers, which on a running host reports those alone that received packets meanwhile, and
# that of their memory, whose pages the kernel moves between nodes in the meantime.
COUNTING = {
    "bond_hash",
    "cgroup_throttling",
    "coalescing",
    "conntrack",
    "cpu_power",
    "cpu_steal",
    "driver_discards",
    "irqbalance_conflict",
    "ksoftirqd_starved",
    "listen_overflows",
    "neighbour_table",
    "net_rx_concentration",
    "nic_drops",
    "nic_irq_node",
    "offloads_off",
    "pause_frames",
    "qdisc_drops",
    "reader_memory",
    "reader_placement",
    "rps_off",
    "smt_siblings",
    "softnet",
    "tap_queues",
}

SNAPSHOT = "/tmp/host.tar.zst"


@pytest.fixture
def nearpath(payload: Path) -> Path:
    """The guests' binary, on this machine."""
    return payload.with_name("nearpath")


def on_two_hosts(test: Any) -> Any:
    """Runs on two very different hosts: virtio and igb, and vmxnet3 with a node without CPUs."""
    return lab(tiers=(representative,), **EVERY[1])(lab(**EVERY[3])(test))


@on_two_hosts
def test_shows_what_the_guest_shows(host: Host, nearpath: Path, tmp_path: Path) -> None:
    before = host.check("nearpath show --json")
    host.check(f"nearpath snapshot -o {SNAPSHOT}")
    after = host.check("nearpath show --json")
    inside = host.check(f"nearpath show --snapshot {SNAPSHOT} --json")

    saved = outside(nearpath, "show", copied(host, tmp_path))
    assert saved == inside
    assert without_volatile(saved) == without_volatile(before) == without_volatile(after)

    first, between, last = (counters(json.loads(text)) for text in (before, saved, after))
    assert any(between.values())
    # A CPU that never served an interrupt is not in its counts.
    assert [path for path in first if first[path] > between.get(path, 0)] == []
    assert [path for path in between if between[path] > last.get(path, 0)] == []


@on_two_hosts
def test_diagnoses_what_the_guest_diagnoses(host: Host, nearpath: Path, tmp_path: Path) -> None:
    # Something to find: misplaced RPS, a reader on one node, and no measurement.
    host.check("for nic in br0 nic0; do echo 1 >/sys/class/net/$nic/queues/rx-0/rps_cpus; done")
    reader = start_reader(host)
    host.check(["taskset", "--cpu-list", "--pid", "1", str(reader.pid)])
    host.check("mkdir /tmp/empty && mount --bind /tmp/empty /sys/kernel/btf")

    host.check(f"nearpath snapshot -o {SNAPSHOT}")
    live = json.loads(host.check("nearpath diagnose --for 100ms --json"))
    inside = host.check(f"nearpath diagnose --snapshot {SNAPSHOT} --json")

    saved = outside(nearpath, "diagnose", copied(host, tmp_path))
    assert saved == inside
    saved = json.loads(saved)
    assert saved["measurement"] is None and live["measurement"] is None
    assert saved["host"] == live["host"]
    settings = from_settings(saved["findings"])
    assert settings == from_settings(live["findings"])
    assert {"ovs_port_rps", "autonuma_pinning", "xps_mismatch"} <= {finding["check"] for finding in settings}
    # More interrupts may have fired since.
    assert off_node(saved["findings"]) <= off_node(live["findings"])
    unchecked = [reason for reason in from_settings(saved["not_checked"]) if reason["check"] != "measurement"]
    assert unchecked == [reason for reason in from_settings(live["not_checked"]) if reason["check"] != "measurement"]


def copied(host: Host, folder: Path) -> Path:
    """The guest's snapshot, on this machine."""
    file = folder / "host.tar.zst"
    file.write_bytes(host.read(SNAPSHOT))
    return file


def outside(nearpath: Path, command: str, snapshot: Path) -> str:
    """nearpath's output for a snapshot, on this machine."""
    words = [str(nearpath), command, "--snapshot", str(snapshot), "--json"]
    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done
    return done.stdout


def without_volatile(text: str) -> str:
    """A document with the `VOLATILE` and `MOVED` values blanked, and all other bytes unchanged."""
    document = json.loads(text)
    assert as_text(document) == text
    return as_text(blanked(document))


def as_text(document: Any) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def blanked(value: Any, path: str = "") -> Any:
    if (VOLATILE.fullmatch(path) or MOVED.fullmatch(path)) and value is not None:
        return "volatile"
    if isinstance(value, dict):
        return {key: blanked(each, f"{path}/{key}") for key, each in value.items()}
    if isinstance(value, list):
        return [blanked(each, f"{path}/{index}") for index, each in enumerate(value)]
    return value


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Each scalar value of a document, with its path."""
    if isinstance(value, dict | list):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(each, f"{path}/{key}")
    else:
        yield path, value


def counters(document: Any) -> dict[str, int]:
    """The known values that only increase while a host runs."""
    paths = leaves(document)
    return {path: n for path, n in paths if VOLATILE.match(path) and not LEVEL.fullmatch(path) and n is not None}


def from_settings(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Findings, or what was not checked, of the checks that use only settings. Those of TCP use connections, too."""
    return [entry for entry in entries if entry["check"] not in COUNTING and not entry["check"].startswith("tcp_")]


def off_node(findings: list[dict[str, Any]]) -> set[str]:
    """The interrupts that `nic_irq_node` would move: of those that have fired."""
    ours = [finding for finding in findings if finding["check"] == "nic_irq_node"]
    return {change["target"] for finding in ours for change in finding["changes"]}
