"""What `ss -tieHnmO` prints of a connection, and the field of `measure tcp --json` that has the same number.

Every word of ss must have its field: a name that is not here fails the test.
"""

from collections.abc import Callable
from typing import Any

import pytest

Connection = dict[str, Any]
# Whether a field has the value that ss prints behind the name.
Check = Callable[[Connection, str], bool]

NUMBERS = {
    "mss": "mss",
    "pmtu": "pmtu",
    "rcvmss": "receive_mss",
    "advmss": "advertised_mss",
    "cwnd": "cwnd",
    "ssthresh": "ssthresh",
    "bytes_sent": "bytes_sent",
    "bytes_retrans": "retransmitted_bytes",
    "bytes_acked": "bytes_acked",
    "bytes_received": "bytes_received",
    "segs_out": "segments_out",
    "segs_in": "segments_in",
    "data_segs_out": "segments_sent",
    "data_segs_in": "segments_received",
    "delivered": "delivered",
    "delivered_ce": "ecn_marked",
    "unacked": "in_flight",
    "lost": "lost",
    "sacked": "sacked",
    "dsack_dups": "spurious_retransmits",
    "reordering": "reordering",
    "reord_seen": "reordered",
    "rcv_ooopack": "out_of_order",
    "notsent": "unsent_bytes",
    "backoff": "backoff",
    "rcv_space": "receive_space_bytes",
    "rcv_ssthresh": "receive_ssthresh_bytes",
    "snd_wnd": "send_window_bytes",
    "rcv_wnd": "receive_window_bytes",
    "rehash": "rehash",
    "uid": "uid",
    "ino": "inode",
}
# In milliseconds with a fraction; the field is in nanoseconds.
TIMES = {"rto": "rto_ns", "minrtt": "min_rtt_ns", "rcv_rtt": "receiver_rtt_ns", "ato": "ato_ns"}
# In whole milliseconds, and a share behind it: `busy:12ms`, `rwnd_limited:3ms(25.0%)`.
LENGTHS = {"busy": "busy_ms", "rwnd_limited": "rwnd_limited_ms", "sndbuf_limited": "sndbuf_limited_ms"}
# Time since something: it passes between the two readings, so it is not compared with a number.
AGES = {"lastsnd": "last_sent_ms", "lastrcv": "last_received_ms", "lastack": "last_ack_ms"}
# `name value` in bits per second.
RATES = {
    "pacing_rate": "pacing_rate_bps",
    "delivery_rate": "delivery_rate_bps",
    "max_pacing_rate": "max_pacing_rate_bps",
}
# `skmem:(r0,rb131072,...)`, and the parts that are not in the document.
MEMORY = {
    "r": "receive_memory_bytes",
    "rb": "receive_buffer_bytes",
    "w": "send_memory_bytes",
    "tb": "send_buffer_bytes",
    "d": "drops",
}
OTHER_MEMORY = {"t", "f", "o", "bl"}
FLAGS = {"ts": "timestamps", "sack": "sack", "ecn": "ecn", "ecnseen": "ecn"}
# What each probe of a closed window changes.
MOVING = {"segs_out", "segs_in", "rto", "backoff", "busy", "rwnd_limited", "ato", "retrans", *AGES, *RATES}


def number(field: str) -> Check:
    return lambda connection, value: bool(connection[field] == int(value))


def time(field: str) -> Check:
    return lambda connection, value: bool(connection[field] == pytest.approx(float(value) * 1e6))


def length(field: str) -> Check:
    return lambda connection, value: bool(connection[field] == int(value.partition("ms")[0]))


def rate(field: str) -> Check:
    return lambda connection, value: bool(
        connection[field] == pytest.approx(float(value.removesuffix("bps")), rel=1e-6)
    )


def flag(option: str) -> Check:
    return lambda connection, _: connection["options"][option] is True


def rtt(connection: Connection, value: str) -> bool:
    both = [float(part) * 1e6 for part in value.split("/")]
    return bool([connection["rtt_ns"], connection["rttvar_ns"]] == pytest.approx(both))


def retransmits(connection: Connection, value: str) -> bool:
    both = [int(part) for part in value.split("/")]
    return [connection["retransmits_in_flight"], connection["retransmits"]] == both


def memory(connection: Connection, value: str) -> bool:
    """Packets dropped meanwhile, such as probes of a closed window, are more."""
    parts = {part.rstrip("0123456789"): part for part in value.strip("()").split(",")}
    assert parts.keys() <= MEMORY.keys() | OTHER_MEMORY, value
    fields = {key: int(part.removeprefix(key)) for key, part in parts.items() if key in MEMORY}
    dropped = fields.pop("d", 0)
    return {key: connection[MEMORY[key]] for key in fields} == fields and connection["drops"] >= dropped


CHECKS: dict[str, Check] = {
    **{name: number(field) for name, field in NUMBERS.items()},
    **{name: time(field) for name, field in TIMES.items()},
    **{name: length(field) for name, field in LENGTHS.items()},
    **{name: rate(field) for name, field in RATES.items()},
    **{name: flag(option) for name, option in FLAGS.items()},
    "rtt": rtt,
    "retrans": retransmits,
    "skmem": memory,
    "app_limited": lambda connection, _: connection["delivery_rate_app_limited"] is True,
    "wscale": lambda connection, value: connection["options"]["window_scale"] == [int(n) for n in value.split(",")],
    "sk": lambda connection, value: bool(connection["cookie"] == int(value, 16)),
    # Inside of `ip netns exec` ss cannot look it up.
    "cgroup": lambda connection, value: value.startswith("unreachable") or value == connection["cgroup"],
}
# The rate that ss computes from others, the kernel's timers, and which directions are open.
OTHERS = {"send", "timer", "<->"}
# Their value is the next word.
WITH_VALUE = {*RATES, "send"}


def compare(said: list[str], connection: Connection, *, moves: bool, within_ms: float) -> set[str]:
    """Compares each word of ss with its field; the names of those that were compared. Both were read within this time.
    `moves`: probes of a closed window are sent meanwhile."""
    compared = set()
    words = iter(said)
    for word in words:
        name, _, value = word.partition(":")
        if name in WITH_VALUE and not value:
            value = next(words)
        if name in OTHERS or word == connection["congestion_control"] or (moves and name in MOVING):
            continue
        if name in AGES:
            assert 0 <= connection[AGES[name]] - int(value) <= within_ms, f"{word}, {within_ms} ms: {connection}"
        else:
            assert name in CHECKS, f"no field for {word}: {said}"
            assert CHECKS[name](connection, value), f"{word}: {connection}"
        compared.add(name)
    return compared
