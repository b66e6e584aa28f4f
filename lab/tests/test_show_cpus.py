"""`nearpath show`: CPUs, caches, nodes and their memory, against lscpu, numactl and sysfs."""

import re
from typing import Any

from lab import Machine

from .hosts import on_every_host
from .show import LSCPU, OFFLINE_CPU, Reading, cpus

CPU = "/sys/devices/system/cpu"
NODE = "/sys/devices/system/node"
# Memory is allocated and freed while it is read.
FREE_MOVES_BYTES = 32 << 20


def lscpu(reading: Reading) -> dict[int, dict[str, str]]:
    """The columns of lscpu by CPU; an offline CPU has empty ones."""
    text = reading.tool(LSCPU)
    *_, header = (line for line in text.splitlines() if line.startswith("#"))
    names = header.removeprefix("# ").split(",")
    rows = (line.split(",") for line in text.splitlines() if not line.startswith("#"))
    return {int(row[0]): dict(zip(names, row, strict=False)) for row in rows}


def groups(of_cpus: dict[int, Any]) -> set[frozenset[int]]:
    """The sets of CPUs with the same value."""
    return {frozenset(cpu for cpu, other in of_cpus.items() if other == value) for value in of_cpus.values()}


def online(reading: Reading) -> list[dict[str, Any]]:
    """The CPUs that nearpath shows as online."""
    return [cpu for cpu in reading.shown["cpus"] if cpu["online"]]


@on_every_host
def test_cpus_and_which_are_online(reading: Reading) -> None:
    tool = lscpu(reading)
    assert {cpu["cpu"]: cpu["online"] for cpu in reading.shown["cpus"]} == {
        cpu: row["Online"] == "Y" for cpu, row in tool.items()
    }
    assert len(tool) == reading.machine.topology.cpus
    for field in ("online", "present", "possible"):
        assert reading.shown[field] == reading.files[f"{CPU}/{field}"]


@on_every_host
def test_cores_packages_and_nodes_of_cpus(reading: Reading) -> None:
    tool = {cpu: row for cpu, row in lscpu(reading).items() if row["Online"] == "Y"}
    for cpu in online(reading):
        topology = f"{CPU}/cpu{cpu['cpu']}/topology"
        assert str(cpu["core"]) == reading.files[f"{topology}/core_id"]
        assert str(cpu["package"]) == reading.files[f"{topology}/physical_package_id"]
        assert str(cpu["die"]) == reading.files[f"{topology}/die_id"]
        assert str(cpu["node"]) == tool[cpu["cpu"]]["Node"]
        # lscpu's core numbers are unique on the host, the kernel's only within a package.
        core = tool[cpu["cpu"]]["Core"]
        assert cpus(cpu["siblings"]) == {other for other, row in tool.items() if row["Core"] == core}
        # 65535 is the kernel's value for none; Linux 5.10 has no clusters.
        cluster = reading.files.get(f"{topology}/cluster_id", "65535")
        assert cpu["cluster"] == (None if cluster == "65535" else int(cluster))
        assert ((f"cpu {reading.shown['online']}", "cluster") in reading.unknown) == (cpu["cluster"] is None)
        # Not a hybrid machine: there are no kinds, and all have the same capacity, if the kernel reports it.
        capacity = reading.files.get(f"{CPU}/cpu{cpu['cpu']}/cpu_capacity")
        assert (cpu["kind"], cpu["capacity"]) == (None, None if capacity is None else int(capacity))
    packages = {cpu["cpu"]: cpu["package"] for cpu in online(reading)}
    assert groups(packages) == groups({cpu: row["Socket"] for cpu, row in tool.items()})


@on_every_host
def test_last_level_caches(reading: Reading) -> None:
    caches = {cpu["cpu"]: cpu["llc"] for cpu in online(reading)}
    assert groups(caches) == groups({cpu: row["L3"] for cpu, row in lscpu(reading).items() if row["Online"] == "Y"})
    assert {llc["llc"]: cpus(llc["cpus"]) for llc in reading.shown["llcs"]} == {
        cache: {cpu for cpu, other in caches.items() if other == cache} for cache in caches.values()
    }
    for llc in reading.shown["llcs"]:
        cache = f"{CPU}/cpu{min(cpus(llc['cpus']))}/cache/index3"
        assert str(llc["level"]) == reading.files[f"{cache}/level"]
        assert f"{llc['size_bytes'] >> 10}K" == reading.files[f"{cache}/size"]
        # Some kernels keep offline CPUs in it.
        assert cpus(llc["cpus"]) == cpus(reading.files[f"{cache}/shared_cpu_list"]) & caches.keys()


