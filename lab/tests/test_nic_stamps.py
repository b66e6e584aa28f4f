"""Hardware time stamps as the first stage of a packet's path: a NIC that stamps, its clock, and a reader that gets
the same stamps from the kernel (SO_TIMESTAMPING). The reader converts each by its own reading of both clocks, and
nearpath must report the same time of receipt at the NIC.
"""

from typing import Any

from lab import Host
from lab.fixtures import lab
from lab.waiting import ended, start_measuring

from .hosts import IGB, TWO_NODES
from .stamping import PARAMETERS, PLAIN_TOS, Stamped

PORT = 5009
DATAGRAMS = 40

# Packets that take a microsecond are reported with their path, which has the time of each stage.
EACH_PACKET = ("--slow", "1us", "--outliers", "2000")

# In addition to the uncertainty of both conversions: the clock's drift between the two readings.
NEAR_NS = 3_000


def measured(host: Host, *arguments: str) -> Any:
    """A running measurement of the reader's packets."""
    return start_measuring(host, "measure", "stages", "--proto", "udp", "--dport", str(PORT), *EACH_PACKET, *arguments)


def warm_up(stamped: Stamped) -> None:
    """The first packet after a while goes through Open vSwitch's user space, and returns without its stamp."""
    stamped.send(1, PLAIN_TOS)


def counts(document: dict[str, Any]) -> dict[str, int]:
    """Paths by kind."""
    return {path["kind"]: path["count"] for path in document["paths"]}


def path(document: dict[str, Any], kind: str) -> dict[str, Any]:
    """The paths of a kind."""
    (found,) = [path for path in document["paths"] if path["kind"] == kind]
    return dict(found)


def nic_times(document: dict[str, Any]) -> list[int]:
    """When each packet was at the NIC."""
    paths = {outlier["packet"]: outlier["path"] for outlier in document["outliers"]}
    first = [passed[0] for passed in paths.values() if passed]
    return sorted(passed["at_ns"] for passed in first if passed["stage"] == "nic_rx")


def assert_as_judged(document: dict[str, Any], judged: list[dict[str, Any]]) -> None:
    """Asserts that nearpath and the reader agree on each packet's time, and that the kernel accepted the programs."""
    assert document["fallback"] is None, document["fallback"]
    (device,) = document["nic_stamps"]["devices"]
    times = nic_times(document)
    assert len(times) == len(judged), (len(times), judged)
    for at_ns, packet in zip(times, sorted(judged, key=lambda packet: int(packet["nic_ns"])), strict=True):
        apart = abs(at_ns - packet["nic_ns"])
        assert apart <= packet["off_ns"] + device["uncertainty_ns"] + NEAR_NS, (at_ns, packet, device)
        assert at_ns < packet["read_ns"]


def stamped_and_plain(host: Host) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """nearpath's and the judge's results for datagrams with a stamp, and then as many without."""
    with Stamped(host, host.machine.address(), PORT) as stamped:
        measuring = measured(host)
        warm_up(stamped)
        stamped.send(DATAGRAMS)
        stamped.send(DATAGRAMS, PLAIN_TOS)
        document = ended(measuring)
        judged = stamped.end()[1:]
    return document, judged


@lab(topology=TWO_NODES, nics=IGB, parameters=PARAMETERS)
def test_paths_begin_at_the_nic(host: Host) -> None:
    document, judged = stamped_and_plain(host)
    assert [packet["stamp"] != 0 for packet in judged] == [True] * DATAGRAMS + [False] * DATAGRAMS
    stamps = document["nic_stamps"]
    (device,) = stamps["devices"]
    assert (device["nic"], device["rx_filter"], device["clock"]) == ("nic0", "ptpv2-event", "ptp0"), device
    assert (device["method"], device["used"], device["left_out"]) == ("extended", True, None), device
    # In emulation, reading a NIC register takes microseconds.
    assert 0 < device["uncertainty_ns"] < 1_000_000 and device["clock_steps"] == 0, device
    unused = [stamps[why] for why in ("ahead", "too_old", "unconverted", "not_plain")]
    assert (stamps["used"], unused) == (DATAGRAMS, [0, 0, 0, 0]), stamps
    # Packets with and without a stamp are separate, and none is missing.
    assert counts(document) == {"receive_from_nic": DATAGRAMS, "receive": DATAGRAMS + 1}
    assert path(document, "receive_from_nic")["from"] == "nic_rx"
    assert path(document, "receive")["from"] == "irq_handler"
    assert "nic_rx" in document["stages"]
    assert_as_judged(document, judged[:DATAGRAMS])


