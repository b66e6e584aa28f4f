"""kill -9 of a measurement leaves nothing in the kernel: no program, map, link, BTF or pin.

Objects are told by the kernel's ids, which are not given twice: an object that is there
afterwards is one that was there before. They are freed a grace period of RCU after the process
has died, so the test waits for them to go.
"""

import json

from lab import Host
from lab.fixtures import lab

from .hosts import IGB, TWO_NODES
from .traffic import PORT, start_reader, stream
from .waiting import wait_until

KINDS = ("prog", "map", "link", "btf")

# When it is killed: as soon as there is an object of a kind, or when it has followed packets.
MOMENTS = ("map", "prog", "link", "packets", "packets") * 2


@lab(topology=TWO_NODES, nics=IGB)
def test_kill_leaves_nothing_in_the_kernel(host: Host) -> None:
    start_reader(host)
    with stream(host) as sender:
        for moment in MOMENTS:
            killed_at(host, moment)
        assert sender.poll() is None, "the traffic has ended before the test"


def killed_at(host: Host, moment: str) -> None:
    """Kills a measurement at a moment, and waits until what it had in the kernel is gone."""
    before = bpf_objects(host)
    job = host.start(["nearpath", "measure", "stages", "--for", "10m", "--port", str(PORT)])

    def come() -> bool:
        assert job.running(), job.result
        if moment == "packets":
            return packets_started(host) > 0
        return bpf_objects(host)[moment] > before[moment]

    wait_until(come, f"there is a {moment}")
    if moment == "packets":
        during = bpf_objects(host)
        assert all(during[kind] > before[kind] for kind in KINDS), during
    job.kill("KILL")
    assert job.wait().status == 128 + 9, job.result
    wait_until(lambda: bpf_objects(host) == before, "BPF objects are as before")


def bpf_objects(host: Host) -> dict[str, set[int | str]]:
    """The ids of the guest's BPF objects by their kind, and the paths of pins."""
    listing = " && ".join(f"bpftool --json {kind} show" for kind in KINDS)
    while (found := host.run(f"{listing} && echo $(find /sys/fs/bpf)")).status != 0:
        # The kernel has a link's id before the link itself, and bpftool gives up on that.
        assert "temporarily unavailable" in found.out, found
    *lists, pins = found.out.splitlines()
    objects = {kind: {each["id"] for each in json.loads(line)} for kind, line in zip(KINDS, lists, strict=True)}
    return {**objects, "pins": set(pins.split())}


def packets_started(host: Host) -> int:
    """How many packets the measurement that runs has followed so far, by its counters of each CPU."""
    dump = host.run(["bpftool", "--json", "map", "dump", "name", "counters"])
    entries = json.loads(dump.out) if dump.status == 0 else []
    return sum(entry["formatted"]["value"]["started"] for entry in entries)