@on_every_host
def test_nodes_their_cpus_and_distances(reading: Reading) -> None:
    tool = reading.tool("numactl --hardware")
    assert [node["node"] for node in reading.shown["nodes"]] == list(range(len(reading.machine.topology.cores)))
    for node in reading.shown["nodes"]:
        (numbers,) = re.findall(rf"^node {node['node']} cpus:(.*)$", tool, re.MULTILINE)
        assert cpus(node["cpus"]) == {int(cpu) for cpu in numbers.split()}
        assert node["cpus"] == reading.files.get(f"{NODE}/node{node['node']}/cpulist", "")
        (numbers,) = re.findall(rf"^ +{node['node']}:(.*)$", tool, re.MULTILINE)
        assert list(node["distances"].values()) == [int(distance) for distance in numbers.split()]
        assert list(node["distances"]) == [str(other["node"]) for other in reading.shown["nodes"]]


@on_every_host
def test_memory_of_nodes(reading: Reading) -> None:
    tool = reading.tool("numactl --hardware")
    for node in reading.shown["nodes"]:
        (size,) = re.findall(rf"^node {node['node']} size: (\d+) MB$", tool, re.MULTILINE)
        assert node["memory_bytes"] >> 20 == int(size)
        (free,) = re.findall(rf"^node {node['node']} free: (\d+) MB$", tool, re.MULTILINE)
        assert abs(node["free_bytes"] - (int(free) << 20)) < FREE_MOVES_BYTES


@on_every_host
def test_huge_pages_of_nodes(reading: Reading) -> None:
    for node in reading.shown["nodes"]:
        assert node["hugepages"]
        for size, pages in node["hugepages"].items():
            folder = f"{NODE}/node{node['node']}/hugepages/hugepages-{int(size) >> 10}kB"
            files = {"total": "nr_hugepages", "free": "free_hugepages", "surplus": "surplus_hugepages"}
            assert pages == {field: int(reading.files[f"{folder}/{file}"]) for field, file in files.items()}


@on_every_host
def test_numastat(reading: Reading) -> None:
    def parse(text: str) -> dict[str, dict[str, int]]:
        nodes: dict[str, dict[str, int]] = {}
        for node, name, count in re.findall(r"/node(\d+)/numastat:(\w+) (\d+)$", text, re.MULTILINE):
            nodes.setdefault(node, {})[name] = int(count)
        return nodes

    before, after = reading.between(parse, f"grep -sH . {NODE}/node*/numastat")
    for node in reading.shown["nodes"]:
        low, high = before[str(node["node"])], after[str(node["node"])]
        assert node["numastat"].keys() == low.keys()
        assert all(low[name] <= count <= high[name] for name, count in node["numastat"].items())
    assert all(node["numastat"]["numa_hit"] > 0 for node in reading.shown["nodes"])


@on_every_host
def test_the_topology_is_that_of_the_machine(machine: Machine, readings: dict[str, Reading]) -> None:
    topology = machine.topology
    nodes = range(len(topology.cores))
    shown = readings["booted"].shown
    assert [cpus(node["cpus"]) for node in shown["nodes"]] == [set(topology.cpus_of(node)) for node in nodes]
    assert {cpu["cpu"]: cpu["node"] for cpu in shown["cpus"]} == {
        cpu: node for node in nodes for cpu in topology.cpus_of(node)
    }
    assert {len(cpus(cpu["siblings"])) for cpu in shown["cpus"]} == {topology.threads}
    assert len(groups({cpu["cpu"]: cpu["package"] for cpu in shown["cpus"]})) == topology.sockets()[0]
    far = {int(to): d for node in shown["nodes"] for to, d in node["distances"].items() if int(to) != node["node"]}
    assert set(far.values()) == ({topology.distance} if len(nodes) > 1 else set())


@on_every_host
def test_a_cpu_that_is_offline(readings: dict[str, Reading]) -> None:
    was, now = (readings[state].shown for state in ("booted", "changed"))
    assert cpus(was["online"]) - cpus(now["online"]) == {OFFLINE_CPU}
    gone = now["cpus"][OFFLINE_CPU]
    assert (gone["cpu"], gone["online"]) == (OFFLINE_CPU, False)
    # The kernel discards its core and cache siblings, but not its node.
    assert [gone[field] for field in ("core", "package", "llc", "siblings")] == [None] * 4
    assert gone["node"] == was["cpus"][OFFLINE_CPU]["node"]
    lists = [cpu["siblings"] for cpu in now["cpus"] if cpu["online"]]
    lists += [part["cpus"] for part in (*now["llcs"], *now["nodes"])]
    assert not any(OFFLINE_CPU in cpus(cpulist) for cpulist in lists)
    assert OFFLINE_CPU not in {row["cpu"] for row in now["softnet"]}


@on_every_host
def test_the_text_has_a_line_for_each_node(readings: dict[str, Reading]) -> None:
    reading = readings["changed"]
    text = reading.tool("nearpath show nodes")
    for node in reading.shown["nodes"]:
        memory = f"{round(node['memory_bytes'] / (1 << 20))} MiB"
        assert re.search(rf"^ +{node['node']}  {node['cpus'] or '-'} +{memory} ", text, re.MULTILINE), text
