"""The packets that a guest receives, as bpftrace counts them with `hops.bt`.

Goes in: a guest. Come out, for each port that packets were sent to: how many went from one of the
kernel's functions to the next, and how many of these changed CPU or node.
"""

import json
import re
from pathlib import Path
from typing import NamedTuple, Self

from lab import Host, Job

from .waiting import wait_until

SCRIPT = Path(__file__).with_name("hops.bt")

# Named, it is taken also where the kernel has types of itself but none of its modules (5.10).
BTF = "BPFTRACE_BTF=/sys/kernel/btf/vmlinux"


class Hop(NamedTuple):
    """Packets that went from one function to another."""

    packets: int = 0
    other_cpu: int = 0
    other_node: int = 0

    def __add__(self, other: tuple[int, ...]) -> Self:  # type: ignore[override]
        return type(self)(*(mine + its for mine, its in zip(self, other, strict=True)))


Hops = dict[tuple[str, str], Hop]


def start(host: Host) -> Job:
    """Starts it; returns when all its probes are attached, by the kernel's own account."""
    host.write("/run/hops.bt", SCRIPT.read_bytes())
    job = host.start(["env", BTF, "bpftrace", "-f", "json", "/run/hops.bt"])
    probes = set(re.findall(r"^(?:tracepoint:\w+|kprobe):(\w+)", SCRIPT.read_text(), re.MULTILINE))

    def attached() -> bool:
        assert job.running(), job.result
        perf = json.loads(host.check(["bpftool", "--json", "perf", "show"]))
        return probes == {one.get("tracepoint") or one["func"] for one in perf}

    wait_until(attached, "bpftrace has attached its probes")
    return job


def ended(job: Job) -> dict[int, Hops]:
    """Ends it, and returns what it counted."""
    job.kill("INT")
    status, out, err = job.wait()
    assert status == 0, err
    lines = [json.loads(line) for line in out.splitlines() if line]
    maps = {name: counts for line in lines if line["type"] == "map" for name, counts in line["data"].items()}
    found: dict[int, Hops] = {}
    for key, packets in maps["@packets"].items():
        crossed = (maps.get(name, {}).get(key, 0) for name in ("@other_cpu", "@other_node"))
        port, *probes = key.split(",")
        begin, end = (probe.rpartition(":")[2] for probe in probes)
        found.setdefault(int(port), {})[begin, end] = Hop(packets, *crossed)
    return found
