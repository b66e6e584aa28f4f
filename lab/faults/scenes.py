"""The scenes: who reads, which packets come, what is wrong.

The array holds every pair of values that can occur together; `EXTRA` are scenes beyond it, for what has
surprised once.
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
        """Whether it reads from a connection."""
        return self.traffic in TCP

    @staticmethod
    def named(name: str) -> "Scene":
        """The scene of a name; any combination that is possible, not those of the array alone."""
        reader, traffic, fault = name.split("-")
        row = {"reader": reader, "traffic": traffic, "fault": fault}
        known = all(row[key] in values for key, values in DIMENSIONS.items()) or fault in EXTRA_FAULTS
        if not known or not allowed(row):
            raise ValueError(f"no such scene: {name}")
        return Scene(**row)


# Faults of scenes beyond the array.
EXTRA_FAULTS = ["timers", "pipe", "nanosleep"]


def allowed(row: Row) -> bool:
    """Only TCP sends a lost segment again."""
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
