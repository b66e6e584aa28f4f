"""The watch counts every packet that a reader of the guest receives: one for each message that was sent."""

from lab import Host
from lab.fixtures import lab
from lab.waiting import ended, start_measuring

from .conversations import Conversation, start_server
from .hosts import IGB, TWO_NODES

PORT = 5001
FLOWS, ROUNDS = 4, 1000


@lab(topology=TWO_NODES, nics=IGB)
def test_every_packet_is_watched(host: Host) -> None:
    start_server(host, "1", PORT)
    for protocol in ("udp", "tcp"):
        with Conversation(host, protocol, host.machine.address(), PORT, FLOWS) as talk:
            talk.talk(1)
            which = ("--port", str(PORT), "--proto", protocol, "--per", "process")
            measuring = start_measuring(host, "measure", "stages", *which)
            talk.talk(ROUNDS)
            document = ended(measuring)

        watch = document["watch"]
        assert "not_watched" not in watch, watch
        # (The server polls for a message before it receives it, so none is taken unseen.)
        assert (watch["packets"], watch["unstamped"]) == (FLOWS * ROUNDS, 0), (protocol, watch)
        paths = [path for path in document["paths"] if path["kind"] == "watch"]
        assert [path["count"] for path in paths] == [FLOWS * ROUNDS]
        assert paths[0]["max_ns"] < document["duration_s"] * 1e9
        servers = [group for group in document["groups"] if group["name"].startswith("python3")]
        counted = [path["count"] for group in servers for path in group["paths"] if path["kind"] == "watch"]
        assert counted == [FLOWS * ROUNDS], document["groups"]
