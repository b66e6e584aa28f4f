"""A network driver in a process, as DPDK is one, that runs in a guest: it lets an e1000e write the packets that it
receives into memory of its own, through vfio or uio, and counts them.

    packet_driver.py vfio|uio DEVICE MIB [SECONDS]

Besides, it has MIB of anonymous memory; with vfio the buffers of the packets are part of it (the kernel pins them
while they are mapped for the device), with uio they are in a hugetlb page, whose address the device gets (nothing pins
it).
With SECONDS it opens and maps the device for that long, unmaps and closes it, and so on. On SIGTERM it prints, as JSON,
what it received: the packets' numbers by the times that it had the device, and the pages whose node changed meanwhile.

Frames have the Ethernet type 0x88b5 and a number of 32 bits after it. Registers and descriptors are those of the 82574
(Intel's datasheet, 7.1 and 10.2); the requests of vfio are those of include/uapi/linux/vfio.h.
"""

import ctypes
import fcntl
import json
import mmap
import os
import signal
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PAGE, HUGE, BUFFER = 4096, 2 << 20, 2048
# x86-64
SYS_move_pages = 279
MAP_HUGETLB, MADV_NOHUGEPAGE = 0x40000, 15
DESCRIPTORS = 256
# What the device uses: the ring in the first page, buffers from the second one on.
DMA_BYTES = PAGE + DESCRIPTORS * BUFFER
ADDRESS_OF_DEVICE = 0x10000000

CTRL, STATUS, IMC, RCTL, RDBAL, RDBAH, RDLEN, RDH, RDT = 0, 8, 0xD8, 0x100, 0x2800, 0x2804, 0x2808, 0x2810, 0x2818
RESET, SET_LINK_UP = 1 << 26, 1 << 6
# Enable; every address; broadcast; without the checksum of the frame.
RECEIVE = 1 << 1 | 1 << 3 | 1 << 4 | 1 << 15 | 1 << 26
DONE = 1
# Memory space and bus master, of the PCI command register.
COMMAND = struct.pack("<H", 0x6)

libc = ctypes.CDLL(None, use_errno=True)
signals: list[int] = []


def end(signal: int, _: object) -> None:
    """Notes a signal."""
    signals.append(signal)


def address_of(memory: mmap.mmap) -> int:
    """The virtual address of a mapping."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def nodes_of(start: int, length: int, step: int) -> list[int]:
    """The node of each page."""
    count = length // step
    pages = (ctypes.c_void_p * count)(*range(start, start + count * step, step))
    status = (ctypes.c_int * count)()
    assert libc.syscall(SYS_move_pages, 0, ctypes.c_ulong(count), pages, None, status, 0) == 0
    return list(status)


@contextmanager
def through_vfio(device: str, memory: int, length: int) -> Iterator[tuple[mmap.mmap, int]]:
    """The device's registers, and the address of the memory for it. Both end with the block."""

    def request(file: int, code: int, argument: object = 0) -> int:
        return fcntl.ioctl(file, 0x3B00 | code, argument)

    number = Path(f"/sys/bus/pci/devices/{device}/iommu_group").readlink().name
    container = os.open("/dev/vfio/vfio", os.O_RDWR)
    group = os.open(f"/dev/vfio/{number}", os.O_RDWR)
    try:
        request(group, 104, struct.pack("i", container))
        request(container, 102, 1)
        opened = request(group, 106, ctypes.create_string_buffer(device.encode()))
        try:
            mapped = struct.pack("IIQQQ", 32, 3, memory, ADDRESS_OF_DEVICE, length)
            request(container, 113, mapped)
            with mmap.mmap(opened, 0x20000, offset=0) as registers:
                # The configuration space is region 7.
                os.pwrite(opened, COMMAND, (7 << 40) + 4)
                yield registers, ADDRESS_OF_DEVICE
                os.pwrite(opened, b"\0\0", (7 << 40) + 4)
            request(container, 114, bytearray(struct.pack("IIQQ", 24, 0, ADDRESS_OF_DEVICE, length)))
        finally:
            os.close(opened)
    finally:
        os.close(group)
        os.close(container)


