"""The scenes: reader, traffic, fault.

The array contains every pair of values that can occur together. `EXTRA` has further scenes, for past
surprises.
"""

from dataclasses import dataclass
from functools import cache

from .covering import Row, covering_array

READERS = [
    "recv",
    "recvmmsg",
    "poll",
    "select",
    "epoll_lt",
    "epoll_et",
    "uring_poll",
    "uring_multishot",
    "threads",
    "busy",
]
TRAFFIC = ["single", "bursts", "continuous", "stream", "requests"]
FAULTS = [
    "none",
    "task",
    "fifo",
    "quota",
    "compute",
    "lock",
    "memory",
    "stop",
    "interrupts_off",
    "softirqs",
    "interrupts",
    "migrate",
    "shaper",
    "loss",
]
DIMENSIONS = {"reader": READERS, "traffic": TRAFFIC, "fault": FAULTS}

TCP = ("stream", "requests")


@dataclass(frozen=True)
class Scene:
    """One row of the array."""

    reader: str
    traffic: str
    fault: str

    @property
    def name(self) -> str:
        """`epoll_et-bursts-lock`."""
        return f"{self.reader}-{self.traffic}-{self.fault}"

    @property
    def tcp(self) -> bool:
        """Whether it reads from a TCP connection."""
        return self.traffic in TCP

    @staticmethod
    def named(name: str) -> "Scene":
        """The scene with a name: any possible combination, not only those of the array."""
        reader, traffic, fault = name.split("-")
        row = {"reader": reader, "traffic": traffic, "fault": fault}
        known = all(row[key] in values for key, values in DIMENSIONS.items()) or fault in EXTRA_FAULTS
        if not known or not allowed(row):
            raise ValueError(f"no such scene: {name}")
        return Scene(**row)


# Faults of the scenes outside the array.
EXTRA_FAULTS = ["timers", "pipe", "nanosleep"]


def allowed(row: Row) -> bool:
    """Only TCP retransmits lost segments."""
    return row["fault"] != "loss" or row["traffic"] in TCP


@cache
def array() -> tuple[Scene, ...]:
    """The covering array, by fault."""
    return tuple(Scene(**row) for row in covering_array(DIMENSIONS, allowed))


EXTRA = (
    Scene("recv", "continuous", "timers"),
    Scene("epoll_lt", "bursts", "pipe"),
    Scene("threads", "single", "nanosleep"),
)
