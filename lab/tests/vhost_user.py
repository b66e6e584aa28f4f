"""Linux guests whose interface a process serves (vhost-user), in the virtual host of a test.

The process is testpmd, or Open vSwitch with DPDK, which forwards between the guest and one end of a veth pair, whose
other end is a port of Open vSwitch in the kernel; the host needs `variant="dpdk"`:

    peer - nic0 - br0 - outer | inner - testpmd, or br1 - guest

Or a program that forwards nothing: it writes to the interrupts' eventfds when it is asked to, and reads those of kicks,
whose values are the number of kicks.

The module of a test imports `payload` of `linux_guests`.
"""

import json
from typing import Any, NamedTuple

from lab import Host, Job, linux_guest
from lab.vms import ADDRESS, MAC
from lab.waiting import wait_until

from . import dpdk
from .linux_guests import started

SOCKET = "/tmp/vhost0.sock"
MAIN_CPU, PMD_CPU, VCPU_CPU = 0, 1, 2

# Arguments: its socket, and a pipe with requests: 'write COUNT RATE RING', or 'counts', which prints the writes and the
# kicks of each ring since the start. Offers VIRTIO_F_VERSION_1, and no feature of the protocol, but says so.
BACKEND = """
import array, json, os, select, socket, struct, sys, time
GET_FEATURES, GET_VRING_BASE, SET_VRING_KICK, SET_VRING_CALL, GET_PROTOCOL_FEATURES = 1, 11, 12, 13, 15
FEATURES = {GET_FEATURES: 1 << 32 | 1 << 30, GET_PROTOCOL_FEATURES: 0}
REPLY, NO_FD = 5, 0x100
path, requests = sys.argv[1:]
server = socket.socket(socket.AF_UNIX)
server.bind(path)
server.listen(1)
print("listening", flush=True)
front, _ = server.accept()
control = os.fdopen(os.open(requests, os.O_RDWR))
kicks, calls, kicked, written = {}, {}, {}, {}

def message():
    head, ancillary, _, _ = front.recvmsg(12, socket.CMSG_SPACE(8 * 4))
    if not head:
        sys.exit()
    request, _, size = struct.unpack("<III", head)
    fds = array.array("i")
    for _, _, data in ancillary:
        fds.frombytes(data)
    body = front.recv(size, socket.MSG_WAITALL) if size else b""
    if request in FEATURES:
        front.send(struct.pack("<IIIQ", request, REPLY, 8, FEATURES[request]))
    elif request == GET_VRING_BASE:
        front.send(struct.pack("<III", request, REPLY, 8) + body)
    elif request in (SET_VRING_KICK, SET_VRING_CALL):
        value, = struct.unpack("<Q", body)
        known = kicks if request == SET_VRING_KICK else calls
        # The one before may be one that the front masks interrupts by.
        if (value & 0xff) in known:
            os.close(known.pop(value & 0xff))
        if not value & NO_FD:
            known[value & 0xff] = fds[0]
    else:
        for fd in fds:
            os.close(fd)

def ask(words):
    if words[0] == "write":
        count, rate, ring = int(words[1]), float(words[2]), int(words[3])
        start = time.monotonic()
        for number in range(count):
            time.sleep(max(0, start + number / rate - time.monotonic()))
            os.write(calls[ring], struct.pack("=Q", 1))
        written[ring] = written.get(ring, 0) + count
    print(json.dumps({"kicked": kicked, "written": written}), flush=True)

while True:
    ready, _, _ = select.select([front, control, *kicks.values()], [], [])
    for ring, fd in list(kicks.items()):
        if fd in ready:
            kicked[ring] = kicked.get(ring, 0) + struct.unpack("=Q", os.read(fd, 8))[0]
    if front in ready:
        message()
    elif control in ready:
        ask(control.readline().split())
"""


class Switched(NamedTuple):
    """The guest, and what serves its interface: its process, and the thread that polls the rings."""

    comm: str
    pid: int
    worker: int
    guest: Job