@contextmanager
def through_uio(device: str, memory: int, length: int) -> Iterator[tuple[mmap.mmap, int]]:
    """The same: the device gets the physical address, as DPDK passes it."""
    folder = Path("/sys/bus/pci/devices", device)
    (uio_folder,) = (folder / "uio").iterdir()
    uio = os.open(f"/dev/{uio_folder.name}", os.O_RDWR)
    resource = os.open(folder / "resource0", os.O_RDWR)
    config = os.open(folder / "config", os.O_RDWR)
    try:
        os.pwrite(config, COMMAND, 4)
        with Path("/proc/self/pagemap").open("rb") as pages:
            pages.seek(memory // PAGE * 8)
            (entry,) = struct.unpack("Q", pages.read(8))
        frame = entry & (1 << 55) - 1
        assert frame, "the physical address is hidden"
        with mmap.mmap(resource, 0x20000) as registers:
            yield registers, frame * PAGE
            os.pwrite(config, b"\0\0", 4)
    finally:
        for file in (config, resource, uio):
            os.close(file)


def receive(registers: mmap.mmap, memory: mmap.mmap, address: int, until: float) -> list[int]:
    """Receives into the memory; returns the numbers of the packets."""

    def register(offset: int) -> ctypes.c_uint32:
        return ctypes.c_uint32.from_buffer(registers, offset)

    register(IMC).value = 0xFFFFFFFF
    register(CTRL).value |= RESET
    patience = time.monotonic() + 10
    while (control := register(CTRL).value) & RESET:
        assert time.monotonic() < patience, f"not reset: {control:#x}"
    register(IMC).value = 0xFFFFFFFF
    register(CTRL).value |= SET_LINK_UP
    for at in range(DESCRIPTORS):
        struct.pack_into("<QQ", memory, at * 16, address + PAGE + at * BUFFER, 0)
    register(RDBAL).value, register(RDBAH).value = address & 0xFFFFFFFF, address >> 32
    register(RDLEN).value = DESCRIPTORS * 16
    register(RDH).value = 0
    register(RDT).value = DESCRIPTORS - 1
    register(RCTL).value = RECEIVE
    numbers, at = [], 0
    while not signals and time.monotonic() < until:
        if not memory[at * 16 + 12] & DONE:
            time.sleep(0.002)
            continue
        # Only now: the device writes the status last.
        (length,) = struct.unpack_from("<H", memory, at * 16 + 8)
        packet = memory[PAGE + at * BUFFER : PAGE + at * BUFFER + length]
        if packet[12:14] == b"\x88\xb5":
            numbers.append(struct.unpack_from(">I", packet, 14)[0])
        struct.pack_into("<QQ", memory, at * 16, address + PAGE + at * BUFFER, 0)
        register(RDT).value = at
        at = (at + 1) % DESCRIPTORS
    register(RCTL).value = 0
    return numbers


def main() -> None:
    """Runs until SIGTERM."""
    kind, device, size = sys.argv[1], sys.argv[2], int(sys.argv[3]) << 20
    seconds = float(sys.argv[4]) if len(sys.argv) > 4 else float("inf")
    signal.signal(signal.SIGTERM, end)
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    own = mmap.mmap(-1, size, flags=private)
    own.madvise(MADV_NOHUGEPAGE)
    huge = mmap.mmap(-1, HUGE, flags=private | MAP_HUGETLB) if kind == "uio" else None
    for memory in filter(None, (own, huge)):
        memory.write(bytes(len(memory)))
    open_device, buffers = (through_uio, huge) if huge else (through_vfio, own)
    start, length = address_of(buffers), HUGE if huge else -(-DMA_BYTES // PAGE) * PAGE
    step = HUGE if huge else PAGE
    print("there", flush=True)
    times, moved = [], 0
    while not signals:
        with open_device(device, start, length) as (registers, address):
            before = nodes_of(start, length, step)
            times.append(receive(registers, buffers, address, time.monotonic() + seconds))
            after = nodes_of(start, length, step)
            moved += sum(was != now for was, now in zip(before, after, strict=True))
    nodes = nodes_of(address_of(own), size, PAGE)
    print(json.dumps({"times": times, "moved": moved, "nodes": [nodes.count(0), nodes.count(1)]}), flush=True)


main()
