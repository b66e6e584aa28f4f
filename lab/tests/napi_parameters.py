"""What the kernel says of the NAPI instances of an interface, asked over netlink with Python's sockets alone.

Arguments: the interface, and optionally an instance with a parameter to set first, `8193 irq-suspend-timeout 5`.
Output: a line of JSON for each instance, by ascending id: `id`, and the parameters of a single instance that the kernel
has (none before Linux 6.13). Numbers are those of include/uapi/linux/netdev.h.
"""

import json
import socket
import struct
import sys

NETLINK_GENERIC, GENL_ID_CTRL = 16, 16
REQUEST, ACKNOWLEDGED, DUMP = 0x1, 0x4, 0x300
DONE, ERROR = 3, 2
GETFAMILY, FAMILY_ID, FAMILY_NAME = 3, 1, 2
NAPI_GET, NAPI_SET, IFINDEX, ID = 11, 14, 1, 2
NAMES = {2: "id", 5: "defer-hard-irqs", 6: "gro-flush-timeout", 7: "irq-suspend-timeout", 8: "threaded"}


def attribute(kind: int, value: bytes) -> bytes:
    """An attribute, padded."""
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def attributes(body: bytes) -> dict[int, bytes]:
    """The values of all attributes by their kind."""
    found = {}
    while len(body) >= 4:
        length, kind = struct.unpack_from("=HH", body)
        found[kind & 0x3FFF] = body[4:length]
        body = body[length + -length % 4 :]
    return found


def ask(family: int, flags: int, command: int, body: bytes) -> list[dict[int, bytes]]:
    """The attributes of each reply."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_GENERIC) as connection:
        connection.bind((0, 0))
        request = struct.pack("=BBH", command, 1, 0) + body
        connection.send(struct.pack("=IHHII", 16 + len(request), family, REQUEST | flags, 1, 0) + request)
        replies: list[dict[int, bytes]] = []
        while True:
            datagram = connection.recv(1 << 18)
            while datagram:
                length, kind = struct.unpack_from("=IH", datagram)
                if kind == ERROR and (errno := struct.unpack_from("=i", datagram, 16)[0]):
                    sys.exit(f"the kernel answers {errno}")
                if kind in (ERROR, DONE):
                    return replies
                replies.append(attributes(datagram[20:length]))
                datagram = datagram[length + -length % 4 :]
            if not flags:
                return replies


def main() -> None:
    """Prints them."""
    name, *wanted = sys.argv[1:]
    (netdev,) = ask(GENL_ID_CTRL, 0, GETFAMILY, attribute(FAMILY_NAME, b"netdev\0"))
    (family,) = struct.unpack("=H", netdev[FAMILY_ID])
    if wanted:
        instance, parameter, value = wanted
        (kind,) = [kind for kind, known in NAMES.items() if known == parameter]
        numbers = ((ID, int(instance)), (kind, int(value)))
        body = b"".join(attribute(kind, struct.pack("=I", number)) for kind, number in numbers)
        ask(family, ACKNOWLEDGED, NAPI_SET, body)
    index = struct.pack("=I", socket.if_nametoindex(name))
    lines = []
    for reply in ask(family, DUMP, NAPI_GET, attribute(IFINDEX, index)):
        lines.append({NAMES[kind]: int.from_bytes(reply[kind], sys.byteorder) for kind in NAMES if kind in reply})
    for line in sorted(lines, key=lambda its: its["id"]):
        print(json.dumps(line))


if __name__ == "__main__":
    main()
