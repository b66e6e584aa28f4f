"""What a virtual host is to be: kernel, CPUs, nodes, memory and NICs; plain data.

Out comes QEMU's description of it. Nodes have their own PCI root (`pxb-pcie`), as the
sockets of a real machine have, and a NIC hangs below the root of its node:

    pcie.0 ── disk, payload, agent
       ├── pxb0 (node 0) ── rp0 ── nic0
       └── pxb1 (node 1) ── rp1 ── nic1
"""

from dataclasses import dataclass, field

COMMAND_LINE = "console=ttyS0 quiet panic=-1 mitigations=off nokaslr tsc=reliable"

# Without what costs emulation time: copying and clearing byte by byte (ERMS, FSRM, FSRS), a fifth level of
# page tables, and checks of each access to users' memory.
CPU = "max,-erms,-fsrm,-fsrs,-la57,-smap,-smep,-pku"

# Kernels before 6.9 see threads of a core on an AMD CPU (which this is) only by a feature that
# QEMU does not emulate. On an Intel CPU Linux idles with MWAIT, which is a busy loop in emulation.
SMT_CPU = f"{CPU},vendor=GenuineIntel,monitor=off"


@dataclass(frozen=True)
class Nic:
    """One NIC: QEMU's model (`igb`, `virtio`, `e1000e`, `vmxnet3`), its node, its queues.

    `queues` is for virtio alone, the others have what their hardware has.
    """

    model: str
    node: int = 0
    queues: int = 4

    def device(self, index: int, mac: str) -> str:
        """The value of QEMU's `-device` for the NIC with this index."""
        name = f"virtio-net-pci,mq=on,rss=on,vectors={2 * self.queues + 2}" if self.is_virtio else self.model
        return f"{name},netdev=net{index},mac={mac},bus=rp{index},romfile="

    @property
    def is_virtio(self) -> bool:
        """Whether the model is virtio-net."""
        return self.model == "virtio"


@dataclass(frozen=True)
class Topology:
    """CPUs and nodes: how many cores each node has (0: a node of memory alone), and threads a core.

    With one node there is no NUMA description at all, as on a host that has none.
    """

    cores: tuple[int, ...] = (2, 2)
    threads: int = 1
    memory_mib: int = 448
    distance: int = 21

    @property
    def cpus(self) -> int:
        """CPUs of the host."""
        return sum(self.cores) * self.threads

    def sockets(self) -> tuple[int, int]:
        """Sockets, and the cores of each: QEMU wants as many in each."""
        (cores,) = {cores for cores in self.cores if cores}
        return sum(1 for cores in self.cores if cores), cores

    def cpus_of(self, node: int) -> range:
        """The CPUs of a node."""
        first = sum(self.cores[:node]) * self.threads
        return range(first, first + self.cores[node] * self.threads)


@dataclass(frozen=True)
class Machine:
    """A virtual host before it is started. `number` (1 to 9) is in its addresses; `parameters` are words
    of the kernel's command line beyond what it always has.
    """

    kernel: str
    topology: Topology = field(default_factory=Topology)
    nics: tuple[Nic, ...] = (Nic("igb"),)
    number: int = 1
    parameters: tuple[str, ...] = ()

    @property
    def command_line(self) -> str:
        """What the kernel is started with."""
        return " ".join((COMMAND_LINE, *self.parameters))

    @property
    def name(self) -> str:
        """What tells it from others, short: `6.12-2+2x2-igb0` (threads a core, NICs with nodes)."""
        cores = "+".join(map(str, self.topology.cores))
        threads = f"x{self.topology.threads}" if self.topology.threads > 1 else ""
        nics = "+".join(f"{nic.model}{nic.node}" for nic in self.nics)
        number = f"-{self.number}" if self.number > 1 else ""
        parameters = "".join(f"-{word}" for word in self.parameters)
        return f"{self.kernel}-{cores}{threads}-{nics}{number}{parameters}"

    def mac(self, index: int) -> str:
        """The MAC of the NIC with this index; the peer's is `52:54:00:09:00:..`."""
        return f"52:54:00:09:{self.number:02x}:{index:02x}"

    def address(self, index: int = 0) -> str:
        """The IPv4 address of the NIC with this index (for 0: of br0, the OVS bridge it is in)."""
        return f"10.9.{index}.{self.number}"

    def address6(self, index: int = 0) -> str:
        """As `address`, IPv6."""
        return f"fd00:9:{index}::{self.number}"

    def hardware(self, memory: str, share: bool) -> list[str]:
        """QEMU's options for CPUs, memory and NICs. `memory` is the folder of the nodes' memory
        files; with `share` what the guest writes is written to them, else it is its own."""
        topology = self.topology
        sockets, cores = topology.sockets()
        options = ["-machine", "q35" if len(topology.cores) > 1 else "q35,memory-backend=mem0"]
        options += ["-cpu", CPU if topology.threads == 1 else SMT_CPU]
        options += ["-smp", f"{topology.cpus},sockets={sockets},cores={cores},threads={topology.threads}"]
        options += ["-m", f"{topology.memory_mib * len(topology.cores)}M"]
        for node in range(len(topology.cores)):
            file = f"mem-path={memory}/node{node},share={'on' if share else 'off'}"
            options += ["-object", f"memory-backend-file,id=mem{node},size={topology.memory_mib}M,{file}"]
        if len(topology.cores) > 1:
            options += self._nodes()
        for index, nic in enumerate(self.nics):
            bus = f"pxb{nic.node}" if len(topology.cores) > 1 else "pcie.0"
            options += ["-device", f"pcie-root-port,id=rp{index},bus={bus},chassis={index + 1},slot={index + 1}"]
            options += ["-device", nic.device(index, self.mac(index))]
        return options

    def _nodes(self) -> list[str]:
        """QEMU's options for the nodes: their CPUs, distances and PCI roots."""
        topology = self.topology
        options = []
        for node, _ in enumerate(topology.cores):
            cpus = topology.cpus_of(node)
            span = f",cpus={cpus.start}-{cpus.stop - 1}" if cpus else ""
            options += ["-numa", f"node,nodeid={node}{span},memdev=mem{node}"]
        for node, _ in enumerate(topology.cores):
            for other in range(node):
                options += ["-numa", f"dist,src={node},dst={other},val={topology.distance}"]
            options += ["-device", f"pxb-pcie,id=pxb{node},bus=pcie.0,bus_nr={32 + 16 * node},numa_node={node}"]
        return options
