"""Checks of the host's configuration and counters on a host where each is true: none of them fires before, each does
after, and the command that it prints ends it.

The judge is what was set up, by commands of this field.
"""

import json
import re
import sys
from typing import Any, NamedTuple

import pytest

from lab import Host
from lab.fixtures import lab
from lab.waiting import ended, start_measuring, wait_until

from .hosts import IGB, TWO_NODES
from .steering import take_interrupts


class Scene(NamedTuple):
    """A check, what makes it fire, and part of its title. `is_fixed`: its command ends it."""

    check: str
    command: str
    title: str
    is_fixed: bool = True


SCENES = (
    Scene("zone_reclaim", "sysctl -w vm.zone_reclaim_mode=1", "a full node reclaims memory"),
    Scene("rss_uneven", "ethtool -X nic0 weight 5 1 1 1", "RSS of nic0 is uneven"),
    Scene("net_threads_off_node", "echo 1 >/sys/class/net/nic0/threaded", "may run off the NIC's node"),
    # The pool of the other node; the NIC's node has none.
    Scene(
        "hugepages_node",
        "echo 8 >/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages",
        "node 0 has no hugepages of 2 MiB for nic0",
    ),
    Scene(
        "mtu_mismatch",
        # Interfaces that are down do not count.
        "modprobe veth; ip link add left up mtu 9000 type veth peer name right; ip link set right up",
        "MTU",
        is_fixed=False,
    ),
    Scene("tcp_options_off", "sysctl -w net.ipv4.tcp_sack=0", "off on this host"),
)


@lab(topology=TWO_NODES, nics=IGB)
def test_each_fires_and_its_command_ends_it(host: Host) -> None:
    checks = {scene.check for scene in SCENES}
    before = [finding for finding in diagnosed(host) if finding["check"] in checks]
    assert before == []

    for scene in SCENES:
        host.check(scene.command)
    found = diagnosed(host)
    for scene in SCENES:
        titles = [finding["title"] for finding in found if finding["check"] == scene.check]
        assert len(titles) == 1 and scene.title in titles[0], (scene, titles)
    # Of what nothing suffers: no alarm.
    assert {f["severity"] for f in found if f["check"] in checks} == {"info"}, found

    text = host.run("nearpath diagnose --measure tcp --for 1s -v").out
    for scene in SCENES:
        fixes = commands(text, scene.check)
        assert bool(fixes) == scene.is_fixed, (scene, text)
        for fix in fixes:
            host.check(["bash", "-c", fix])
    left = {finding["check"] for finding in diagnosed(host)}
    assert not left & {scene.check for scene in SCENES if scene.is_fixed}, left


def diagnosed(host: Host, seconds: int = 1) -> list[dict[str, Any]]:
    """The findings, of facts and counters."""
    command = ["nearpath", "diagnose", "--measure", "tcp", "--for", f"{seconds}s", "--json"]
    findings: list[dict[str, Any]] = json.loads(host.check(command))["findings"]
    return findings


def commands(text: str, check: str) -> list[str]:
    """The commands that fix what a check found, as `-v` prints them; alternatives are left out."""
    # The first one of a warning is in the answer above all findings.
    (_, after) = text.rsplit(f"[{check}]\n", 1)
    lines = re.findall(r"^ +fix: +(.*)$", after.split("\n\n", 1)[0], re.MULTILINE)
    return [line.split("    (was")[0] for line in lines]


# Datagrams to a port on which nothing listens. Arguments: address, count, pause between them in seconds.
STRAY = """
import socket, sys, time
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(int(sys.argv[2])):
    sender.sendto(bytes(64), (sys.argv[1], 7999))
    time.sleep(float(sys.argv[3]))
"""


