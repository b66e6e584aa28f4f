"""`nearpath show memory` and `measure memory`: where memory is, against numastat(8), move_pages(2) and the kernel's own
counters, on hosts with several nodes.
"""

import json
import re
from typing import Any

import pytest

from lab import Host, Job
from lab.fixtures import lab, representative
from lab.waiting import ended, start_measuring, wait_until

from .hosts import FOUR_NODES, IGB, MEMORY_NODE, TWO_NODES

FAR_CPU, _ = TWO_NODES.cpus_of(1)
NEAR_CPU, _ = TWO_NODES.cpus_of(0)
MIB = 1 << 20
PAGE = 4096

# Maps memory of each kind (arguments: kind=MiB), writes where move_pages(2) says that each page is, and runs until
# it is killed. `cpu=N` pins it to that CPU after it has touched its memory.
PROGRAM = r"""
import ctypes, json, mmap, os, sys

MIB, PAGE = 1 << 20, 4096
PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
MAP_HUGETLB, MADV_HUGEPAGE, MADV_NOHUGEPAGE = 0x40000, 14, 15
# x86-64
SYS_move_pages = 279
libc = ctypes.CDLL(None, use_errno=True)

def nodes_of(memory, step):
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    count = len(memory) // step
    pages = (ctypes.c_void_p * count)(*range(start, start + count * step, step))
    status = (ctypes.c_int * count)()
    assert libc.syscall(SYS_move_pages, 0, ctypes.c_ulong(count), pages, None, status, 0) == 0
    bytes_by_node = {}
    for node in status:
        bytes_by_node[node] = bytes_by_node.get(node, 0) + step
    return bytes_by_node

wanted = dict(word.split("=") for word in sys.argv[1:])
kept, found = [], {}
for kind, size in wanted.items():
    if kind == "cpu":
        continue
    length = int(size) * MIB
    if kind == "anon":
        memory = mmap.mmap(-1, length, flags=PRIVATE)
        memory.madvise(MADV_NOHUGEPAGE)
    elif kind == "thp":
        memory = mmap.mmap(-1, length, flags=PRIVATE)
        memory.madvise(MADV_HUGEPAGE)
    elif kind == "hugetlb":
        memory = mmap.mmap(-1, length, flags=PRIVATE | MAP_HUGETLB)
    elif kind == "shared":
        memory = mmap.mmap(-1, length)
    else:
        with open("/root/mapped", "wb+") as file:
            file.truncate(length)
            memory = mmap.mmap(file.fileno(), length)
    for at in range(0, length, PAGE):
        memory[at] = 1
    found[kind] = nodes_of(memory, 2 * MIB if kind == "hugetlb" else PAGE)
    kept.append(memory)
if "cpu" in wanted:
    os.sched_setaffinity(0, {int(wanted["cpu"])})
with open("/root/found", "w") as file:
    json.dump(found, file)
while True:
    for memory in kept:
        sum(memory[at] for at in range(0, len(memory), PAGE))
"""


def start(host: Host, *words: str, before: str = "") -> tuple[Job, dict[str, dict[str, int]]]:
    """Starts the program, and returns where its memory is."""
    host.write("/root/program.py", PROGRAM.encode())
    host.check("rm -f /root/found")
    job = host.start(f"exec {before} python3 /root/program.py {' '.join(words)}")

    def found() -> bool:
        assert job.running(), job.wait()
        return host.run("test -s /root/found").status == 0

    wait_until(found, "the program to touch its memory")
    return job, json.loads(host.read("/root/found"))


