"""A NIC of a guest that stamps received packets, and a reader that gets the stamps from the kernel.

QEMU's igb (82576) stamps a frame that matches an EtherType filter with the 1588 bit, if the second byte after the
Ethernet header is PTP version 2 and the first is the configured message type. The driver writes such a
filter for PTP's EtherType. Here it is changed to IPv4, whose header starts with 0x45 and the type of service:
frames with TOS 2 are stamped, and no others. Of a frame with a VLAN tag these two bytes are the tag's: those of VLAN 2
can be stamped likewise. The register holds one stamp until it is read.
"""

import json
import subprocess
import sys
from typing import Any, Self

from lab import Host, Job
from lab.host import PATIENCE_S
from lab.waiting import wait_until

# Registers of the NIC are mapped, which a kernel with CONFIG_IO_STRICT_DEVMEM refuses otherwise.
PARAMETERS = ("iomem=relaxed",)

STAMPED_TOS = 2
PLAIN_TOS = 0
STAMPED_VLAN = 2
# EtherType, and the first byte after the Ethernet header, of what is stamped.
IPV4, VLAN = ("0x0800", "0x45"), ("0x8100", "0x00")

# Sets up the NIC `nic`: `register` reads and writes, `offset` converts its time. The last arguments are what it stamps.
STAMPING_NIC = """
import ctypes, fcntl, json, mmap, os, select, socket, struct, sys, time

nic = sys.argv[1]
ether_type, first = (int(word, 16) for word in sys.argv[-2:])

SIOCSHWTSTAMP, FILTER_PTP_V2_EVENT = 0x89B0, 12
config = ctypes.create_string_buffer(struct.pack("iii", 0, 0, FILTER_PTP_V2_EVENT))
request = struct.pack("16sP16x", nic.encode(), ctypes.addressof(config))
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
    fcntl.ioctl(any_socket, SIOCSHWTSTAMP, request)

ETQF3, RXSATRH, TSYNCRXCFG = 0x5CB0 + 4 * 3, 0xB630, 0x5F50
FILTER_ENABLE, FILTER_1588 = 1 << 26, 1 << 30
resource = os.open(f"/sys/class/net/{nic}/device/resource0", os.O_RDWR | os.O_SYNC)
memory = mmap.mmap(resource, 0x20000)

def register(at):
    return ctypes.c_uint32.from_buffer(memory, at)

register(ETQF3).value = ether_type | FILTER_ENABLE | FILTER_1588
register(TSYNCRXCFG).value = first << 8
register(RXSATRH).value

(clock,) = os.listdir(f"/sys/class/net/{nic}/device/ptp")
phc = (~os.open(f"/dev/{clock}", os.O_RDWR) << 3) | 3

def offset():
    "What is added to the NIC's time for the monotonic clock, and how far that may be off."
    best = None
    for _ in range(10):
        before = time.monotonic_ns()
        shown = time.clock_gettime_ns(phc)
        after = time.monotonic_ns()
        if best is None or after - before < 2 * best[1]:
            best = ((before + after) // 2 - shown, (after - before + 1) // 2)
    return best

SO_TIMESTAMPING, RX_HARDWARE, RX_SOFTWARE, SOFTWARE, RAW_HARDWARE = 37, 1 << 2, 1 << 3, 1 << 4, 1 << 6

def stamps(ancillary):
    "The kernel's own time stamp of a packet, and the NIC's; 0: none."
    for level, kind, value in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPING):
            times = struct.unpack_from("qqqqqq", value)
            return times[0] * 1_000_000_000 + times[1], times[4] * 1_000_000_000 + times[5]
    return 0, 0
"""

# Arguments: the NIC, a port. Prints a line of JSON for each datagram: the NIC's stamp (0: none), its monotonic
# time and uncertainty, and when it was read. Each is answered once the register is free again.
READER = (
    STAMPING_NIC
    + """
port, folder = int(sys.argv[2]), sys.argv[3]
reader = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
reader.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, RX_HARDWARE | RAW_HARDWARE)
reader.bind(("", port))
with open(f"{folder}/stamps", "w") as out:
    open(f"{folder}/ready", "w").close()
    while True:
        # Not in recvmsg: of a call that was under way when probes were attached no end is seen.
        select.select([reader], [], [])
        data, ancillary, _, sender = reader.recvmsg(2048, 512)
        read_ns = time.monotonic_ns()
        stamp = stamps(ancillary)[1]
        if data == b"end":
            break
        if data == b"set":
            time.clock_settime_ns(phc, time.clock_gettime_ns(phc) + 1_000_000_000_000)
        register(RXSATRH).value
        add, off = offset()
        print(json.dumps({"stamp": stamp, "nic_ns": stamp + add, "off_ns": off, "read_ns": read_ns}), file=out)
        reader.sendto(data, sender)
reader.sendto(b"end", sender)
"""
)

