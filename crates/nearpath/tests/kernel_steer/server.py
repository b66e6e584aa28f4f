"""A server with a REUSEPORT socket for each worker, as its author would write it without epoll.

Arguments: address, port, then the CPUs of each worker as a cpulist. With `classic` before them a
classic program gives everything to the first socket; with `own` each worker alone holds its socket,
else all hold all. Each worker is a process that waits in accept(2), and answers a connection with its
process id, the CPU that it runs on, and the one on which the kernel received the connection.
"""

import ctypes
import os
import socket
import struct
import sys

SO_INCOMING_CPU = 49
SO_ATTACH_REUSEPORT_CBPF = 51
RETURN_0 = struct.pack("HBBI", 0x06, 0, 0, 0)


def listener(address: str, port: int) -> socket.socket:
    """Open a socket that shares the port."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind((address, port))
    sock.listen(512)
    return sock


def work(sock: socket.socket, cpus: set[int]) -> None:
    """Answer connections on these CPUs for ever."""
    os.sched_setaffinity(0, cpus)
    libc = ctypes.CDLL(None)
    while True:
        connection, _ = sock.accept()
        received = connection.getsockopt(socket.SOL_SOCKET, SO_INCOMING_CPU)
        connection.sendall(b"%d %d %d" % (os.getpid(), libc.sched_getcpu(), received))
        connection.close()


def cpulist(text: str) -> set[int]:
    """Read a cpulist."""
    parts = (part.partition("-") for part in text.split(","))
    return {cpu for first, _, last in parts for cpu in range(int(first), int(last or first) + 1)}


address, port, *words = sys.argv[1:]
mode = words[0] if words[0] in ("classic", "own") else ""
workers = [cpulist(word) for word in words if word != mode]
sockets = [listener(address, int(port)) for _ in workers]
if mode == "classic":
    code = ctypes.create_string_buffer(RETURN_0)
    program = struct.pack("HxxxxxxP", 1, ctypes.addressof(code))
    sockets[0].setsockopt(socket.SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, program)
for sock, cpus in zip(sockets, workers, strict=True):
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(1, 15)  # PR_SET_PDEATHSIG: SIGTERM
        for other in sockets if mode == "own" else []:
            if other is not sock:
                other.close()
        work(sock, cpus)
if mode == "own":
    for sock in sockets:
        sock.close()
print("ready", flush=True)
while True:
    try:
        os.wait()
    except ChildProcessError:
        break
