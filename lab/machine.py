"""The description of a virtual host: kernel, CPUs, nodes, memory and NICs; plain data.

Output: QEMU's options. Each node has its own PCI root (`pxb-pcie`), like the
sockets of a real machine, and a NIC is below the root of its node:

    pcie.0 ── disk, payload, agent
       ├── pxb0 (node 0) ── rp0 ── nic0
       └── pxb1 (node 1) ── rp1 ── nic1
"""

from dataclasses import dataclass, field

COMMAND_LINE = "console=ttyS0 quiet panic=-1 mitigations=off nokaslr tsc=reliable"

# Without features that are slow to emulate: copying and clearing byte by byte (ERMS, FSRM, FSRS), a fifth level
# of page tables, and checks of each access to user memory.
CPU = "max,-erms,-fsrm,-fsrs,-la57,-smap,-smep,-pku"

# On an AMD CPU (like this one), kernels before 6.9 detect threads of a core by a feature that
# QEMU does not emulate, and all kernels take a package for one last-level cache. On an Intel CPU, Linux idles
# with MWAIT, which is a busy loop in emulation.
SMT_CPU = f"{CPU},vendor=GenuineIntel,monitor=off"


@dataclass(frozen=True)
class Nic:
    """One NIC: QEMU's model (`igb`, `virtio`, `e1000e`, `vmxnet3`), its node, its queues.

    `queues` applies only to virtio; the other models have a fixed number.
    """

    model: str
    node: int = 0
    queues: int = 4

    def device(self, index: int, mac: str) -> str:
        """QEMU's `-device` value for the NIC with this index."""
        name = f"virtio-net-pci,mq=on,rss=on,vectors={2 * self.queues + 2}" if self.is_virtio else self.model
        return f"{name},netdev=net{index},mac={mac},bus=rp{index},romfile="

    @property
    def is_virtio(self) -> bool:
        """Whether the model is virtio-net."""
        return self.model == "virtio"


@dataclass(frozen=True)
class Topology:
    """CPUs and nodes: cores per node (0: a memory-only node), last-level caches per node, and threads per core.

    With one node there is no NUMA description at all, as on a host without NUMA.
    """

    cores: tuple[int, ...] = (2, 2)
    threads: int = 1
    memory_mib: int = 448
    distance: int = 21
    llcs: int = 1

    @property
    def cpus(self) -> int:
        """CPUs of the host."""
        return sum(self.cores) * self.threads

    def sockets(self) -> tuple[int, int]:
        """Sockets, and the cores of each: QEMU requires the same number in each."""
        (cores,) = {cores for cores in self.cores if cores}
        return sum(1 for cores in self.cores if cores), cores

    def cpus_of(self, node: int) -> range:
        """The CPUs of a node."""
        first = sum(self.cores[:node]) * self.threads
        return range(first, first + self.cores[node] * self.threads)


@dataclass(frozen=True)
class Machine:
    """A virtual host before it is started. `number` (1 to 9) is part of its addresses; `parameters` are
    additional words of the kernel command line; `variant` is that of its image (`images.VARIANTS`).

    With `iommu`, devices can be given to vfio-pci; those of kernel drivers are not translated, as that is slow here.
    Programs then need `vfio_iommu_type1 allow_unsafe_interrupts=1`, since interrupts are not remapped. One thread then
    emulates all CPUs, unless a Linux guest is to run in it (`has_guest`), which hangs there.
    """

    kernel: str
    topology: Topology = field(default_factory=Topology)
    nics: tuple[Nic, ...] = (Nic("igb"),)
    number: int = 1
    parameters: tuple[str, ...] = ()
    variant: str = ""
    iommu: bool = False
    has_guest: bool = False

    @property
    def command_line(self) -> str:
        """The kernel command line."""
        iommu = ("intel_iommu=on", "iommu=pt") if self.iommu else ()
        return " ".join((COMMAND_LINE, *iommu, *self.parameters))

    @property
    def name(self) -> str:
        """A short unique name: `6.12-2+2x2-igb0` (threads per core, `c` and caches per node; NICs)."""
        cores = "+".join(map(str, self.topology.cores))
        threads = f"x{self.topology.threads}" if self.topology.threads > 1 else ""
        threads += f"c{self.topology.llcs}" if self.topology.llcs > 1 else ""
        nics = "+".join(f"{nic.model}{nic.node}" for nic in self.nics)
        number = f"-{self.number}" if self.number > 1 else ""
        # Part of file names in QEMU's options, where a comma ends a value.
        words = (self.variant, "iommu" if self.iommu else "", *(word.replace(",", "+") for word in self.parameters))
        return f"{self.kernel}-{cores}{threads}-{nics}{number}" + "".join(f"-{word}" for word in words if word)

    def mac(self, index: int) -> str:
        """The MAC of the NIC with this index; the peer's is `52:54:00:09:00:..`."""
        return f"52:54:00:09:{self.number:02x}:{index:02x}"

    def address(self, index: int = 0) -> str:
        """The IPv4 address of the NIC with this index (for 0: of br0, the OVS bridge it is in)."""
        return f"10.9.{index}.{self.number}"

    def address6(self, index: int = 0) -> str:
        """Like `address`, for IPv6."""
        return f"fd00:9:{index}::{self.number}"

    def hardware(self, memory: str, share: bool) -> list[str]:
        """QEMU's options for CPUs, memory and NICs. `memory` is the directory of the nodes' memory
        files; with `share` the guest's writes go to them, else they are private."""
        topology = self.topology
        sockets, cores = topology.sockets()
        # QEMU gives each die a last-level cache.
        dies = f"dies={topology.llcs},cores={cores // topology.llcs}," if topology.llcs > 1 else f"cores={cores},"
        options = ["-machine", "q35" if len(topology.cores) > 1 else "q35,memory-backend=mem0"]
        cpu = CPU if topology.threads == 1 and topology.llcs == 1 else SMT_CPU
        # QEMU ends at an assertion when a guest reads leaf 0x1F on such a host; the caches are in leaf 4.
        options += ["-cpu", f"{cpu},level=0x1e" if topology.llcs > 1 else cpu]
        options += ["-smp", f"{topology.cpus},sockets={sockets},{dies}threads={topology.threads}"]
        options += ["-m", f"{topology.memory_mib * len(topology.cores)}M"]
        for node in range(len(topology.cores)):
            file = f"mem-path={memory}/node{node},share={'on' if share else 'off'}"
            options += ["-object", f"memory-backend-file,id=mem{node},size={topology.memory_mib}M,{file}"]
        if len(topology.cores) > 1:
            options += self._nodes()
        if self.iommu:
            options += ["-device", "intel-iommu,intremap=off,caching-mode=on"]
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
