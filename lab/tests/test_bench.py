"""`bench scenarios` on a host with two nodes: the application and its memory are where each scenario puts
them, and nothing remains of the full optimisation.

The virtio NIC is on node 1; its interrupts are moved to node 0.
"""

import json

from lab import Host
from lab.fixtures import lab

from .changes import IRQS
from .hosts import TWO_NODES, VIRTIO

FAR_CPU = TWO_NODES.cpus_of(0)[0]
NEAR = TWO_NODES.cpus_of(1)

# Samples where the application may run, and whether its memory is bound.
WATCH = """
while [ ! -e /root/over ]; do
    pid=$(pgrep -f '[b]ench reflect' | head -n 1) || continue
    cpus=$(sed -n 's/^Cpus_allowed_list:.//p' /proc/$pid/status) || continue
    # An exiting process has no memory, so its binding is not visible.
    maps=$(cat /proc/$pid/numa_maps) && [ -n "$maps" ] || continue
    memory=$(echo "$maps" | grep -o -m 1 'bind:[0-9]*' || echo default)
    irqs=$(cat $(for irq in IRQS; do echo /proc/irq/$irq/smp_affinity_list; done) | sort -u | tr '\\n' ' ')
    echo "$cpus $memory $irqs"
done | sort -u >/root/seen
"""


@lab(topology=TWO_NODES, nics=VIRTIO)
def test_each_scenario_places_the_application(host: Host) -> None:
    host.check(f"for irq in {IRQS}; do echo {FAR_CPU} >/proc/irq/$irq/smp_affinity_list || true; done")
    before = host.check(f"for irq in {IRQS}; do cat /proc/irq/$irq/smp_affinity_list; done")
    watching = host.start(["sh", "-c", WATCH.replace("IRQS", IRQS)])
    words = ["nearpath", "bench", "scenarios", "--address", host.machine.address(), "--nic", "nic0", "--json"]
    short = ["--cycles", "1", "--block", "1s", "--warm-up", "200ms", "--rate", "100"]
    report = json.loads(host.check([*words, *short]))
    host.check("touch /root/over")
    assert watching.wait().status == 0
    seen = [line.split() for line in host.check("cat /root/seen").splitlines()]

    near = f"{NEAR[0]}-{NEAR[-1]}"
    assert (report["node"], report["cpus"]) == (1, near), report
    assert any(change.startswith("irq-") for change in report["changes"]), report
    assert [row["scenario"] for row in report["scenarios"]] == [
        "no_binding",
        "cpu_binding",
        "cpu_and_memory_binding",
        "full_optimisation",
    ]
    assert all(row["count"] + row["lost"] == 200 for row in report["scenarios"]), report
    placed = {(cpus, memory) for cpus, memory, *_ in seen}
    assert {("0-3", "default"), (near, "default"), (near, "bind:1")} <= placed, seen
    # The queues' interrupts are near only while the full optimisation is measured, with memory bound.
    tuned = {memory for _, memory, *irqs in seen if set(irqs) & {str(cpu) for cpu in NEAR}}
    assert tuned == {"bind:1"}, seen
    assert host.check(f"for irq in {IRQS}; do cat /proc/irq/$irq/smp_affinity_list; done") == before
    assert json.loads(host.check("nearpath tune status --json"))["journal"] == []


@lab(topology=TWO_NODES, nics=VIRTIO)
def test_wrong_placements_and_autonuma_are_as_asked(host: Host) -> None:
    """Document 002's table: the memory is where the scenario puts it, and AutoNUMA is as before afterwards."""
    autonuma = "cat /proc/sys/kernel/numa_balancing"
    before = host.check(autonuma)
    watching = host.start(["sh", "-c", WATCH.replace("IRQS", IRQS)])
    words = ["nearpath", "bench", "scenarios", "--address", host.machine.address(), "--nic", "nic0", "--json"]
    short = ["--cycles", "1", "--block", "1s", "--warm-up", "200ms", "--rate", "100"]
    report = json.loads(host.check([*words, *short, "--scenarios", "memory,wrong,wrong-memory,autonuma,no-autonuma"]))
    host.check("touch /root/over")
    assert watching.wait().status == 0
    seen = [line.split() for line in host.check("cat /root/seen").splitlines()]

    far = TWO_NODES.cpus_of(0)
    placed = {(cpus, memory) for cpus, memory, *_ in seen}
    assert {(f"{far[0]}-{far[-1]}", "bind:0"), (f"{NEAR[0]}-{NEAR[-1]}", "bind:0")} <= placed, seen
    rows = {row["scenario"]: row for row in report["scenarios"]}
    assert all(row["count"] + row["lost"] == 200 for row in rows.values()), report
    elsewhere = {scenario: row["memory_elsewhere"] for scenario, row in rows.items()}
    assert elsewhere["cpu_and_memory_binding"] < 0.05, elsewhere
    assert min(elsewhere["wrong_node"], elsewhere["wrong_memory"]) > 0.95, elsewhere
    assert host.check(autonuma) == before and json.loads(host.check("nearpath tune status --json"))["journal"] == []
    # The emulated CPU has no PMU.
    assert "cache misses are not available: no PMU counts them here" in report["notes"], report["notes"]
    assert all(row["cache_misses_per_answer"] is None for row in rows.values())
