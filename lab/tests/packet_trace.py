"""The kernel's own record of where packets were: its trace events, read as text from tracefs.

It is independent of nearpath's programs and sees each packet, so that counts can be compared.
A line (packets are identified by the address of their sk_buff, queues by number + 1):

    <idle>-0 [000] ..s2. 53.1: netif_rx_entry: dev=br0 napi_id=0x2001 queue_mapping=3 skbaddr=00000000c0ffee00 ...
"""

import re
from typing import NamedTuple

from lab import Host

TRACEFS = "/sys/kernel/tracing"

LINE = re.compile(r"\[(?P<cpu>\d+)\].*?: (?P<event>\w+): dev=(?P<device>\S+) (?P<fields>.*)")


class Event(NamedTuple):
    """A packet at one of the kernel's trace events. `queue` is -1 if none was recorded."""

    name: str
    device: str
    cpu: int
    packet: str
    queue: int


def start(host: Host, events: tuple[str, ...], packet_bytes: int) -> None:
    """Starts recording some events of the group `net`, only of packets with this length."""
    # One clock for all CPUs, so that the records are in order.
    lines = [f"cd {TRACEFS}", "echo global >trace_clock", "echo 16384 >buffer_size_kb", "echo >trace"]
    for event in events:
        lines += [f"echo 'len == {packet_bytes}' >events/net/{event}/filter", f"echo 1 >events/net/{event}/enable"]
    host.check(" && ".join(lines))


def clear(host: Host) -> None:
    """Discards the records."""
    host.check(f"echo >{TRACEFS}/trace")


def read(host: Host) -> list[Event]:
    """Returns the records, in order."""
    lines = host.check(f"cat {TRACEFS}/trace").splitlines()
    found = (LINE.search(line) for line in lines if not line.startswith("#"))
    return [_event(match) for match in found if match]


def _event(match: re.Match[str]) -> Event:
    fields = dict(field.split("=", 1) for field in match["fields"].split() if "=" in field)
    queue = int(fields.get("queue_mapping", "0")) - 1
    return Event(match["event"], match["device"], int(match["cpu"]), fields["skbaddr"], queue)
