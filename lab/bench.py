"""Measures how long virtual hosts take to boot, to restore, and for 20 scenarios on real traffic."""

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import ParamSpec

from . import images
from .host import Host, empty_payload, overlay, snapshot
from .machine import Machine, Nic, Topology
from .run_folder import RunFolder

SCENARIOS = 20
RESTORES = 5
KERNELS = ("6.1", "6.12")

P = ParamSpec("P")


def run(payload: Path) -> None:
    """Measures and prints one line each."""
    for series in KERNELS:
        machine = Machine(series, Topology(), (Nic("igb"),))
        boot = timed(booted, machine)
        print(f"{series:>5}  boot until ready, with OVS   {boot:6.2f} s", flush=True)
        snapshot(machine)
        restores = [timed(restored, machine) for _ in range(RESTORES)]
        spread = f"[{min(restores):.2f} {max(restores):.2f}] of {RESTORES}"
        print(f"{series:>5}  restore until ready          {median(restores):6.2f} s  {spread}", flush=True)
    scenarios = [Machine(KERNELS[index % len(KERNELS)], Topology(), (Nic("igb"),)) for index in range(SCENARIOS)]
    each = [timed(scenario, machine, payload) for machine in scenarios]
    spread = f"median {median(each):.2f} s [{min(each):.2f} {max(each):.2f}]"
    print(f"       {SCENARIOS} scenarios                 {sum(each):6.1f} s  {spread}")


def timed(what: Callable[P, None], *arguments: P.args, **options: P.kwargs) -> float:
    """Returns how many seconds a call took."""
    start = time.monotonic()
    what(*arguments, **options)
    return time.monotonic() - start


def booted(machine: Machine) -> None:
    """Boots a host, without its snapshot."""
    with RunFolder("bench") as folder:
        memory = folder.path
        overlay(images.kernel(machine.kernel) / "disk.ext4", memory / "disk", "raw")
        Host.boot(machine, memory, memory / "disk", empty_payload(memory)).stop()


def restored(machine: Machine) -> None:
    """Restores a host and runs one program in it."""
    with Host.restore(machine) as host:
        host.check(["true"])


def scenario(machine: Machine, payload: Path) -> None:
    """One second of TCP from the peer through OVS to a socket, followed by nearpath."""
    with Host.restore(machine, payload) as host:
        host.check(["iperf3", "--server", "--daemon"])
        measuring = host.start(["nearpath", "measure", "stages", "--for", "2s", "--json"])
        host.peer.run(["iperf3", "--client", machine.address(), "--time", "1"])
        assert measuring.wait().status == 0, measuring.result
