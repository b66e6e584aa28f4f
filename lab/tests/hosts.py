"""The virtual hosts that tests run on: few, to limit the number of snapshots, but of each kind."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from lab import Nic, Topology
from lab.fixtures import lab, representative, smoke

TWO_NODES = Topology(cores=(2, 2))
FOUR_NODES = Topology(cores=(1, 1, 1, 1), memory_mib=320)
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


Tiers = Sequence[tuple[pytest.MarkDecorator, ...]]

# The tiers of a test that runs on all of them: on one it stands for its feature, on each kernel.
TIERS: Tiers = ((representative, smoke), (), (), (), ())
# For a test that takes long, and finds the same on every kernel.
LATER_TIERS: Tiers = ((), (), (), (), ())


def on_every_host(test: Callable[..., Any], tiers: Tiers = TIERS) -> Callable[..., Any]:
    """Runs a test on each of `EVERY`."""
    for wanted, of_this in reversed([*zip(EVERY, tiers, strict=True)]):
        test = lab(tiers=of_this, **wanted)(test)
    return test
