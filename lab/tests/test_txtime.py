"""Scheduled transmission: `tune plan --schedule` and `bench latency --txtime`.

The judge is `tc`, of the qdiscs and of what they dropped. The probes pass Open vSwitch, which loses their times on
Linux 5.10 and 6.1.
"""

import json
import os
from pathlib import Path
from typing import Any

from lab import Host
from lab.fixtures import lab

from .hosts import IGB, TWO_NODES
from .test_tune_ethtool import everything

PROJECT = Path(__file__).parents[2]
BINARY = Path(os.environ.get("CARGO_TARGET_DIR", PROJECT / "target")) / "debug/nearpath"
# adjtimex(2) with ADJ_TAI, as phc2sys and chrony set it: CLOCK_TAI is 37 s ahead of the wall clock.
SET_TAI = """
import ctypes, struct
timex = ctypes.create_string_buffer(208)
struct.pack_into("I", timex, 0, 0x80)
struct.pack_into("q", timex, 48, 37)  # `constant`
assert ctypes.CDLL(None, use_errno=True).adjtimex(timex) >= 0
"""
PRIORITY = 3
RATE = 20
SECONDS = 1
PROBES = RATE * SECONDS


# A busy machine stops the guest for longer than ETF's delta now and then; wrong times would show in every run.
ATTEMPTS = 20


def set_clocks(host: Host) -> None:
    """Sets the offset of CLOCK_TAI, which nobody sets in a new guest. Its TSC may have been calibrated wrongly on a
    busy machine, so that its clock runs at another rate than its timers."""
    host.check("echo hpet >/sys/devices/system/clocksource/clocksource0/current_clocksource")
    host.check(["python3", "-c", SET_TAI])
    ahead = host.check(["python3", "-c", "import time; print(round(time.clock_gettime(11) - time.time()))"])
    assert ahead.strip() == "37", ahead


def qdiscs(host: Host) -> Any:
    """What `tc` says of the qdiscs of nic0, without its counters."""
    return json.loads(host.check("tc -j -d qdisc show dev nic0"))


def state(host: Host) -> str:
    """All that a plan may change, to the byte."""
    return everything(host) + host.check(
        "tc -d qdisc show dev nic0; head -v -n -0 /sys/class/net/nic0/queues/tx-*/traffic_class"
    )


def qdisc_counters(host: Host) -> str:
    """For messages."""
    return host.check("tc -s qdisc show dev nic0; cat /sys/class/net/nic0/queues/tx-*/xps_cpus")


def dropped(host: Host, kind: str = "etf") -> int:
    """What `tc` counted as dropped by the qdiscs of a kind."""
    found = json.loads(host.check("tc -j -s qdisc show dev nic0"))
    return sum(qdisc["drops"] for qdisc in found if qdisc["kind"] == kind)


def apply(host: Host, *rules: str) -> dict[str, Any]:
    """Plans and applies rules, and returns the change."""
    words = " ".join(f"--schedule {rule}" for rule in rules)
    plan: dict[str, Any] = json.loads(host.check(f"nearpath tune plan --nic nic0 {words} --json"))
    plan["changes"] = [change for change in plan["changes"] if change["kind"] == "qdisc"]
    assert len(plan["changes"]) == 1, plan
    host.write("/root/plan.json", json.dumps(plan).encode())
    host.check("nearpath tune apply /root/plan.json")
    assert json.loads(host.check("nearpath tune verify --json"))["journal"]
    change: dict[str, Any] = plan["changes"][0]
    return change


def bench(host: Host, *words: str, rate: int = RATE) -> dict[str, Any]:
    """Scheduled probes to the peer."""
    reflector = host.peer.start([str(BINARY), "bench", "reflect", "--bind", host.peer.address()])
    try:
        assert reflector.stdout is not None
        assert "answering" in reflector.stdout.readline()
        command = [
            "nearpath",
            "bench",
            "latency",
            host.peer.address(),
            "--rate",
            str(rate),
            "--for",
            f"{SECONDS}s",
            "--json",
        ]
        printed = host.run([*command, "--priority", str(PRIORITY), *words], timeout_s=120)
        assert printed.status == 0, f"{printed.err}\n{qdisc_counters(host)}"
        report: dict[str, Any] = json.loads(printed.out)
    finally:
        reflector.terminate()
        reflector.wait(30)
    return report


def titles(report: dict[str, Any]) -> dict[str, str]:
    """The titles of findings by check."""
    return {finding["check"]: finding["title"] for finding in report["findings"]}


