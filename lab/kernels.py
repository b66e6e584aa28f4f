"""Writes docs/kernels.md: what each kernel of the lab lets nearpath observe, and how.

The table is what nearpath itself reports in a guest with that kernel. bpftool independently verifies
what is attached while nearpath measures there.
"""

import json
from pathlib import Path

from . import images
from .host import Host
from .machine import Machine, Nic, Topology
from .payload import PROJECT
from .waiting import Measuring, start_measuring

PAGE = PROJECT / "docs/kernels.md"

# Attach modes: nearpath's name, and bpftool's program type, link type and attach type.
WAYS = {
    "tp_btf": ("tracing", "raw_tracepoint", None),
    "fentry": ("tracing", "tracing", "trace_fentry"),
    "fexit": ("tracing", "tracing", "trace_fexit"),
    "raw_tp": ("raw_tracepoint", "raw_tracepoint", None),
    "kprobe": ("kprobe", "perf_event", None),
}

# Upper (stacked) devices have their own stages once their modules are loaded.
MODULES = ("bonding", "bridge", "macvlan", "tap")

HEAD = """# Kernels

What nearpath observes on four kernels, and with which type of program: the output of
`nearpath measure stages --list-stages` in virtual hosts with Debian's kernels. `make lab-kernels`
writes this page, and a test compares it with each kernel. Other kernels of a series
may differ, mainly by their configuration: run the command there. `nic_rx` needs a NIC that stamps received packets,
which these NICs do only if it is switched on.

"""


def table(columns: dict[str, dict[tuple[str, str], str]], versions: dict[str, str]) -> str:
    """The page. `columns`: for each kernel, the cell of each row (direction or topic, name)."""
    rows = dict.fromkeys(row for column in columns.values() for row in column)
    lines = [
        f"| | | {' | '.join(columns)} |",
        f"|---|---|{'---|' * len(columns)}",
        f"| | release | {' | '.join(versions[series] for series in columns)} |",
    ]
    for row in rows:
        cells = [columns[series].get(row, "") for series in columns]
        lines.append(f"| {row[0]} | {row[1]} | {' | '.join(cells)} |")
    return HEAD + "\n".join(lines) + "\n"


def start_observing(host: Host, *filters: str) -> Measuring:
    """Starts to measure all stages that the host can have."""
    host.check(["modprobe", "--all", *MODULES])
    return start_measuring(host, "measure", "stages", *filters)


def column(host: Host) -> dict[tuple[str, str], str]:
    """What can be observed on a host: for each row of the page one cell. Asked while all is observed."""
    cells = {("has", "BTF"): "yes" if host.run(["test", "-r", "/sys/kernel/btf/vmlinux"]).status == 0 else "no"}
    programs, links = (json.loads(host.check(["bpftool", "--json", kind, "show"])) for kind in ("prog", "link"))
    types = {program["id"]: program["type"] for program in programs}
    attached = {(types.get(link.get("prog_id")), link["type"], link.get("attach_type")) for link in links}
    for way, link in WAYS.items():
        cells[("attached", f"`{way}`")] = "yes" if link in attached else "no"
    stages = json.loads(host.check(["nearpath", "measure", "stages", "--list-stages", "--json"]))["stages"]
    for stage in stages:
        cells[(stage["direction"], f"`{stage['stage']}`")] = f"`{stage['attach']}`" if stage["attach"] else "no"
    return cells


def write(payload: Path) -> None:
    """Asks all kernels and writes the page."""
    columns, versions = {}, {}
    for series in images.KERNELS:
        with Host.restore(Machine(series, Topology(), (Nic("igb"),)), payload) as host:
            start_observing(host)
            columns[series] = column(host)
            versions[series] = host.check(["uname", "-r"]).strip()
    PAGE.write_text(table(columns, versions))


def written(series: str) -> dict[tuple[str, str], str]:
    """What the page says of a kernel, as `column` gives it."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    index = rows[0].index(series)
    return {(row[0], row[1]): row[index] for row in rows[3:]}
