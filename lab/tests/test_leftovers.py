"""kill -9 of a measurement leaves nothing in the kernel: no program, map, link, BTF or pin.

Objects are identified by the kernel's ids, which are not reused: an object that exists
afterwards must have existed before. They are freed an RCU grace period after the process
has died, so the test waits for that.
"""

import json

from lab import Host
from lab.fixtures import lab
from lab.waiting import wait_until

from .hosts import IGB, TWO_NODES
from .traffic import PORT, start_reader, stream

TIMES = 10

KINDS = ("prog", "map", "link", "btf")

# When to kill them: as soon as an object of a kind exists, or when they have followed packets.
MOMENTS = ("map", "prog", "link", "packets", "packets")

# In emulation loading takes seconds on one CPU: several concurrent measurements take as long as one.
AT_ONCE = 2

COMMAND = ["nearpath", "measure", "stages", "--for", "10m", "--port", str(PORT)]


@lab(topology=TWO_NODES, nics=IGB)
def test_kill_leaves_nothing_in_the_kernel(host: Host) -> None:
    assert len(MOMENTS) * AT_ONCE == TIMES
    start_reader(host)
    with stream(host) as sender:
        for moment in MOMENTS:
            killed_at(host, moment)
        assert sender.poll() is None, "the traffic has ended before the test"


def killed_at(host: Host, moment: str) -> None:
    """Kills measurements at a moment, and waits until their kernel objects are gone."""
    before = bpf_objects(host)
    jobs = [host.start(COMMAND) for _ in range(AT_ONCE)]

    def come() -> bool:
        for job in jobs:
            assert job.running(), job.result
        if moment == "packets":
            return [started > 0 for started in packets_started(host)] == [True] * AT_ONCE
        return bpf_objects(host)[moment] > before[moment]

    wait_until(come, f"there is a {moment}")
    if moment == "packets":
        during = bpf_objects(host)
        assert all(during[kind] > before[kind] for kind in KINDS), during
    for job in jobs:
        job.kill("KILL")
    for job in jobs:
        assert job.wait().status == 128 + 9, job.result
    wait_until(lambda: bpf_objects(host) == before, "BPF objects are as before")


def bpf_objects(host: Host) -> dict[str, set[int | str]]:
    """The ids of the guest's BPF objects by their kind, and the paths of pins."""
    listing = " && ".join(f"bpftool --json {kind} show" for kind in KINDS)
    while (found := host.run(f"{listing} && echo $(find /sys/fs/bpf)")).status != 0:
        # The kernel has a link's id before the link itself, and bpftool fails on that.
        assert "temporarily unavailable" in found.out, found
    *lists, pins = found.out.splitlines()
    objects = {kind: {each["id"] for each in json.loads(line)} for kind, line in zip(KINDS, lists, strict=True)}
    return {**objects, "pins": set(pins.split())}


def packets_started(host: Host) -> list[int]:
    """How many packets each running measurement has followed so far, from its per-CPU counters."""
    found = host.run(["bpftool", "--json", "map", "dump", "name", "counters"])
    entries = json.loads(found.out) if found.status == 0 else []
    # A map's elements; if several maps have the name, a list of maps with theirs.
    maps = [entry["elements"] for entry in entries if "elements" in entry] or [entries]
    return [sum(element["formatted"]["value"]["started"] for element in elements) for elements in maps]