@lab(kernels=("6.12",), topology=TWO_NODES, nics=IGB)
@lab(kernels=("7.2",), topology=TWO_NODES, nics=IGB)
def test_etf_with_a_long_delta_drops_nothing_and_with_a_short_one_is_found(host: Host) -> None:
    """A delta of 5 ms and a lead of 20 ms: no drop. With 1 µs: drops, and the finding. Undone to the byte."""
    # CLOCK_TAI without an offset is refused.
    refused = host.run("nearpath tune plan --nic nic0 --schedule 3:etf=5ms")
    assert refused.status == 1, refused
    assert "CLOCK_TAI is not set" in refused.err, refused
    set_clocks(host)
    before = state(host)

    change = apply(host, "3:etf=5ms")
    assert "etf clockid CLOCK_TAI delta 5000000" in change["after"], change
    [etf] = [qdisc for qdisc in qdiscs(host) if qdisc["kind"] == "etf"]
    assert (etf["options"]["clockid"], etf["options"]["delta"]) == ("TAI", 5_000_000), etf
    again = json.loads(host.check("nearpath tune plan --nic nic0 --schedule 3:etf=5ms --json"))
    assert not [change for change in again["changes"] if change["kind"] == "qdisc"], again
    for _ in range(ATTEMPTS):
        before_it = dropped(host)
        report = bench(host, "--txtime=20ms")
        scheduled = report["scheduled"]
        assert dropped(host) - before_it >= report["lost"], (scheduled, qdisc_counters(host))
        if report["lost"] == 0:
            break
    assert [scheduled[f"dropped_{reason}"] for reason in ("invalid", "missed", "other")] == [0, 0, 0], scheduled
    assert report["lost"] == 0, scheduled
    # nic0 is a port of the bridge that has the address.
    assert (scheduled["device"], scheduled["sent"], scheduled["tai_offset_s"]) == ("br0", PROBES, 37), scheduled
    # ETF takes a packet from its queue 5 ms before its time, and never earlier.
    departure = scheduled["departure"]
    assert departure["count"] == PROBES, departure
    assert -5_500_000 <= departure["min_ns"] <= departure["percentiles"]["50"] < -1_000_000, departure
    assert scheduled["arrival"]["count"] == report["received"], report
    # The guest's clock is set, and nobody keeps it.
    assert "not synchronised" in titles(report)["txtime_clock"], report
    host.check("nearpath tune rollback")
    assert state(host) == before

    # Less than any timer of an emulated CPU is late: fast machines are late by 0.1 ms, slow ones by milliseconds.
    apply(host, "3:etf=1us")
    report = bench(host, "--txtime=20ms")
    scheduled = report["scheduled"]
    assert scheduled["dropped_missed"] > 0, scheduled
    assert scheduled["dropped_invalid"] == 0, scheduled
    assert dropped(host) >= scheduled["dropped_missed"], (scheduled, dropped(host))
    assert report["lost"] >= scheduled["dropped_missed"], report
    assert "delta of 1.00µs" in titles(report)["etf_delta"], report
    # With the measurement from a file; and without, by the counters of ETF.
    host.write("/root/latency.json", json.dumps(report).encode())
    host.check("nearpath snapshot -o /root/host.tar.zst")
    for words in ("--evidence /root/latency.json", "--snapshot /root/host.tar.zst"):
        said = json.loads(host.check(f"nearpath diagnose {words} --json"))
        found = {finding["check"]: finding["title"] for finding in said["findings"]}
        assert "1.00µs" in found["etf_delta"], said
    host.check("nearpath tune rollback")
    assert state(host) == before
    assert json.loads(host.check("nearpath tune status --json"))["journal"] == []


@lab(kernels=("6.12",), topology=TWO_NODES, nics=IGB)
@lab(kernels=("5.10", "6.1", "7.2"), topology=TWO_NODES, nics=IGB)
def test_gates_and_rates_are_undone_to_the_byte(host: Host) -> None:
    """taprio, and the finding of a period that drifts through its cycle; CBS; refusals change nothing."""
    set_clocks(host)
    queues = "/sys/class/net/nic0/queues"
    host.check(f"echo 5 >{queues}/tx-0/xps_cpus; echo a >{queues}/tx-1/xps_cpus")
    before = state(host)

    change = apply(host, "3:gate=40ms/100ms")
    assert change["before"].startswith("default mq "), change
    found = qdiscs(host)
    [taprio] = [qdisc for qdisc in found if qdisc["kind"] == "taprio"]
    [schedule] = taprio["options"]["schedules"] if "schedules" in taprio["options"] else [taprio["options"]]
    assert schedule["cycle_time"] == 100_000_000, taprio
    assert [entry["interval"] for entry in schedule["schedule"]] == [40_000_000, 60_000_000], taprio
    # Probes every 66.7 ms meet a cycle of 100 ms at three phases; of 100 ms, at one.
    title = titles(bench(host, "--txtime=20ms", rate=15))["taprio_gates"]
    assert "drift through taprio's cycle of 100ms" in title, title
    assert "drift" not in titles(bench(host, "--txtime=20ms", rate=10)).get("taprio_gates", "")
    host.check("nearpath tune rollback")
    assert state(host) == before

    apply(host, "3:etf=5ms", "5:cbs=20000")
    found = qdiscs(host)
    assert "etf" in [qdisc["kind"] for qdisc in found], found
    [cbs] = [qdisc for qdisc in found if qdisc["kind"] == "cbs"]
    assert (cbs["options"]["idleslope"], cbs["options"]["sendslope"]) == (20_000, -980_000), cbs
    host.check("nearpath tune rollback")
    assert state(host) == before

    # The NIC cannot schedule: what was set until then is undone.
    refused = host.run("nearpath tune apply --nic nic0 --schedule 3:etf=5ms,offload")
    assert refused.status == 1, refused
    assert "etf" in refused.err, refused
    assert state(host) == before
    assert json.loads(host.check("nearpath tune status --json"))["journal"] == []

    # The qdisc of an administrator is not replaced.
    host.check("tc qdisc replace dev nic0 root handle 8: pfifo limit 77")
    theirs = state(host)
    plan = json.loads(host.check("nearpath tune plan --nic nic0 --schedule 3:etf=5ms --json"))
    assert not [change for change in plan["changes"] if change["kind"] == "qdisc"], plan
    assert any("pfifo 8:0 at root" in note for note in plan["notes"]), plan
    assert host.run("nearpath tune apply --force /root/plan.json").status == 1
    assert state(host) == theirs
