"""A virtual machine in a virtual host: `lab/vm/tinyvm.c`, on a tap in Open vSwitch, on a macvtap, or with a NIC of its
own by VFIO, and packets to it from the peer."""

import json
import os
import shlex
import subprocess
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from .host import Host, Job
from .payload import PROJECT
from .run_folder import RunFolder
from .waiting import wait_until

TAP = "tap0"
MAC = "52:54:00:aa:00:01"
ADDRESS = "10.9.0.50"
PORT = 9000

# Numbered datagrams at a rate, from several ports in turn: what the guest notes of each begins with its number. Prints
# the number of different answers, which are waited for until none has come for 5 s.
SENDER = f"""
import select, socket, sys, time
count, rate, ports, answered = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "answered"
senders = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(ports)]
for sender in senders:
    sender.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, int(sys.argv[5]))
answers = set()
def receive(seconds):
    for sender in select.select(senders, [], [], seconds)[0]:
        answers.add(sender.recv(100)[:8])
        return True
start = time.monotonic()
for number in range(count):
    time.sleep(max(0, start + number / rate - time.monotonic()))
    senders[number % ports].sendto(b"%08d" % number + bytes(56), ("{ADDRESS}", {PORT}))
    while answered and receive(0):
        pass
while answered and len(answers) < count and receive(5):
    pass
print(len(answers))
"""


class Note(NamedTuple):
    """What the guest noted of a packet."""

    tsc: int
    irq: int  # The count of interrupts: packets of one interrupt have the same.
    length: int  # Of the frame, with the header of virtio before it.
    payload: bytes  # The first eight bytes.

    @property
    def number(self) -> int | None:
        """Of a datagram of `send`."""
        return int(self.payload) if self.payload.isdigit() else None


class Vcpu(NamedTuple):
    """What the guest counted on a vCPU until it was ended."""

    irqs: int
    packets: int
    halts: int
    sent: int  # Answers that it gave to vhost.
    full: int  # Answers for which there was no room.
    tx_kicks: int  # Of vhost, because of answers.
    notes: list[Note]
    kick_notes: list[int]  # The TSC of each kick because of answers.

    def numbered(self) -> list[Note]:
        """The notes of the datagrams of `send`."""
        return [note for note in self.notes if note.number is not None]


class Ended(NamedTuple):
    """What the guest counted until it was ended."""

    vcpus: list[Vcpu]

    @property
    def packets(self) -> int:
        """Taken from the rings."""
        return sum(vcpu.packets for vcpu in self.vcpus)

    @property
    def notes(self) -> list[Note]:
        """Of all vCPUs."""
        return [note for vcpu in self.vcpus for note in vcpu.notes]

    def numbered(self) -> list[Note]:
        """The notes of the datagrams of `send`."""
        return [note for vcpu in self.vcpus for note in vcpu.numbered()]


class TinyVm:
    """A running virtual machine."""

    def __init__(self, host: Host, job: Job, printed: str) -> None:
        self.host, self.job, self.printed = host, job, printed

    @property
    def pid(self) -> int:
        """Its process id in the host."""
        return self.job.pid

    def end(self) -> Ended:
        """Ends it, and returns what its guest counted."""
        self.host.check(["kill", str(self.pid)])
        self.job.wait()
        said: dict[str, Any] = json.loads(self.host.check(["tail", "-n", "1", self.printed]))
        return Ended([_vcpu(vcpu) for vcpu in said["vcpus"]])


def _vcpu(said: dict[str, Any]) -> Vcpu:
    notes = [Note(note["tsc"], note["irq"], note["length"], _payload(note["payload"])) for note in said["notes"]]
    counts = [said[name] for name in ("irqs", "packets", "halts", "sent", "full", "tx_kicks")]
    return Vcpu(*counts, notes, said["kick_notes"])


def _payload(word: str) -> bytes:
    return int(word, 16).to_bytes(8, "little")


def start_vm(host: Host, *options: str, queues: int = 1, before: str = "") -> TinyVm:
    """Starts the virtual machine on a tap, by another command if there is one `before`, and waits until its guest runs
    and packets to it have a way.
    """
    several = ["multi_queue"] if queues > 1 else []
    # tun first: vhost_net takes its symbols from it when it is loaded.
    host.check("modprobe -a tun kvm_amd vhost_net")
    if host.run(["ip", "link", "show", TAP]).status != 0:
        host.check(["ip", "tuntap", "add", "dev", TAP, "mode", "tap", "vnet_hdr", *several])
    host.check(f"ip link set {TAP} up && ovs-vsctl --may-exist add-port br0 {TAP}")
    vm = start_program(host, [*options, "-q", str(queues), TAP], before=before)
    _has_neighbour(host)
    host.check(f"ovs-appctl fdb/add br0 {TAP} 0 {MAC}")
    return vm


def start_vm_on_macvtap(host: Host, nic: str, *options: str) -> TinyVm:
    """Starts it on a macvtap of a NIC, which is taken out of the bridge."""
    host.check(
        "modprobe -a tun macvtap kvm_amd vhost_net"
        f" && ovs-vsctl --if-exists del-port br0 {nic} && ip link set {nic} up"
        f" && {macvtap(nic, TAP, MAC)}"
    )
    vm = start_program(host, [*options, device_of(host, TAP)])
    _has_neighbour(host)
    return vm