@lab(topology=TWO_NODES, nics=IGB)
@pytest.mark.parametrize(("pause_s", "is_found"), [(2.0, False), (0.02, True)], ids=["rare", "often"])
def test_datagrams_that_nothing_waits_for(host: Host, pause_s: float, is_found: bool) -> None:
    assert not [f for f in diagnosed(host, 2) if f["check"] == "protocol_drops"]
    sender = host.peer.start(
        [sys.executable, "-c", STRAY, host.machine.address(), str(int(60 / pause_s)), str(pause_s)]
    )
    try:
        found = [f for f in diagnosed(host, 6) if f["check"] == "protocol_drops"]
    finally:
        sender.kill()
        sender.communicate()
    titles = [finding["title"] for finding in found if finding["severity"] != "critical"]
    assert len(titles) == is_found and all("nothing listens" in title for title in titles), found


# Takes memory that is preferred on node 0 (MPOL_PREFERRED), more than is free there. Arguments: pages of 4 KiB.
TAKE = """
import ctypes, mmap, sys
libc = ctypes.CDLL(None, use_errno=True)
mask = ctypes.c_ulong(1)
assert libc.syscall(238, 1, ctypes.byref(mask), 64) == 0, ctypes.get_errno()
pages = int(sys.argv[1])
memory = mmap.mmap(-1, pages * 4096)
for page in range(pages):
    memory[page * 4096] = 1
"""


@lab(topology=TWO_NODES, nics=IGB)
def test_a_full_node_is_named(host: Host) -> None:
    def node_free_pages() -> int:
        text = host.check("grep MemFree /sys/devices/system/node/node0/meminfo")
        return int(text.split()[-2]) // 4

    # Small pages: each is counted by itself.
    host.check("echo never >/sys/kernel/mm/transparent_hugepage/enabled")
    pages = node_free_pages() + 20_000
    diagnosing = start_measuring(host, "diagnose", "--measure", "tcp")
    host.check(["python3", "-c", TAKE, str(pages)])
    (finding,) = [f for f in ended(diagnosing)["findings"] if f["check"] == "node_memory"]
    # What took it has ended.
    assert finding["title"].startswith("node 0 was full: "), finding
    assert [line for line in finding["evidence"] if line.startswith("Node 1 took ")], finding


# A thread that is moved from node to node, and may run on all of them: the scheduler's choice, forced. Arguments: the
# port that it reads, and the CPUs that it is moved between.
WANDERS = """
import os, socket, sys, time
reader = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
reader.bind(("", int(sys.argv[1])))
reader.setblocking(False)
everywhere = os.sched_getaffinity(0)
print("reads", flush=True)
while True:
    for cpu in map(int, sys.argv[2:]):
        os.sched_setaffinity(0, {cpu})
        os.sched_setaffinity(0, everywhere)
        try:
            while reader.recv(2048):
                pass
        except BlockingIOError:
            pass
        time.sleep(0.02)
"""


@lab(topology=TWO_NODES, nics=IGB)
def test_a_reader_that_wanders_is_named(host: Host) -> None:
    near, far = TWO_NODES.cpus_of(0)[-1], TWO_NODES.cpus_of(1)[-1]
    reader = host.start(["python3", "-c", WANDERS, "7998", str(near), str(far)])
    host.check("until ss -Hlun 'sport = :7998' | grep -q .; do sleep 0.2; done")
    began = moves(host, reader.pid)
    found = [f for f in diagnosed(host, 5) if f["check"] == "reader_migrations"]
    (finding,) = found
    assert "python3" in " ".join(finding["evidence"]), finding
    # No packet came: nothing suffers.
    assert finding["severity"] == "info", finding
    ended_at = moves(host, reader.pid)
    # The kernel's own count, over a longer time.
    rate = (ended_at[1] - began[1]) / (ended_at[0] - began[0])
    (said,) = re.findall(r"were moved ([\d.]+) times a second", " ".join(finding["evidence"]))
    assert 0.5 * rate < float(said) < 2 * rate, (rate, finding)