class Backend:
    """The program that forwards nothing."""

    def __init__(self, host: Host) -> None:
        self.host, self.asked = host, 0
        host.write("/tmp/backend.py", BACKEND.encode())
        host.check("mkfifo /tmp/requests")
        self.job = host.start(f"exec python3 /tmp/backend.py {SOCKET} /tmp/requests >/tmp/backend.printed 2>&1")
        wait_until(lambda: self._printed() == ["listening"], "the backend listens")

    def _printed(self) -> list[str]:
        # Its shell may not have begun yet.
        return self.host.run("cat /tmp/backend.printed").out.splitlines()

    def ask(self, request: str) -> dict[str, Any]:
        """Makes a request, and waits for the answer: writes and kicks by ring."""
        self.asked += 1
        self.host.check(f"echo {request} >/tmp/requests")

        def answered() -> bool:
            assert self.job.running(), self._printed()
            return len(self._printed()) > self.asked

        wait_until(answered, request)
        answer: dict[str, Any] = json.loads(self._printed()[-1])
        return answer


def on_vhost_user(listens: bool, memory_mib: int = 320) -> str:
    """QEMU's options for an interface that a process serves, which has the guest's memory, too."""
    side = ",server=on,wait=off" if listens else ""
    return (
        f"-object memory-backend-memfd,id=mem,size={memory_mib}M,share=on -numa node,memdev=mem"
        f" -chardev socket,id=switch,path={SOCKET}{side} -netdev vhost-user,id=net,chardev=switch"
        f" -device virtio-net-pci,netdev=net,romfile=,mac={MAC}"
    )


def start_served_guest(host: Host, listens: bool = False) -> Job:
    """Starts a guest whose interface the process at the socket serves; QEMU connects, or listens."""
    host.check("modprobe kvm_amd")
    return started(host, on_vhost_user(listens), ADDRESS)


def start_guest_of_testpmd(host: Host) -> Switched:
    """Starts testpmd with its worker on a CPU of its own, and the guest; waits until it answers."""
    _add_veth(host)
    eal = (
        f"--no-pci --lcores 0@{MAIN_CPU},1@{PMD_CPU} --main-lcore 0 --socket-mem 128,0"
        f" --vdev=net_vhost0,iface={SOCKET} --vdev=net_af_packet0,iface=inner"
    )
    testpmd = dpdk.start_testpmd(host, eal, "--total-num-mbufs=8192")
    return _switched(host, "dpdk-testpmd", testpmd.pid, "dpdk-worker1", start_served_guest(host))


def start_guest_of_ovs(host: Host) -> Switched:
    """The same with Open vSwitch, which connects to QEMU."""
    _add_veth(host)
    dpdk.start_ovs(host, f"other_config:pmd-cpu-mask={1 << PMD_CPU:x}", memory="128,0")
    host.check("ovs-vsctl add-br br1 -- set bridge br1 datapath_type=netdev")
    for port, options in (
        ("inner0", "type=dpdk options:dpdk-devargs=net_af_packet0,iface=inner"),
        ("vhost0", f"type=dpdkvhostuserclient options:vhost-server-path={SOCKET}"),
    ):
        host.check(f"ovs-vsctl add-port br1 {port} -- set Interface {port} {options}", dpdk.PATIENCE_S)
        assert host.check(f"ovs-vsctl get Interface {port} error").strip() == "[]"
    vm = start_served_guest(host, listens=True)
    pid = int(host.check("cat /run/openvswitch/ovs-vswitchd.pid"))
    wait_until(lambda: "[up]" in _link(host), "Open vSwitch has connected")
    return _switched(host, "ovs-vswitchd", pid, f"pmd-c{PMD_CPU:02}", vm)


def _link(host: Host) -> str:
    return f"[{host.check('ovs-vsctl get Interface vhost0 link_state').strip()}]"


def _add_veth(host: Host) -> None:
    dpdk.reserve_hugepages(host, (96, 0))
    host.check(
        "ip link add outer type veth peer name inner"
        # They send what they receive, and veth leaves checksums to a NIC.
        " && for end in outer inner; do ethtool -K $end tx off rx off; ip link set $end up; done"
        " && ovs-vsctl --may-exist add-port br0 outer"
    )


def _switched(host: Host, comm: str, pid: int, worker: str, guest: Job) -> Switched:
    threads = host.check(f"grep -l '^{worker}' /proc/{pid}/task/*/comm").split()
    assert len(threads) == 1, threads
    return Switched(comm, pid, int(threads[0].split("/")[-2]), guest)


def in_guest(command: str) -> str:
    """The command in the host that runs one in the guest's shell."""
    return f"echo '{command}' | busybox nc {ADDRESS} {linux_guest.SHELL_PORT}"
