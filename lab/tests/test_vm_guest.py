"""`nearpath measure vm --guest`: the late packets of a Linux guest, by its own recording, are explained by the host.

And why packets into it are late, by the host alone.

A task takes the CPU of the vCPU again and again. How much of a late packet's time it took is also told by the guest's
kernel, which counts stolen time by itself; what took it is known to the test.
"""

import json
from typing import Any

import pytest

from lab import Host, Job, linux_guest
from lab.fixtures import lab
from lab.payload import PROJECT
from lab.vms import ADDRESS
from lab.waiting import ended, start_measuring, wait_until

from .hosts import IGB, TWO_NODES
from .linux_guests import VCPU_CPU, payload, start_guest
from .test_vm_late import limit_cpu_time

__all__ = ["payload"]

VHOST_CPU = 1
# Longer than most packets need in emulation, and shorter than what the task takes at once.
SLOW_MS, TAKEN_MS = 40, 60
# Takes the CPU in bursts at a real-time priority, under a name of its own.
HOG = f"""
import ctypes, time
ctypes.CDLL(None).prctl(15, b"hog", 0, 0, 0)
open("/tmp/hog.runs", "w").close()
while True:
    end = time.monotonic() + {TAKEN_MS / 1000}
    while time.monotonic() < end:
        pass
    time.sleep({TAKEN_MS / 1000})
"""


def probe(host: Host, rate: int, duration: str, *options: str) -> dict[str, Any]:
    """Sends probes to the guest's reflector, from the peer."""
    at = f"{ADDRESS}:{linux_guest.REFLECTOR_PORT}"
    words = ["bench", "latency", at, "--rate", str(rate), "--for", duration, "--json", *options]
    probed = host.peer.run([str(PROJECT / "target/debug/nearpath"), *words])
    assert probed.status == 0, probed
    report: dict[str, Any] = json.loads(probed.out)
    return report


def in_guest(command: str) -> str:
    """The command in the host that runs one in the guest's shell."""
    return f"echo '{command}' | busybox nc {ADDRESS} {linux_guest.SHELL_PORT}"


def start_both(host: Host, proto: str) -> Job:
    """Starts the guest's recording of packets to the reflector, and the host's measurement, which waits for its end.

    They write /tmp/guest.json and /tmp/vm.json.
    """
    # Within the usual limit of overhead few packets are seen, as emulation makes a program's run 0.1 ms long.
    record = linux_guest.nearpath(
        f"measure stages --proto {proto} --dport {linux_guest.REFLECTOR_PORT} --max-overhead 100%",
        f"--slow {SLOW_MS}ms --outliers 1000 --json --for 45s 2>/tmp/said",
    )
    host.check("mkfifo /tmp/from-guest")
    host.start(f"{in_guest(record)} | tee /tmp/guest.json >/tmp/from-guest")
    words = f"measure vm --slow {SLOW_MS}ms --json --for 60s --guest /tmp/from-guest"
    measuring = host.start(f"exec nearpath {words} >/tmp/vm.json")
    wait_until(lambda: "measuring" in host.run(in_guest("cat /tmp/said")).out, "the guest records")
    return measuring


@lab(topology=TWO_NODES, nics=IGB)
def test_late_packets_of_a_guest_are_the_hosts_if_its_vcpu_is_taken(host: Host) -> None:
    start_guest(host)
    assert probe(host, 10, "1s")["received"] >= 5
    measuring = start_both(host, "udp")
    hog = host.start(["chrt", "-f", "50", "taskset", "-c", str(VCPU_CPU), "python3", "-c", HOG])
    wait_until(lambda: host.run(["test", "-e", "/tmp/hog.runs"]).status == 0, "it has its name")
    probe(host, 60, "30s")
    host.check(["kill", str(hog.pid)])
    assert measuring.wait().status == 0, measuring.result

    guest, measured = (json.loads(host.check(f"cat /tmp/{name}.json")) for name in ("guest", "vm"))
    late: dict[str, Any] = measured["guest"]
    assert len(late["spans"]) + late["outside"] == len(guest["outliers"])
    stolen = [span for span in late["spans"] if span["stolen_ns"] > span["span_ns"] / 2]
    assert len(stolen) >= 5, late
    # By the guest's kernel, which knows how long, but not by whom.
    for span in stolen:
        waited = sum(wait["ns"] for wait in span["waited"])
        assert span["waited"][0]["behind"] == "hog", span
        assert abs(waited - span["stolen_ns"]) <= 10_000_000, span
    # From the files, too.
    explain = "nearpath measure vm --measured /tmp/vm.json --guest /tmp/guest.json"
    assert json.loads(host.check(f"{explain} --json"))["guest"] == late
    printed = host.check(explain)
    print(printed)
    first = printed.splitlines()[0]
    assert "were the host's: its vCPU 0 waited" in first and first.endswith("behind hog"), first


@pytest.mark.parametrize(("fault", "part"), [("a task", "vhost_waited"), ("a quota", "_throttled")])
@lab(topology=TWO_NODES, nics=IGB)
def test_what_delays_packets_into_a_linux_guest_is_named(host: Host, fault: str, part: str) -> None:
    qemu = start_guest(host)
    host.check(f"taskset -p -c {VHOST_CPU} $(pgrep -w vhost-{qemu.pid} | tail -n 1)")
    measuring = start_measuring(host, "measure", "vm", "--slow", f"{SLOW_MS}ms")
    # A thread is known from its first packet on.
    assert probe(host, 10, "1s")["received"] >= 5
    if fault == "a task":
        job = host.start(["chrt", "-f", "50", "taskset", "-c", str(VHOST_CPU), "python3", "-c", HOG])
    else:
        job = limit_cpu_time(host, qemu.pid, f"{TAKEN_MS}000 {2 * TAKEN_MS}000")
    probe(host, 60, "20s")
    host.check(["kill", str(job.pid)])
    document = ended(measuring)
    (one,) = document["vms"]
    (queue,) = one["queues"]
    late = queue["late"]["parts"]
    print(late)
    packets = sum(found["packets"] for found in late)
    assert packets >= 50, "for half of the time"
    named = [found for found in late if found["part"].endswith(part)]
    assert sum(found["packets"] for found in named) >= 0.95 * packets, late
    if fault == "a task":
        assert named[0]["behind"]["hog"] >= 0.95 * named[0]["packets"], late
