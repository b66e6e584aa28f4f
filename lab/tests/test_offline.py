"""A CPU that RPS steers to goes offline and online under load: packets that waited for it, or were taken
over by another CPU, have this in their budget, and each packet is still followed.
"""

import json

from lab import Host
from lab.fixtures import lab
from lab.waiting import ended, start_measuring

from .hosts import IGB, TWO_NODES
from .spans import assert_balanced, overlap, passed
from .steering import steer, take_interrupts
from .traffic import PORT, start_reader, stream

NIC_CPU, OTHER = TWO_NODES.cpus_of(0)
CPU = TWO_NODES.cpus_of(1)[-1]

SLOW_MS = 3
RATE = 3000

# Repeatedly takes a CPU offline and online; prints when it was offline, and how
# long that took including the transitions. Some hundred packets arrive in between. Arguments: CPU, rounds.
HOTPLUG = """
import json, sys, time

def set_online(value):
    with open(f"/sys/devices/system/cpu/cpu{sys.argv[1]}/online", "w") as file:
        file.write(value)

def packets():
    with open("/sys/class/net/nic0/statistics/rx_packets") as file:
        return int(file.read())

def some_more():
    goal = packets() + 300
    while packets() < goal:
        time.sleep(0.01)

offline, moving = [], []
for _ in range(int(sys.argv[2])):
    start = time.monotonic_ns()
    set_online("0")
    gone = time.monotonic_ns()
    some_more()
    offline.append((gone, time.monotonic_ns()))
    set_online("1")
    moving.append((start, time.monotonic_ns()))
    some_more()
print(json.dumps([offline, moving]))
"""
ROUNDS = 40


@lab(topology=TWO_NODES, nics=IGB)
def test_a_cpu_that_is_offline_is_named(host: Host) -> None:
    take_interrupts(host, NIC_CPU)
    start_reader(host)
    steer(host, f"{1 << CPU:x}")
    options = ("--port", str(PORT), "--direction", "rx", "--dev", "nic0", "--slow", f"{SLOW_MS}ms")
    measuring = start_measuring(host, "measure", "stages", *options, "--outliers", "5000")
    with stream(host, rate=RATE):
        out = host.check(["taskset", "--cpu-list", str(OTHER), "python3", "-c", HOTPLUG, str(CPU), str(ROUNDS)])
    document = ended(measuring)

    offline, moving = json.loads(out)
    outliers = document["outliers"]
    # Packets that stayed in its backlog; and those that another CPU took over.
    waited = [one for one in outliers if one["from"] == "enqueue_to_backlog" and one["cpu"] == CPU]
    hit = [one for one in waited if overlap(one, offline) * 2 > one["span_ns"]]
    taken = [one for one in outliers if (one["from"], one["to"]) == ("enqueue_to_backlog", "netif_rx")]
    named = [one for one in outliers if one["budget"][0]["share"] == "offline"]
    right = [one for one in named if overlap(one, moving) * 4 >= one["span_ns"]]
    followed = passed(document, "rx", "enqueue_to_backlog", "netif_rx")
    print(f"offline: {len(taken)} slow of {followed} taken over, {len(hit)} waited, {len(right)} of {len(named)} right")
    assert taken
    assert len(right) == len(named)
    assert all(one in named for one in taken + hit)
    assert_balanced(document)
