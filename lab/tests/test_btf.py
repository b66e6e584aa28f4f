"""A kernel without its own BTF: nearpath reads it from a file, and reports if there is none.

The guest's BTF is hidden by an empty directory, and passed as a file.
"""

import json

from lab import Host
from lab.fixtures import lab
from lab.waiting import ended, start_measuring

from .hosts import IGB, TWO_NODES

NO_BTF = (
    "this kernel has no BTF (/sys/kernel/btf/vmlinux): packets cannot be measured unless it is given with --btf FILE"
)


LIST = "nearpath measure stages --list-stages --json"


def hide_btf(host: Host) -> str:
    """Hides a guest's BTF; returns a file with its content."""
    host.check("cp /sys/kernel/btf/vmlinux /tmp/vmlinux.btf")
    host.check("mkdir /tmp/empty && mount --bind /tmp/empty /sys/kernel/btf")
    return "/tmp/vmlinux.btf"


@lab(kernels=("6.1",), topology=TWO_NODES, nics=IGB)
def test_measures_with_btf_from_a_file(host: Host) -> None:
    btf = hide_btf(host)
    stages = json.loads(host.check(f"{LIST} --btf {btf}"))["stages"]
    # Typed tracepoints, fentry and fexit need BTF in the kernel itself.
    observed = [stage["attach"] for stage in stages if stage["attach"]]
    ways = {attach.partition("/")[0] for attach in observed}
    assert len(observed) > 40 and ways == {"raw_tp", "kprobe"}, observed
    assert all(stage["attach"] or stage["reason"] for stage in stages)

    measuring = start_measuring(host, "measure", "stages", "--proto", "icmp", "--direction", "rx", "--btf", btf)
    pings = host.peer.run(["ping", "-q", "-c", "20", "-i", "0.05", host.machine.address()])
    assert pings.status == 0, pings
    document = ended(measuring)
    assert document["packets"]["started"] >= 20
    through_br0 = [span["count"] for span in document["spans"] if span["from"] == "netif_rx"]
    assert sum(through_br0) >= 20, document["spans"]


@lab(kernels=("6.1",), topology=TWO_NODES, nics=IGB)
def test_missing_btf_is_reported(host: Host) -> None:
    hide_btf(host)
    for command, what in (("nearpath measure stages --for 1s", "measure"), (LIST, "list the stages")):
        assert host.run(command) == (1, "", f"nearpath: cannot {what}: {NO_BTF}\n")

    # Invalid files: a missing one, a text, truncated BTF.
    host.check("echo text >/tmp/text && head -c 1000000 /tmp/vmlinux.btf >/tmp/part")
    for file, why in (("missing", "not found"), ("text", "no valid BTF"), ("part", "no valid BTF")):
        status, out, err = host.run(f"nearpath measure stages --for 1s --btf /tmp/{file}")
        assert (status, out, err.count("\n")) == (1, "", 1), (out, err)
        assert err.startswith(f"nearpath: cannot measure: /tmp/{file}: {why}")

    # Facts are still reported.
    status, out, err = host.run("nearpath diagnose --for 100ms --json")
    instead = "using TCP connections and kernel counters only"
    assert (status, err.splitlines()[0]) == (0, f"nearpath: cannot measure: {NO_BTF}; {instead}")
    document = json.loads(out)
    assert document["measurement"] is None and document["host"]["nodes"] == 2
    assert {"check": "measurement", "reason": f"packets were not measured: {NO_BTF}"} in document["not_checked"]
