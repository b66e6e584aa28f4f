"""`nearpath monitor` of a virtual machine in a virtual host: its metric, and its table of a recording.

The judge is the guest itself, which notes each packet.
"""

import json

from lab import Host
from lab.fixtures import lab
from lab.vms import TAP, send, start_vm, wait_until_taken, worker_of
from lab.waiting import wait_until

from .hosts import IGB, TWO_NODES
from .test_vm import VCPU_CPU, VHOST_CPU
from .test_vm_late import start_hog

RECORDING = "/tmp/recording"
OBSERVED = 'nearpath_observed_seconds_total{instrument="vms"}'
# Argument: the page.
FETCH = """
import sys, urllib.request
sys.stdout.write(urllib.request.urlopen("http://127.0.0.1:9477/" + sys.argv[1], timeout=30).read().decode())
"""


def value(host: Host, series: str) -> float | None:
    """Of a series in the exposition of now."""
    scraped = host.run(["python3", "-c", FETCH, "metrics"])
    lines = [line for line in scraped.out.splitlines() if line.startswith(f"{series} ")]
    return float(lines[0].rsplit(" ", 1)[1]) if lines else None


def packets(host: Host, span: str) -> float:
    return value(host, f'nearpath_vm_latency_seconds_count{{vm="tinyvm",span="{span}"}}') or 0


@lab(topology=TWO_NODES, nics=IGB)
def test_packets_into_a_virtual_machine_are_metrics_and_rows(host: Host) -> None:
    options = ["--source", "vms", "--interval", "2s", "--max-overhead", "none", "--record", RECORDING]
    daemon = host.start(["nearpath", "monitor", *options])
    # Without a virtual machine nothing is attached.
    wait_until(lambda: value(host, "nearpath_collection_seconds") is not None, "the daemon collects")
    assert value(host, 'nearpath_instrument_up{instrument="vms"}') is None
    vm = start_vm(host, "-c", "2")
    wait_until(lambda: value(host, 'nearpath_instrument_up{instrument="vms"}') == 1, "it is attached")
    send(host, 100, 50)
    wait_until_taken(host)
    wait_until(lambda: packets(host, "whole") >= 100, "the packets are counted")
    guest = vm.end()
    # Packets of the network's own may come as it ends: the guest notes them no more, and the tap has counted them.
    taken = int(host.check(["cat", f"/sys/class/net/{TAP}/statistics/tx_packets"]))
    assert len(guest.numbered()) == 100
    # The next collection may have been going on as it ended.
    observed = value(host, OBSERVED)
    for _ in range(2):
        wait_until(lambda before=observed: value(host, OBSERVED) != before, "it is collected")
        observed = value(host, OBSERVED)
    counted = packets(host, "whole")
    assert packets(host, "kvm_to_guest") == counted
    assert 100 <= counted <= taken, (counted, taken, guest.packets)
    assert packets(host, "halted") == 0, "a part of kvm_to_guest has no series"
    daemon.kill("INT")
    daemon.wait()
    shown = json.loads(host.check(["nearpath", "show", "vms", "--recording", RECORDING, "--json"]))
    rows = {row["span"]: row for row in shown["vms"]["rows"]}
    assert rows["whole"]["vm"] == "tinyvm" and rows["whole"]["packets"] == counted, rows
    assert rows["whole"]["p50_ns"] >= rows["kvm_to_guest"]["p50_ns"] > 0, rows
    text = host.check(["nearpath", "show", "vms", "--recording", RECORDING])
    assert "packets into virtual machines in " in text and "kvm to guest" in text, text


def slow_packets(host: Host) -> list[str]:
    """Titles of the last findings of why packets into virtual machines are late."""
    fetched = host.run(["python3", "-c", FETCH, "findings"])
    findings = json.loads(fetched.out)["findings"] if fetched.status == 0 else []
    return [finding["title"] for finding in findings if finding["check"] == "vm_slow_packets"]


@lab(topology=TWO_NODES, nics=IGB)
def test_why_packets_are_late_is_asked_when_they_are(host: Host) -> None:
    vm = start_vm(host, "-c", str(VCPU_CPU))
    host.check(f"taskset -p -c {VHOST_CPU} {worker_of(host, vm)}")
    options = ["--source", "vms,budgets,findings", "--interval", "2s", "--findings-interval", "4s"]
    host.start(["nearpath", "monitor", *options, "--max-overhead", "none"])
    wait_until(lambda: value(host, 'nearpath_instrument_up{instrument="vms"}') == 1, "it is attached")
    start_hog(host, VHOST_CPU)

    def is_named() -> bool:
        send(host, 100, 40)
        return f"tinyvm ({vm.pid}): packets into it wait until vhost has a CPU, behind hog" in slow_packets(host)

    wait_until(is_named, "the cause is a finding")
