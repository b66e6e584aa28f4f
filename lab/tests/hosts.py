"""The virtual hosts that tests run on: few, so that few snapshots are made, but of each kind."""

from collections.abc import Callable
from typing import Any

from lab import Nic, Topology
from lab.fixtures import lab

TWO_NODES = Topology(cores=(2, 2))
SMT = Topology(cores=(2, 2), threads=2)
MEMORY_NODE = Topology(cores=(2, 2, 2, 0), memory_mib=320)
ONE_NODE = Topology(cores=(4,), memory_mib=896)

IGB = (Nic("igb", node=0),)
VIRTIO = (Nic("virtio", node=1),)

EVERY = [
    {"topology": TWO_NODES, "nics": IGB},
    {"topology": TWO_NODES, "nics": (Nic("virtio", node=1), Nic("igb", node=0))},
    {"topology": SMT, "nics": (Nic("igb", node=1),)},
    {"topology": MEMORY_NODE, "nics": (Nic("vmxnet3", node=2),)},
    {"topology": ONE_NODE, "nics": (Nic("e1000e"),)},
]


def on_every_host(test: Callable[..., Any]) -> Callable[..., Any]:
    """Runs a test on each of `EVERY`, which take turns with the usual kernels."""
    for turn, wanted in reversed([*enumerate(EVERY)]):
        test = lab(turn=turn, **wanted)(test)
    return test
