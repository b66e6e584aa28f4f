"""Every setting that a fix can have changed, read without nearpath: before the fix, and after its rollback.

`python3 -m lab.heal.settings` prints the settings of the network namespace that it runs in, as JSON.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

# What changes by itself.
VOLATILE = (
    "nf_conntrack_count",
    "/kernel/random/",
    "/kernel/ns_last_pid",
    "/kernel/pty/nr",
    "/vm/stat_refresh",
    "/vm/compact_memory",
    "/vm/drop_caches",
    "/kernel/perf_event_max_sample_rate",
    "/kernel/perf_cpu_time_max_percent",
    "/kernel/perf_event_paranoid",
    "/kernel/tainted",
    # Running counters of routes and neighbours, and what is write-only.
    "/route/flush",
)
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage")
OF_DEVICE = ("tx_queue_len", "mtu", "gro_flush_timeout", "napi_defer_hard_irqs", "threaded", "flags")
Settings = dict[str, str]


def of_namespace(netns: str | None) -> Settings:
    """The settings of a network namespace, and of the kernel."""
    command = [sys.executable, "-m", "lab.heal.settings"]
    if netns:
        command = ["ip", "netns", "exec", netns, *command]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    found: Settings = json.loads(done.stdout)
    return {f"{netns or 'host'}: {name}": value for name, value in found.items()}


def of_threads() -> Settings:
    """The affinity, policy, priority and nice value of every thread of the machine, by its id and start."""
    found = {}
    for task in Path("/proc").glob("[0-9]*/task/[0-9]*"):
        tid = int(task.name)
        try:
            fields = (task / "stat").read_text().rpartition(")")[2].split()
            cpus = sorted(os.sched_getaffinity(tid))
            comm = (task / "comm").read_text().strip()
        except (OSError, ProcessLookupError):
            continue
        nice, start, priority, policy = fields[16], fields[19], fields[37], fields[38]
        found[f"thread {tid} {comm} of {start}"] = f"CPUs {cpus}, policy {policy}, priority {priority}, nice {nice}"
    return found


def differences(before: Settings, after: Settings) -> list[str]:
    """What differs. Threads that are only in one of them have come or gone."""
    found = []
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name), after.get(name)
        if old != new and not (name.startswith("thread ") and None in (old, new)):
            found.append(f"{name}: {old!r} -> {new!r}")
    return found


def _files() -> Iterable[Path]:
    for folder in ("net", "kernel", "vm"):
        yield from Path("/proc/sys", folder).rglob("*")
    yield from Path("/proc/irq").glob("*/smp_affinity")
    yield from HUGE_PAGES.rglob("*")
    for device in Path("/sys/class/net").iterdir():
        yield from (device / name for name in OF_DEVICE)
        yield from (device / "queues").rglob("*")


def _read(file: Path) -> str | None:
    if any(part in str(file) for part in VOLATILE) or "byte_queue_limits" in str(file) or not file.is_file():
        return None
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError):
        # Write-only, or not supported by the device.
        return None


def _here() -> Settings:
    found = {str(file): text for file in _files() if (text := _read(file)) is not None}
    for device in sorted(Path("/sys/class/net").iterdir()):
        for command in (
            *(["ethtool", option, device.name] for option in ("-c", "-k", "-g", "-l")),
            ["tc", "qdisc", "show", "dev", device.name],
        ):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            found[" ".join(command)] = done.stdout
    return found


if __name__ == "__main__":
    json.dump(_here(), sys.stdout)
