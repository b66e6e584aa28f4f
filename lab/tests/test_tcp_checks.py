"""Findings of `diagnose` about TCP connections on a host where each is true, by a qdisc or a sysctl that makes it so,
and none on a path without a fault."""

import json
from typing import Any, NamedTuple

import pytest

from lab import Host
from lab.fixtures import lab

from .hosts import IGB, TWO_NODES
from .test_tcp import Scene, start

IN_RED = "ip netns exec red"


class Fault(NamedTuple):
    """A scene, and what `diagnose` must say of it in the namespace of the sender."""

    scene: Scene
    check: str
    title: str
    # Targets of the changes that it proposes, with a part of their new values.
    proposes: tuple[tuple[str, str], ...] = ()
    before: tuple[str, ...] = ()
    connections: int = 1
    # Whether it costs this host's connections something; else it is information.
    is_felt: bool = True


FAULTS = {
    "losses": Fault({"qdisc": "netem delay 20ms loss 3%"}, "tcp_retransmissions", "retransmi"),
    "losses that no queue explains": Fault(
        {"qdisc": "netem delay 20ms loss 1%"},
        "tcp_congestion_control",
        "",
        (("net.ipv4.tcp_congestion_control", "bbr"),),
        ("modprobe tcp_bbr",),
    ),
    "a path that breaks": Fault(
        {"write": 2000, "write_pause": 0.01, "then": "netem loss 60%"},
        "tcp_timeouts",
        "timeout",
        connections=4,
    ),
    "jitter of the network": Fault(
        {"qdisc": "netem delay 30ms 25ms", "write": 1000, "write_pause": 0.02},
        "tcp_rtt_variance",
        "network",
        is_felt=False,
    ),
    "a small send buffer": Fault(
        {"qdisc": "netem delay 50ms"},
        "tcp_send_buffer",
        "send buffer",
        (("net.ipv4.tcp_wmem", ""),),
        (f"{IN_RED} sysctl -w net.ipv4.tcp_wmem='4096 16384 65536'",),
    ),
    "no selective acknowledgements": Fault(
        {"qdisc": "netem delay 20ms loss 3%"},
        "tcp_options_off",
        "SACK is off",
        (("net.ipv4.tcp_sack", "1"),),
        (f"{IN_RED} sysctl -w net.ipv4.tcp_sack=0",),
    ),
    "a peer without window scaling": Fault(
        {"qdisc": "netem delay 50ms"},
        "tcp_options_off",
        "indow scaling",
        before=("ip netns exec blue sysctl -w net.ipv4.tcp_window_scaling=0",),
        is_felt=False,
    ),
    "data that waits": Fault(
        {"qdisc": "netem rate 1mbit limit 10000"},
        "tcp_unsent_data",
        "",
        (("net.ipv4.tcp_notsent_lowat", ""),),
        (f"{IN_RED} sysctl -w net.ipv4.tcp_wmem='4096 2097152 4194304'",),
    ),
    "a peer with a small MTU": Fault(
        {"qdisc": "netem delay 5ms"},
        "tcp_mss_mismatch",
        "",
        before=("ip -n blue link set b0 mtu 600",),
        is_felt=False,
    ),
}

# Nothing is wrong: no queue overflows, no buffer is small, the application has little to send.
HEALTHY: list[Scene] = [
    {"write": 2000, "write_pause": 0.05},
    {"qdisc": "netem delay 5ms", "write": 20000, "write_pause": 0.05},
    {"qdisc": "netem delay 40ms", "write": 100, "write_pause": 0.5},
]

SECONDS = 12


@lab(topology=TWO_NODES, nics=IGB)
@pytest.mark.parametrize("fault", FAULTS.values(), ids=[name.replace(" ", "-") for name in FAULTS])
def test_it_is_found(host: Host, fault: Fault) -> None:
    start(host, [fault.scene] * fault.connections, *fault.before)
    findings = diagnosed(host)
    found = [finding for finding in findings if finding["check"] == fault.check and fault.title in finding["title"]]
    assert found, [(finding["check"], finding["title"]) for finding in findings]
    (finding, *_) = found
    assert fault.is_felt or finding["severity"] == "info", finding
    changes = [(change["target"], change["after"]) for change in finding["changes"]]
    for target, after in fault.proposes:
        assert [value for its, value in changes if target in its.replace("/", ".") and after in value], changes
    assert fault.proposes or not changes, changes


@lab(topology=TWO_NODES, nics=IGB)
def test_a_path_without_a_fault_is_quiet(host: Host) -> None:
    start(host, HEALTHY)
    findings = [finding for finding in diagnosed(host) if finding["check"].startswith("tcp_")]
    assert findings == [], findings


def diagnosed(host: Host) -> list[dict[str, Any]]:
    """The findings and their symptoms about the connections of the sender's namespace."""
    # An emulated CPU needs more time for ten readings per second than the limit allows.
    command = f"nearpath diagnose --netns red --measure tcp --for {SECONDS}s --json --max-overhead none"
    findings = json.loads(host.check(command))["findings"]
    return [*findings, *(symptom for finding in findings for symptom in finding.get("symptoms", []))]
