"""`nearpath measure vm --guest` of a Linux guest with two vCPUs and two queues: the vCPU that waited is named.

Packets arrive on vCPU 0, and their reader runs on vCPU 1. A task takes the CPU of one of the two again and again: which
is known to the test, and told by the guest's kernel, which counts stolen time by CPU.
"""

import json
from typing import Any

import pytest

from lab import Host, linux_guest
from lab.fixtures import lab
from lab.waiting import wait_until

from .hosts import IGB, TWO_NODES
from .linux_guests import VCPU_CPU, payload, start_guest
from .test_vm_guest import HOG, in_guest, probe, start_both

__all__ = ["payload"]

CPUS = 2
ARRIVES_ON, READ_ON = 0, 1


def stolen_ms(host: Host) -> list[int]:
    """What the guest's kernel has counted of each of its CPUs: USER_HZ is 100."""
    lines = host.check(in_guest("cat /proc/stat")).splitlines()
    return [int(line.split()[8]) * 10 for line in lines if line.startswith("cpu") and line[3] != " "]


def place_in_guest(host: Host) -> None:
    """Interrupts of all queues to one vCPU, the reflector's threads to the other."""
    host.check(
        in_guest(
            f"for irq in $(grep -e -input -e -output /proc/interrupts | cut -d : -f 1); do"
            f" echo {ARRIVES_ON} >/proc/irq/$irq/smp_affinity_list; done;"
            f" for task in $(ls /proc/$(pidof {linux_guest.LOADER})/task); do"
            f" taskset -p {1 << READ_ON} $task; done"
        )
    )


@pytest.mark.parametrize(
    ("proto", "taken", "steered"),
    [("udp", READ_ON, False), ("tcp", READ_ON, False), ("udp", ARRIVES_ON, True), ("tcp", ARRIVES_ON, True)],
)
@lab(topology=TWO_NODES, nics=IGB)
def test_late_packets_are_of_the_vcpu_that_waited(host: Host, proto: str, taken: int, steered: bool) -> None:
    start_guest(host, cpus=CPUS)
    tcp = ("--tcp",) if proto == "tcp" else ()
    assert probe(host, 10, "1s", *tcp)["received"] >= 5
    place_in_guest(host)
    if steered:
        host.check(
            in_guest(f"for mask in /sys/class/net/eth0/queues/rx-*/rps_cpus; do echo {1 << READ_ON} >$mask; done")
        )
    measuring = start_both(host, proto)
    before = stolen_ms(host)
    hog = host.start(["chrt", "-f", "50", "taskset", "-c", str(VCPU_CPU + taken), "python3", "-c", HOG])
    wait_until(lambda: host.run(["test", "-e", "/tmp/hog.runs"]).status == 0, "it has its name")
    probed = probe(host, 60, "30s", *tcp)
    host.check(["kill", str(hog.pid)])
    stolen = [after - earlier for after, earlier in zip(stolen_ms(host), before, strict=True)]
    assert measuring.wait().status == 0, measuring.result

    guest, measured = (json.loads(host.check(f"cat /tmp/{name}.json")) for name in ("guest", "vm"))
    late: dict[str, Any] = measured["guest"]
    printed = host.check("nearpath measure vm --measured /tmp/vm.json --guest /tmp/guest.json")
    print("\n".join(printed.splitlines()[:9]))
    waited = [sum(wait["ns"] for wait in late["waited"] if wait["vcpu"] == cpu) / 1e6 for cpu in range(CPUS)]
    print("received", probed["received"], "stolen by the guest's kernel", stolen, "ms, waited", waited, "ms")
    assert probed["received"] >= 0.95 * probed["sent"], probed
    by_host = [span for span in late["spans"] if sum(wait["ns"] for wait in span["waited"]) > span["span_ns"] / 2]
    others = [one for one in guest["outliers"] if one["packet"] not in {span["packet"] for span in by_host}]
    print("not the host's:", [(one["from"], one["to"], one["from_cpu"], one["at_ns"], one["budget"]) for one in others])
    assert len(late["spans"]) + late["outside"] == len(guest["outliers"])
    # Those that are not are of the emulation, in which a packet takes milliseconds.
    assert len(by_host) >= max(5, 0.7 * len(late["spans"])), late
    for span in by_host:
        assert (span["waited"][0]["vcpu"], span["waited"][0]["behind"]) == (taken, "hog"), span
        if span["stolen_ns"] > span["span_ns"] / 2:
            assert abs(span["waited"][0]["ns"] - span["stolen_ns"]) <= 10_000_000, span
    assert waited[taken] <= 1.1 * stolen[taken] and waited[1 - taken] <= 0.1 * waited[taken], (waited, stolen)
    assert f"its vCPU{'s' if all(waited) else f' {taken}'} waited" in printed.splitlines()[0], printed
    # Also of packets of which no protocol has written into the sk_buff where their headers are; not of those that the
    # reader has freed.
    ends = f":{linux_guest.REFLECTOR_PORT}"
    flows = {span["flow"] for span in late["spans"] if span["to"] != "sock_recv"}
    assert all(flow and flow.startswith(proto.upper()) and flow.endswith(ends) for flow in flows), flows