def allow_vfio(host: Host) -> None:
    """Loads KVM and vfio-pci. Interrupts are not remapped."""
    host.check("modprobe -a kvm_amd vfio-pci && modprobe vfio_iommu_type1 allow_unsafe_interrupts=1")
    host.check("echo 1 >/sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts")


def pass_through(host: Host, nic: str) -> str:
    """Gives a NIC to vfio-pci; returns its address."""
    allow_vfio(host)
    return give(host, nic, "vfio-pci")


def give(host: Host, nic: str, driver: str) -> str:
    """Takes an interface from the kernel's driver and gives its device to another; returns its address."""
    device = host.check(f"basename $(readlink /sys/class/net/{nic}/device)").strip()
    host.check(f"ovs-vsctl --if-exists del-port {nic}")
    give_device(host, device, driver)
    return device


def give_device(host: Host, device: str, driver: str) -> None:
    """The same with the device's address; it may have no driver."""
    folder = f"/sys/bus/pci/devices/{device}"
    host.check(
        f"echo {driver} >{folder}/driver_override"
        f" && if [ -e {folder}/driver ]; then echo {device} >{folder}/driver/unbind; fi"
        f" && echo {device} >/sys/bus/pci/drivers_probe && test $(basename $(readlink {folder}/driver)) = {driver}"
    )


def start_vm_on_device(host: Host, device: str, *options: str) -> TinyVm:
    """Starts it with a device that vfio-pci has: an e1000e."""
    vm = start_program(host, [*options, f"vfio:{device}"])
    _has_neighbour(host)
    return vm


def macvtap(nic: str, name: str, mac: str) -> str:
    """Commands that make a macvtap of a NIC."""
    return f"ip link add link {nic} name {name} address {mac} type macvtap mode bridge && ip link set {name} up"


def device_of(host: Host, name: str) -> str:
    """The device of a macvtap, once it exists."""
    path = f"/dev/tap{host.check(['cat', f'/sys/class/net/{name}/ifindex']).strip()}"
    wait_until(lambda: host.run(["test", "-c", path]).status == 0, "the macvtap has a device")
    return path


def _has_neighbour(host: Host) -> None:
    """The peer knows the guest, which does not answer when asked."""
    neighbour = ["ip", "neighbour", "replace", ADDRESS, "lladdr", MAC, "dev", "tap0", "nud", "permanent"]
    assert host.peer.run(neighbour).status == 0


def start_program(host: Host, words: list[str], name: str = "tinyvm", before: str = "") -> TinyVm:
    """Starts the program under this name, and waits until its guest runs."""
    path, printed = f"/tmp/{name}", f"/tmp/{name}.printed"
    host.write(path, _program())
    host.check(f"chmod +x {path} && rm -f {printed}")
    job = host.start(f"exec {before} {path} {shlex.join(words)} >{printed} 2>&1")

    def is_ready() -> bool:
        assert job.running(), host.run(["cat", printed])
        # A warning may stand before it: of 5.10, which does not tell the offset of the guest's TSC.
        lines = host.run(["cat", printed]).out.splitlines()
        return any(line.startswith("ready") for line in lines)

    wait_until(is_ready, "the guest runs")
    return TinyVm(host, job, printed)


def send(host: Host, count: int, rate: float, *, ports: int = 1, answered: bool = False, tos: int = 0) -> int:
    """Sends datagrams to the guest, so many a second from so many ports, and waits until they are sent.

    With `answered` it also waits for the answers, and returns their number.
    """
    options = [str(count), str(rate), str(ports), "answered" if answered else "-", str(tos)]
    sent = host.peer.run(["python3", "-c", SENDER, *options])
    assert sent.status == 0, sent
    return int(sent.out)


def wait_until_taken(host: Host) -> None:
    """Waits until vhost has taken what was sent: seconds on a busy machine. The tap counts what is taken from it."""
    counts: list[str] = []

    def is_over() -> bool:
        counts.append(host.check(["cat", f"/sys/class/net/{TAP}/statistics/tx_packets"]))
        return len(counts) > 8 and len(set(counts[-8:])) == 1

    wait_until(is_over, "all packets are taken")


def worker_of(host: Host, vm: TinyVm) -> int:
    """The thread of vhost."""
    (worker,) = host.check(f"ps -eLo tid,comm | awk '$2 == \"vhost-{vm.pid}\" {{print $1}}'").split()
    return int(worker)


@cache
def _program() -> bytes:
    folder = RunFolder("tinyvm")
    try:
        binary = folder.path / "tinyvm"
        compiler = os.environ.get("CC", "cc")
        source = PROJECT / "lab/vm/tinyvm.c"
        subprocess.run([compiler, "-O2", "-Wall", "-Wextra", "-pthread", "-s", "-o", binary, source], check=True)
        return Path(binary).read_bytes()
    finally:
        folder.remove()