# Arguments: the NIC, a folder. Sees each packet that the NIC receives, for whomever it is, and frees the register.
# Prints how long the NIC had each with a stamp before the stack, until it is terminated.
WATCHER = (
    STAMPING_NIC
    + """
import signal

folder = sys.argv[2]
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
ETH_P_ALL = 3
watcher = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
watcher.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, RX_HARDWARE | RAW_HARDWARE | RX_SOFTWARE | SOFTWARE)
watcher.bind((nic, ETH_P_ALL))
with open(f"{folder}/stamps", "w", buffering=1) as out:
    open(f"{folder}/ready", "w").close()
    while True:
        _, ancillary, _, _ = watcher.recvmsg(2048, 512)
        real_ns, stamp = stamps(ancillary)
        if stamp:
            add, off = offset()
            # The kernel's is of the wall clock.
            real_ns -= time.clock_gettime_ns(time.CLOCK_REALTIME) - time.monotonic_ns()
            print(json.dumps({"at_nic_ns": real_ns - (stamp + add), "off_ns": off}), file=out)
        register(RXSATRH).value
"""
)

# Arguments: address, port. Each line of standard input is a type of service, a number of datagrams, and their
# content; each is sent when the previous one was answered.
SENDER = """
import socket, sys

address, port = sys.argv[1], int(sys.argv[2])
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sender.settimeout(60)
sender.connect((address, port))
for line in sys.stdin:
    tos, count, data = line.split()
    sender.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, int(tos))
    for _ in range(int(count)):
        sender.send(data.encode())
        sender.recv(2048)
    print(flush=True)
"""


class Stamped:
    """A reader in the guest with a stamping NIC, and a sender at the other end of its wire."""

    def __init__(self, host: Host, address: str, port: int, nic: str = "nic0", netns: str = "") -> None:
        self.host = host
        self.folder = host.check("mktemp -d").strip()
        inside = ["ip", "netns", "exec", netns] if netns else []
        self.reader: Job = host.start([*inside, "python3", "-c", READER, nic, str(port), self.folder, *IPV4])
        wait_until(self._is_ready, "the reader is bound")
        self.sender = host.peer.start([sys.executable, "-c", SENDER, address, str(port)], stdin=subprocess.PIPE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sender.kill()
        self.sender.communicate()
        if self.reader.running():
            self.reader.kill()

    def _is_ready(self) -> bool:
        assert self.reader.running(), self.reader.wait()
        return self.host.run(["test", "-e", f"{self.folder}/ready"]).status == 0

    def send(self, count: int, tos: int = STAMPED_TOS, data: str = "datagram" * 8) -> None:
        """Sends datagrams, each of which is read and answered before the next."""
        assert self.sender.stdin and self.sender.stdout
        self.sender.stdin.write(f"{tos} {count} {data}\n")
        self.sender.stdin.flush()
        assert self.sender.stdout.readline(), self.sender.communicate(timeout=PATIENCE_S)

    def end(self) -> list[dict[str, Any]]:
        """The kernel's stamps of each."""
        self.send(1, PLAIN_TOS, "end")
        assert self.reader.wait().status == 0, self.reader.result
        return [json.loads(line) for line in self.host.check(["cat", f"{self.folder}/stamps"]).splitlines()]


class Watched:
    """A stamping NIC of the guest, whose packets are judged: how long it had each before the stack."""

    def __init__(self, host: Host, nic: str = "nic0", what: tuple[str, str] = IPV4) -> None:
        self.host = host
        self.folder = host.check("mktemp -d").strip()
        self.watcher: Job = host.start(["python3", "-c", WATCHER, nic, self.folder, *what])
        wait_until(self._is_ready, "the watcher is bound")

    def _is_ready(self) -> bool:
        assert self.watcher.running(), self.watcher.wait()
        return self.host.run(["test", "-e", f"{self.folder}/ready"]).status == 0

    def end(self) -> list[dict[str, int]]:
        """Each packet with a stamp."""
        self.host.check(["kill", str(self.watcher.pid)])
        assert self.watcher.wait().status == 0, self.watcher.result
        return [json.loads(line) for line in self.host.check(["cat", f"{self.folder}/stamps"]).splitlines()]