def moves(host: Host, pid: int) -> tuple[float, int]:
    """The guest's time, and how often a process was moved to another CPU until then."""
    now, count = host.check(f"cut -d ' ' -f 1 /proc/uptime; grep nr_migrations /proc/{pid}/sched").split("\n")[:2]
    return float(now), int(count.split(":")[1])


@lab(topology=TWO_NODES, nics=IGB, parameters=("isolcpus=0,3", "nohz_full=3"))
def test_isolated_cpus_are_kept_free(host: Host) -> None:
    isolated, boot_cpu = 3, 0
    # The kernel keeps managed and default affinities off them; an administrator may not.
    found = {finding["check"]: finding for finding in diagnosed(host)}
    assert str(boot_cpu) in found["isolcpus_boot_cpu"]["title"], found
    take_interrupts(host, isolated)
    (finding,) = [f for f in diagnosed(host) if f["check"] == "isolated_housekeeping"]
    moved = [change for change in finding["changes"] if "smp_affinity" in change["target"]]
    assert moved and all(str(isolated) not in change["after"] for change in moved), finding
    text = host.run("nearpath diagnose --measure tcp --for 1s -v").out
    for fix in commands(text, "isolated_housekeeping"):
        host.check(["bash", "-c", fix])
    assert "isolated_housekeeping" not in {f["check"] for f in diagnosed(host)}
    for irq in host.check("grep nic0- /proc/interrupts | cut -d : -f 1").split():
        assert int(host.read(f"/proc/irq/{irq}/effective_affinity_list")) not in (isolated, boot_cpu)


# Fills memory with small pages, frees every other one, and asks for huge pages until it is killed: each needs memory to
# be compacted. Arguments: MiB to fill.
FRAGMENTS = """
import mmap, sys, time
def mapped(mib):
    return mmap.mmap(-1, mib << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
small = mapped(int(sys.argv[1]))
small.madvise(mmap.MADV_NOHUGEPAGE)
for page in range(0, len(small), 4096):
    small[page] = 1
for page in range(0, len(small), 8192):
    small.madvise(mmap.MADV_DONTNEED, page, 4096)
print("fragmented", flush=True)
while True:
    large = mapped(96)
    for page in range(0, len(large), 2 << 20):
        large[page] = 1
    large.close()
    time.sleep(0.05)
"""


@lab(topology=TWO_NODES, nics=IGB)
def test_tasks_that_wait_for_compaction_are_named_until_they_do_not(host: Host) -> None:
    folder = "/sys/kernel/mm/transparent_hugepage"
    host.check(f"echo always >{folder}/enabled && echo always >{folder}/defrag")
    free_mib = int(re.findall(r"MemFree: +(\d+)", host.check("cat /proc/meminfo"))[0]) // 1024
    host.start(f"exec python3 -c '{FRAGMENTS}' {free_mib - 40} >/tmp/fragments")
    wait_until(lambda: host.run("grep -q fragmented /tmp/fragments").status == 0, "memory is fragmented")

    def stalls() -> int:
        return int(re.findall(r"^compact_stall (\d+)", host.check("cat /proc/vmstat"), re.MULTILINE)[0])

    def found() -> list[dict[str, Any]]:
        return [finding for finding in diagnosed(host, 4) if finding["check"] == "compaction_stalls"]

    before = stalls()
    (finding,) = found()
    said = int(re.findall(r"tasks waited (\d+) time", finding["title"])[0])
    assert 0 < said <= stalls() - before, (said, before, stalls(), finding)
    text = host.run("nearpath diagnose --measure tcp --for 4s -v").out
    fixes = commands(text, "compaction_stalls")
    assert [folder in fix for fix in fixes] == [True], text
    host.check(["bash", "-c", fixes[0]])
    assert "[defer+madvise]" in host.check(f"cat {folder}/defrag")
    # One that has begun may still end.
    before = stalls()
    assert found() == [] or stalls() - before <= 1
