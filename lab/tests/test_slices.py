"""Observation in slices: programs at functions stay attached, those at tracepoints are attached and detached under
traffic, and no path combines two packets."""

from lab import Host
from lab.fixtures import lab
from lab.waiting import ended, start_measuring

from .conversations import Conversation, start_server
from .hosts import IGB, TWO_NODES
from .spans import assert_balanced, passed, ways

PORT = 5001
FLOWS, ROUNDS = 4, 5000
INTERVAL_S, DUTY = 2, 2


@lab(topology=TWO_NODES, nics=IGB)
def test_slices_see_whole_paths(host: Host) -> None:
    start_server(host, "1", PORT)
    with Conversation(host, "udp", host.machine.address(), PORT, FLOWS) as talk:
        talk.talk(1)
        which = ("--dev", "nic0", "--port", str(PORT), "--proto", "udp", "--slow", "1ms")
        slices = ("--interval", f"{INTERVAL_S}s", "--duty", f"1/{DUTY}")
        measuring = start_measuring(host, "measure", "stages", *which, *slices)
        talk.talk(ROUNDS)
        document = ended(measuring, lines=True)

    assert 0 < document["observed_s"] < 0.75 * document["duration_s"]
    intervals = document["duration_s"] / INTERVAL_S
    assert intervals > 2
    packets = document["packets"]
    assert FLOWS < packets["started"] < 2 * FLOWS * ROUNDS
    assert_balanced(document)
    # At the start and the end of each slice a packet may be in flight on each CPU.
    cut = intervals * 2 * host.machine.topology.cpus
    assert packets["abandoned"] <= cut
    came = passed(document, "rx", end="netif_receive_skb")
    assert abs(sum(ways(document, "rx", "netif_receive_skb").values()) - came) <= cut
    # A span from one slice to another would be as long as the pause between them.
    longest = max(span["max_ns"] for span in document["spans"])
    assert longest < INTERVAL_S * 1e9 / DUTY, longest
