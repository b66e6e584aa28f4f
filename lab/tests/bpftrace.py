"""The packets that a guest receives, counted by bpftrace with `hops.bt`.

Input: a guest. Output, by destination port: how many packets went from one
kernel function to the next, and how many of these changed CPU or node.
"""

import json
import re
from pathlib import Path
from typing import NamedTuple, Self

from lab import Host, Job
from lab.waiting import wait_until

SCRIPT = Path(__file__).with_name("hops.bt").read_text()
FIRST = "tracepoint:net:napi_gro_receive_entry"

# The probes that a packet passes, and the variable that has its sk_buff there.
PLACES = {
    "tracepoint:net:netif_rx": "(uint64)args->skbaddr",
    "tracepoint:net:netif_receive_skb": "(uint64)args->skbaddr",
    "tracepoint:skb:skb_copy_datagram_iovec": "(uint64)args->skbaddr",
    "kprobe:enqueue_to_backlog": "arg0",
    "kprobe:ovs_dp_process_packet": "arg0",
    "kprobe:internal_dev_recv": "arg0",
    "kprobe:ip_rcv": "arg0",
    "kprobe:tcp_v4_rcv": "arg0",
    "kprobe:udp_rcv": "arg0",
    "kprobe:ovs_vport_receive": "arg1",
    "kprobe:ovs_vport_send": "arg1",
    "kprobe:tcp_rcv_established": "arg1",
    "kprobe:__udp_enqueue_schedule_skb": "arg1",
    "kprobe:skb_consume_udp": "arg1",
}

# Probes are numbered, since for its built-in `probe` bpftrace reads the names of all functions again
# for each probe.
PASSES = """
%(place)s
/@port[%(packet)s]/
{
  $packet = %(packet)s;
  @packets[@port[$packet], @at[$packet], %(number)d] = count();
  if (@cpu[$packet] != cpu) { @other_cpu[@port[$packet], @at[$packet], %(number)d] = count(); }
  if (@node[$packet] != numaid) { @other_node[@port[$packet], @at[$packet], %(number)d] = count(); }
  @at[$packet] = %(number)d;
  @cpu[$packet] = cpu;
  @node[$packet] = numaid;
}
"""

# With a name it also works on kernels that have types for themselves but not for their modules (5.10).
BTF = "BPFTRACE_BTF=/sys/kernel/btf/vmlinux"


class Hop(NamedTuple):
    """Packets that went from one function to another."""

    packets: int = 0
    other_cpu: int = 0
    other_node: int = 0

    def __add__(self, other: tuple[int, ...]) -> Self:  # type: ignore[override]
        return type(self)(*(mine + its for mine, its in zip(self, other, strict=True)))


Hops = dict[tuple[str, str], Hop]


def start(host: Host) -> Job:
    """Starts it; its probes are attached some seconds later (`wait_until_attached`)."""
    host.write("/run/hops.bt", _script().encode())
    return host.start(["env", BTF, "bpftrace", "-f", "json", "/run/hops.bt", str(offset_of_data(host))])


def wait_until_attached(job: Job) -> None:
    """Waits until all its probes are attached, according to the kernel."""
    probes = set(re.findall(r"^(?:tracepoint:\w+|kprobe):(\w+)", _script(), re.MULTILINE))

    def attached() -> bool:
        assert job.running(), job.result
        perf = json.loads(job.host.check(["bpftool", "--json", "perf", "show"]))
        return probes == {one.get("tracepoint") or one["func"] for one in perf if one["pid"] == job.pid}

    wait_until(attached, "bpftrace has attached its probes")


def missed(host: Host) -> int:
    """How many runs of bpftrace's programs the kernel has skipped so far, as their CPU was in another program, or in a
    system call of user space on a BPF map (`bpf_prog_active` of trace_call_bpf(), kernel/trace/bpf_trace.c).

    Programs of fentry and tp_btf, as nearpath's, run there. 0 before Linux 6.7, which does not count them.
    """
    programs = json.loads(host.check(["bpftool", "--json", "prog", "show"]))
    return sum(one.get("recursion_misses", 0) for one in programs if one["type"] in ("kprobe", "tracepoint"))


def _script() -> str:
    passes = (
        PASSES % {"place": place, "packet": packet, "number": number}
        for number, (place, packet) in enumerate(PLACES.items(), 1)
    )
    return SCRIPT + "".join(passes)


def offset_of_data(host: Host) -> int:
    """The offset of an sk_buff's data pointer, in bytes."""
    types = "bpftool btf dump file /sys/kernel/btf/vmlinux format raw"
    bits = host.check(types + r""" | sed -n "/^\[.*\] STRUCT 'sk_buff'/,/^\[/s/^\t'data' .* bits_offset=//p" """)
    return int(bits) // 8


def ended(job: Job) -> dict[int, Hops]:
    """Ends it, and returns its counts."""
    job.kill("INT")
    status, out, err = job.wait()
    assert status == 0, err
    lines = [json.loads(line) for line in out.splitlines() if line]
    maps = {name: counts for line in lines if line["type"] == "map" for name, counts in line["data"].items()}
    places = [place.rpartition(":")[2] for place in (FIRST, *PLACES)]
    found: dict[int, Hops] = {}
    for key, packets in maps["@packets"].items():
        crossed = (maps.get(name, {}).get(key, 0) for name in ("@other_cpu", "@other_node"))
        port, begin, end = map(int, key.split(","))
        found.setdefault(port, {})[places[begin], places[end]] = Hop(packets, *crossed)
    return found