def memory(host: Host, *words: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(host.check(["nearpath", *words, "--json"]))
    return document


def process(document: dict[str, Any], pid: int) -> dict[str, Any]:
    (found,) = (of for of in document["processes"] if of["pid"] == pid)
    return dict(found)


def of_kind(shown: dict[str, Any], kind: str) -> dict[str, int]:
    return {node: of[f"{kind}_bytes"] for node, of in shown["nodes"].items() if of[f"{kind}_bytes"]}


def numastat(host: Host, pid: int) -> dict[str, list[float]]:
    """MiB by node and kind."""
    lines = host.check(["numastat", "-p", str(pid)]).splitlines()
    rows = (re.fullmatch(r"(Huge|Heap|Stack|Private|Total)\s+([\d. ]+)", line) for line in lines)
    return {row[1]: [float(word) for word in row[2].split()[:-1]] for row in rows if row}


def assert_as_numastat(host: Host, pid: int, shown: dict[str, Any]) -> None:
    """numastat rounds to hundredths of a MiB."""
    for at, sizes in enumerate(zip(*numastat(host, pid).values(), strict=True)):
        huge, _, _, _, total = sizes
        of = shown["nodes"].get(str(at), {"hugetlb_bytes": 0})
        assert abs(sum(of.values()) / MIB - total) <= 0.0051, (at, sizes, of)
        assert abs(of["hugetlb_bytes"] / MIB - huge) <= 0.0051, (at, sizes, of)


@lab(topology=FOUR_NODES, nics=IGB)
def test_bytes_of_four_nodes_are_those_of_the_kernel(host: Host) -> None:
    """Interleaved, so that each node but the one that it runs on has a part of each kind."""
    for node in (1, 2, 3):
        host.check(f"echo 4 >/sys/devices/system/node/node{node}/hugepages/hugepages-2048kB/nr_hugepages")
    words = ("anon=12", "hugetlb=6", "shared=9", "file=3")
    job, found = start(host, *words, before="numactl --physcpubind=0 --interleave=1-3")
    host.check(f"kill -STOP {job.pid}")
    shown = process(memory(host, "show", "memory", "--pid", str(job.pid)), job.pid)
    assert of_kind(shown, "hugetlb") == found["hugetlb"] == {node: 2 * MIB for node in "123"}
    assert of_kind(shown, "shared") == found["shared"] == {node: 3 * MIB for node in "123"}
    assert_as_numastat(host, job.pid, shown)
    far = sum(size for node, of in shown["nodes"].items() if node != "0" for size in of.values())
    assert shown["remote_bytes"] == far and shown["ran_on_nodes"] == {"0": 1.0}, shown
    first = host.check(f"nearpath show memory --pid {job.pid}").splitlines()[0]
    answer = rf"python3\[{job.pid}\]: [0-9.]+% of [0-9.]+ MiB is on nodes 1-3, its threads ran on node 0"
    assert re.fullmatch(answer, first), first


@representative
@lab(topology=TWO_NODES, nics=IGB)
def test_bytes_by_node_are_those_of_the_kernel(host: Host) -> None:
    host.check("echo 4 >/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages")
    words = ("anon=12", "thp=4", "hugetlb=4", "shared=5", "file=3")
    job, found = start(host, *words, before=f"numactl --physcpubind={NEAR_CPU} --membind=1")
    host.check(f"kill -STOP {job.pid}")
    document = memory(host, "show", "memory", "--pid", str(job.pid), "--thp")
    shown = process(document, job.pid)

    # As move_pages(2) says of each page. What the interpreter has mapped besides is anonymous or of files.
    assert of_kind(shown, "hugetlb") == found["hugetlb"] == {"1": 4 * MIB}
    assert shown["hugetlb"] == {"2MiB": {"1": 4 * MIB}}
    assert of_kind(shown, "shared") == found["shared"] == {"1": 5 * MIB}
    assert found["file"] == {"1": 3 * MIB} and of_kind(shown, "file")["1"] >= 3 * MIB
    anon = of_kind(shown, "anon")["1"] - 16 * MIB
    assert found["anon"] == {"1": 12 * MIB} and found["thp"] == {"1": 4 * MIB} and 0 <= anon < 16 * MIB
    maps = host.check(f"cat /proc/{job.pid}/numa_maps")
    for node in ("0", "1"):
        pages = sum(
            int(row[1]) * int(row[2])
            for row in re.findall(rf"^(.* N{node}=(\d+)(?: .*)? kernelpagesize_kB=(\d+))$", maps, re.MULTILINE)
        )
        total = sum(shown["nodes"].get(node, {}).values())
        assert total == pages * 1024, node
    assert_as_numastat(host, job.pid, shown)
    rollup = host.check(f"grep -E '^(AnonHuge|ShmemPmd|FilePmd)' /proc/{job.pid}/smaps_rollup")
    assert shown["thp_bytes"] == 1024 * sum(int(row) for row in re.findall(r"(\d+) kB", rollup))

    assert shown["policy"] == "bind:1" and shown["allowed_nodes"] == [0] and shown["ran_on_nodes"] == {"0": 1.0}
    assert shown["remote_bytes"] == sum(shown["nodes"]["1"].values())
    pools = {of["node"]: of["hugepages"]["2MiB"] for of in document["nodes"]}
    assert (pools[0]["total"], pools[1]) == (0, {"total": 4, "free": 2})
    first = host.check(f"nearpath show memory --pid {job.pid}").splitlines()[0]
    assert re.fullmatch(rf"python3\[{job.pid}\]: .*% of .* MiB is on node 1, its threads ran on node 0", first), first
    # A snapshot says the same.
    host.check("rm -f /root/host.tar.zst; nearpath snapshot --output /root/host.tar.zst")
    saved = memory(host, "show", "memory", "--snapshot", "/root/host.tar.zst", "--pid", str(job.pid))
    assert process(saved, job.pid)["nodes"] == shown["nodes"]


@lab(topology=TWO_NODES, nics=IGB)
def test_moved_pages_have_their_reason_and_owner(host: Host) -> None:
    # AutoNUMA would move pages of others meanwhile.
    host.check("sysctl -qw kernel.numa_balancing=0")
    job, _ = start(host, "anon=16", before=f"numactl --physcpubind={NEAR_CPU} --membind=1")
    measuring = start_measuring(host, "measure", "memory", "--pid", str(job.pid))
    before = counter(host, "pgmigrate_success")
    host.check(f"migratepages {job.pid} 1 0")
    moved = counter(host, "pgmigrate_success") - before
    document = ended(measuring)
    shown = process(document, job.pid)
    assert moved >= 16 * MIB // PAGE
    rows = [of for of in document["moves"] if of["by_comm"] == "migratepages"]
    assert sum(of["moved"] for of in rows) == moved, document["moves"]
    assert {of["reason"] for of in rows} == {"syscall"}
    assert shown["moved_pages"]["syscall"]["moved"] == moved, (shown["moved_pages"], document["not_available"])
    assert {of["pid"] for of in rows} == {job.pid}
    assert shown["ran_on_nodes"] == {"0": 1.0} and shown["ran_on_basis"] == "interval"
    assert shown["remote_share"] < 0.05, "it is local now"


@lab(topology=TWO_NODES, nics=IGB)
def test_autonuma_is_seen_at_work(host: Host) -> None:
    for name, value in (("scan_delay_ms", 50), ("scan_period_min_ms", 100), ("scan_period_max_ms", 200)):
        host.check(
            f"echo {value} >/sys/kernel/debug/sched/numa_balancing/{name} 2>/dev/null || "
            f"sysctl -qw kernel.numa_balancing_{name}={value}"
        )
    # It touches its memory on one node, and then runs on the other.
    host.check("sysctl -qw kernel.numa_balancing=0")
    job, _ = start(host, "anon=16", f"cpu={FAR_CPU}", before=f"taskset -c {NEAR_CPU}")
    measuring = start_measuring(host, "measure", "memory", "--all")
    before = counter(host, "numa_pages_migrated")
    host.check("sysctl -qw kernel.numa_balancing=1")
    wait_until(lambda: counter(host, "numa_pages_migrated") - before >= 16 * MIB // PAGE, "pages to be moved")
    host.check("sysctl -qw kernel.numa_balancing=0")
    measured = ended(measuring)
    shown, counted = process(measured, job.pid), measured["vmstat"]
    # Pages of files that the process shares with others are not moved, and others have faults, too.
    assert shown["moved_pages"]["numa_misplaced"]["moved"] >= 15 * MIB // PAGE, (shown, counted)
    assert shown["hint_faults"]["pages"] >= shown["moved_pages"]["numa_misplaced"]["moved"], shown
    moved = sum(of["moved"] for of in measured["moves"] if of["reason"] == "numa_misplaced")
    assert abs(moved - counted["numa_pages_migrated"]) <= moved // 50, (moved, counted)
    # Processes that began meanwhile are not among those measured.
    faults = sum(of["hint_faults"]["pages"] for of in measured["processes"])
    assert moved <= faults <= counted["numa_hint_faults"], (faults, counted)


@lab(topology=MEMORY_NODE, nics=IGB)
def test_a_node_without_cpus_is_not_remote(host: Host) -> None:
    job, found = start(host, "anon=12", before="numactl --physcpubind=0 --membind=3")
    assert found["anon"] == {"3": 12 * MIB}
    shown = process(memory(host, "show", "memory", "--pid", str(job.pid)), job.pid)
    assert shown["cpuless_bytes"] >= 12 * MIB
    assert shown["remote_bytes"] + shown["cpuless_bytes"] + sum(shown["nodes"].get("0", {}).values()) == sum(
        sum(of.values()) for of in shown["nodes"].values()
    )
    nodes = {of["node"]: of["has_cpus"] for of in memory(host, "show", "memory")["nodes"]}
    assert nodes == {0: True, 1: True, 2: True, 3: False}


@representative
@lab(topology=TWO_NODES, nics=IGB)
def test_a_diagnosis_finds_remote_memory(host: Host) -> None:
    job, _ = start(host, "anon=80", before=f"numactl --physcpubind={NEAR_CPU} --membind=1")
    diagnosis = memory(host, "diagnose", "--measure", "memory", "--for", "3s")
    findings = {of["check"]: of for of in diagnosis["findings"]}
    finding = findings["process_memory"]
    assert f"(pid {job.pid})" in finding["title"] and finding["cost"]["share_percent"] > 90, finding
    (change,) = finding["changes"]
    assert change["target"] == f"migratepages pid {job.pid}" and (change["before"], change["after"]) == ("1", "0")
    assert f"(pid {job.pid})" in findings["memory_policy"]["title"], findings["memory_policy"]


def counter(host: Host, name: str) -> int:
    text = host.check("cat /proc/vmstat")
    found = re.search(rf"^{name} (\d+)$", text, re.MULTILINE)
    if not found:
        pytest.fail(f"no {name} in /proc/vmstat")
    return int(found[1])