@lab(topology=TWO_NODES, nics=IGB, parameters=PARAMETERS)
def test_a_moderated_interrupt_is_the_nics(host: Host) -> None:
    """The delay before the NIC interrupts is visible only with its stamps."""
    # The driver's maximum is 10 ms.
    host.check("ethtool -C nic0 rx-usecs 8000")
    document, judged = stamped_and_plain(host)
    assert_as_judged(document, judged[:DATAGRAMS])
    from_nic, without = path(document, "receive_from_nic"), path(document, "receive")
    assert (from_nic["count"], without["count"]) == (DATAGRAMS, DATAGRAMS + 1)
    assert from_nic["p50_ns"] > without["p50_ns"] + 2_000_000, (from_nic, without)
    held = [span for span in document["spans"] if (span["from"], span["to"]) == ("nic_rx", "irq_handler")]
    assert held and held[0]["count"] > DATAGRAMS // 2 and held[0]["p50_ns"] > 2_000_000, held
    late = [o for o in document["outliers"] if (o["from"], o["to"]) == ("nic_rx", "irq_handler")]
    assert late and all(o["budget"][0]["share"] == "nic" for o in late), late[:2]


@lab(topology=TWO_NODES, nics=IGB, parameters=PARAMETERS)
def test_a_clock_step_gives_no_wrong_times(host: Host) -> None:
    with Stamped(host, host.machine.address(), PORT) as stamped:
        measuring = measured(host)
        warm_up(stamped)
        stamped.send(DATAGRAMS)
        # The reader sets the clock 1,000 s ahead; until it is read again, stamps are in the future.
        stamped.send(1, PLAIN_TOS, "set")
        stamped.send(DATAGRAMS)
        host.check("sleep 2")
        stamped.send(DATAGRAMS)
        document = ended(measuring)
        judged = stamped.end()[1:]
    stamps = document["nic_stamps"]
    (device,) = stamps["devices"]
    assert device["clock_steps"] == 1, device
    assert (stamps["used"] + stamps["ahead"], stamps["too_old"]) == (3 * DATAGRAMS, 0), stamps
    assert stamps["used"] >= 2 * DATAGRAMS, stamps
    expected = {"receive_from_nic": stamps["used"], "receive": stamps["ahead"] + 2}
    assert counts(document) == {kind: count for kind, count in expected.items() if count}
    # The used stamps agree with the reader's: all from before and long after, and some in between.
    at_nic = sorted(packet["nic_ns"] for packet in judged if packet["stamp"])
    for at_ns in nic_times(document):
        assert min(abs(at_ns - nic_ns) for nic_ns in at_nic) < device["uncertainty_ns"] + 50_000, at_ns


@lab(topology=TWO_NODES, nics=IGB, parameters=PARAMETERS)
def test_a_nic_in_another_namespace(host: Host) -> None:
    host.check(
        "ovs-vsctl del-port br0 nic0 && ip addr flush dev br0 && ip netns add away && ip link set nic0 netns away"
    )
    host.check(f"ip -n away addr add {host.machine.address()}/24 dev nic0 && ip -n away link set nic0 up")
    inode = int(host.check("stat -L -c %i /run/netns/away"))
    with Stamped(host, host.machine.address(), PORT, netns="away") as stamped:
        measuring = measured(host)
        warm_up(stamped)
        stamped.send(DATAGRAMS)
        document = ended(measuring)
        judged = stamped.end()[1:]
    (device,) = document["nic_stamps"]["devices"]
    assert (device["nic"], device["netns"], device["used"]) == ("nic0", inode, True), device
    assert counts(document) == {"receive_from_nic": DATAGRAMS, "receive": 1}
    assert_as_judged(document, judged)


@lab(topology=TWO_NODES, nics=IGB, parameters=PARAMETERS)
def test_a_clock_that_cannot_be_read_is_reported(host: Host) -> None:
    with Stamped(host, host.machine.address(), PORT) as stamped:
        host.check("mv /dev/ptp0 /dev/elsewhere")
        measuring = measured(host)
        warm_up(stamped)
        stamped.send(DATAGRAMS)
        document = ended(measuring)
        stamped.end()
    (device,) = document["nic_stamps"]["devices"]
    assert (device["used"], device["left_out"]) == (False, "/dev/ptp0: not found"), device
    assert document["nic_stamps"]["used"] == 0
    assert counts(document) == {"receive": DATAGRAMS + 1}
    assert "nic_rx" not in document["stages"]
