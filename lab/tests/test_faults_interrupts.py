"""A task that keeps interrupts off for long is named by the budgets of the packets that its CPU should
have received in that time.

A normal task cannot do so in a way that can be stopped. A bpftrace program therefore does, where
the kernel has interrupts off: when the scheduler switches to the task "hold". It reports start and end.
"""

import json
from typing import Any

from lab import Host
from lab.fixtures import lab
from lab.waiting import ended, start_measuring, wait_until

from .bpftrace import BTF
from .hosts import IGB, TWO_NODES
from .spans import overlap
from .steering import steer, take_interrupts
from .traffic import PORT, send, start_reader

NIC_CPU = TWO_NODES.cpus_of(0)[0]
HELD_CPU = TWO_NODES.cpus_of(1)[0]

SLOW_MS = 3
HELD_MS = 10

# The verifier requires a bounded, short loop; so each iteration does something slow.
HOLD = f"""
tracepoint:sched:sched_switch
/args->next_comm == "hold"/
{{
  $begin = nsecs;
  $i = 0;
  while ($i < 4000) {{
    $i = $i + 1;
    @stack = kstack;
    if (nsecs - $begin > {HELD_MS}000000) {{ break; }}
  }}
  @held[$begin] = nsecs;
}}
"""

# bpftrace uses another clock than nearpath.
SINCE_BOOT = """
import time
print(time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.clock_gettime_ns(time.CLOCK_MONOTONIC))
"""

# Its name is that of the executed file.
SLEEPER = """
import time
while True:
    time.sleep(0.02)
"""

# Minimum number of packets hit.
ENOUGH = 15

DATAGRAMS = 600
RATE = 80


@lab(topology=TWO_NODES, nics=IGB)
def test_a_task_with_interrupts_off_is_named(host: Host) -> None:
    take_interrupts(host, NIC_CPU)
    start_reader(host)
    steer(host, f"{1 << HELD_CPU:x}")
    options = ("--port", str(PORT), "--direction", "rx", "--dev", "nic0", "--slow", f"{SLOW_MS}ms")
    measuring = start_measuring(host, "measure", "stages", *options, "--outliers", "1000")
    held = hold(host)
    send(host, flows=4, each=DATAGRAMS // 4, rate=RATE)
    outliers = ended(measuring)["outliers"]
    held.kill("INT")
    since = int(host.check(["python3", "-c", SINCE_BOOT]))
    maps = [json.loads(line)["data"] for line in held.wait().out.splitlines() if '"@held"' in line]
    times = [(int(begin) - since, end - since) for begin, end in maps[0]["@held"].items()]

    # (The reader is on another CPU, which may be late for other reasons in emulation.)
    outliers = [outlier for outlier in outliers if outlier["cpu"] == HELD_CPU]
    hit = [outlier for outlier in outliers if overlap(outlier, times) * 2 > outlier["span_ns"]]
    named = [outlier for outlier in outliers if is_named(outlier)]
    right = [outlier for outlier in named if overlap(outlier, times) * 4 >= outlier["span_ns"]]
    found = [outlier for outlier in hit if is_named(outlier)]
    print(f"interrupts off: precision {share(right, named)}, recall {share(found, hit)}, {len(outliers)} slow packets")
    assert len(hit) >= ENOUGH
    # In emulation a CPU also stalls for reasons that are not visible in the guest.
    assert len(right) >= 0.75 * len(named)
    assert len(found) >= 0.9 * len(hit), [one["budget"] for one in hit if one not in found]


def hold(host: Host) -> Any:
    """Starts the task, and the program that keeps interrupts off when it runs. It runs after nearpath's programs."""
    host.check("ln -s $(readlink -f $(command -v python3)) /run/hold")
    host.start(["taskset", "--cpu-list", str(HELD_CPU), "/run/hold", "-c", SLEEPER])
    script = host.start(["env", BTF, "bpftrace", "-f", "json", "-e", HOLD])

    def attached() -> bool:
        assert script.running(), script.result
        programs = json.loads(host.check(["bpftool", "--json", "perf", "show"]))
        return any(program["fd_type"] == "tracepoint" for program in programs)

    wait_until(attached, "bpftrace has attached its probe")
    return script


def is_named(outlier: dict[str, Any]) -> bool:
    """Whether the task is the first share of the budget."""
    first = outlier["budget"][0]
    return first["share"] == "disabled" and (first["who"] or {}).get("comm") == "hold"


def share(some: list[Any], of: list[Any]) -> str:
    return f"{100 * len(some) / max(1, len(of)):.1f} % of {len(of)}"
