"""`nearpath show`: the kernel, time of CPUs, sysctls and daemons, against the guest's own tools."""

import re

from .hosts import on_every_host
from .show import Reading, sysctl

TICKS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")


@on_every_host
def test_the_kernel(reading: Reading) -> None:
    kernel = reading.shown["kernel"]
    assert f"{kernel['hostname']} {kernel['release']}" == reading.tool("uname -n -r").strip()
    assert kernel["release"].startswith(f"{reading.machine.kernel}.")
    assert kernel["cmdline"] == reading.tool("cat /proc/cmdline").strip()
    assert kernel["virtualisation"] == "qemu"
    # `nohz_full` reads "(null)" where no CPU is one.
    for field in ("isolated", "nohz_full"):
        reported = reading.files.get(f"/sys/devices/system/cpu/{field}", "").strip(" ")
        assert kernel[field] == reported.replace("(null)", "")
    assert "rcu_nocbs" not in kernel["cmdline"]
    assert kernel["rcu_nocbs"] == ""
    assert reading.shown["schema"] == 1


@on_every_host
def test_time_of_cpus(reading: Reading) -> None:
    def parse(text: str) -> dict[int, list[int]]:
        rows = re.findall(r"^cpu(\d+) (.*)$", text, re.MULTILINE)
        return {int(cpu): [int(ticks) for ticks in row.split()] for cpu, row in rows}

    before, after = reading.between(parse, "cat /proc/stat")
    assert [row["cpu"] for row in reading.shown["cpu_time"]] == list(before)
    for row in reading.shown["cpu_time"]:
        for field, low, high in zip(TICKS, before[row["cpu"]], after[row["cpu"]], strict=False):
            # The kernel may correct idle time when a tick ends early.
            slack = 2 if field in ("idle", "iowait") else 0
            assert low - slack <= row[field] <= high + slack, field


@on_every_host
def test_sysctls(readings: dict[str, Reading]) -> None:
    changed = readings["changed"]
    huge = "/sys/kernel/mm/transparent_hugepage"
    reported = {f"transparent_hugepage.{name}": changed.files[f"{huge}/{name}"] for name in ("enabled", "defrag")}
    for path, value in changed.files.items():
        if found := re.fullmatch("/sys/kernel/debug/sched/(?:(numa_balancing)/)?(.*)", path):
            reported[f"kernel.{found[1] or 'sched'}_{found[2]}"] = value
    for line in changed.tool(sysctl(readings["booted"].shown)).splitlines():
        name, _, value = line.partition(" = ")
        reported[name] = value
    assert changed.shown["sysctls"] == reported
    assert (readings["booted"].shown["sysctls"]["vm.nr_hugepages"], reported["vm.nr_hugepages"]) == ("0", "2")
    assert {"net.core.netdev_budget", "net.core.rps_sock_flow_entries", "kernel.numa_balancing"} <= reported.keys()


@on_every_host
def test_daemons(reading: Reading) -> None:
    running = reading.tool("ps -A --format comm=").split()
    assert "ovs-vswitchd" in running
    assert reading.shown["daemons"] == {
        "irqbalance": "irqbalance" in running,
        "tuned": "tuned" in running,
        "tuned_profile": None,
    }
