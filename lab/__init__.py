"""Virtual hosts with nodes, queues and OVS, on real kernels. See README.md."""

from .agent import Result
from .host import Host, Job
from .machine import Machine, Nic, Topology
from .peer import Namespace, Wire

__all__ = ["Host", "Job", "Machine", "Namespace", "Nic", "Result", "Topology", "Wire"]
