"""A Linux guest in a virtual host, by KVM and vhost: its files, as a part of the payload.

The guest has the host's kernel, and what is in its initrd: busybox. Its disk is the payload, read only, so
that it runs the same nearpath. QEMU is that of the lab's tools.
"""

import subprocess
from pathlib import Path

from . import images

# Where the files are in the host and, below `DISK`, in the guest.
FOLDER = "/guest"
DISK = "/disk"
# What the guest needs for its disk and its network interface.
MODULES = ("virtio_pci", "virtio_blk", "crc32c_generic", "ext4", "virtio_net", "igbvf")
LIBRARIES = ("libelf.so.1", "libz.so.1", "libgcc_s.so.1", "libm.so.6", "libc.so.6")
LOADER = "ld-linux-x86-64.so.2"

# The ports of the guest: a shell for each connection, and nearpath's reflector.
SHELL_PORT, REFLECTOR_PORT = 7777, 9000

INIT = f"""#!/bin/busybox sh
b=/bin/busybox
$b mount -t devtmpfs dev /dev
$b mount -t proc proc /proc
$b mount -t sysfs sysfs /sys
$b mount -t tracefs tracefs /sys/kernel/tracing
$b mount -t tmpfs tmpfs /tmp
while read -r module; do $b insmod "/modules/$module"; done </modules/order
while [ ! -b /dev/vda ] || [ ! -e /sys/class/net/eth0 ]; do $b usleep 10000; done
$b mount -t ext4 -o ro /dev/vda {DISK}
$b ip link set lo up
$b ip addr add "$address/24" dev eth0
$b ip link set eth0 up
{DISK}{FOLDER}/lib/{LOADER} --library-path {DISK}{FOLDER}/lib {DISK}/usr/local/bin/nearpath \\
    bench reflect --bind "$address" --port {REFLECTOR_PORT} >/dev/console 2>&1 &
exec $b nc -ll -p {SHELL_PORT} -e $b sh
"""


def files(series: str, folder: Path) -> dict[str, Path]:
    """The files for a payload, by their paths in the host; what is built is in `folder`."""
    kernel, tools, base = images.kernel(series), images.tools(), images.root()
    _make_initrd(kernel / "disk.ext4", base / "bin/busybox", folder)
    qemu = ("lib", "lib64", "usr/lib/x86_64-linux-gnu", "usr/share/qemu", "usr/share/seabios")
    libraries = base / "usr/lib/x86_64-linux-gnu"
    return {
        f"{FOLDER}/vmlinuz": kernel / "vmlinuz",
        f"{FOLDER}/initrd": folder / "guest-initrd",
        **{f"{FOLDER}/qemu/{part}": tools.path / part for part in qemu},
        f"{FOLDER}/qemu/usr/bin/qemu-system-x86_64": tools.path / "usr/bin/qemu-system-x86_64",
        **{f"{FOLDER}/lib/{name}": (libraries / name).resolve() for name in (*LIBRARIES, LOADER)},
    }


def nearpath(*words: str) -> str:
    """The command that runs nearpath in the guest."""
    return (
        f"{DISK}{FOLDER}/lib/{LOADER} --library-path {DISK}{FOLDER}/lib {DISK}/usr/local/bin/nearpath {' '.join(words)}"
    )


def on_tap(tap: str, mac: str, queues: int = 1) -> str:
    """QEMU's options for an interface on a tap, by vhost."""
    several = (f",queues={queues}", f",mq=on,vectors={2 * queues + 2}") if queues > 1 else ("", "")
    return (
        f"-netdev tap,id=net,ifname={tap},script=no,downscript=no,vhost=on{several[0]}"
        f" -device virtio-net-pci,netdev=net,romfile=,mac={mac}{several[1]}"
    )


def by_vfio(device: str) -> str:
    """QEMU's options for a device that vfio-pci has: a virtual function of an igb."""
    return f"-device vfio-pci,host={device}"


def qemu(network: str, address: str, memory_mib: int = 320, cpus: int = 1) -> str:
    """The command that starts the guest in the host, with the options of its interface; its console is
    /tmp/guest.console."""
    at = f"/mnt{FOLDER}/qemu"
    libraries = f"{at}/lib/x86_64-linux-gnu:{at}/usr/lib/x86_64-linux-gnu"
    return (
        # Not by lib64, a link to the loader of the host, whose C library may be another.
        f"{at}/lib/x86_64-linux-gnu/{LOADER} --library-path {libraries} {at}/usr/bin/qemu-system-x86_64"
        f" -L {at}/usr/share/qemu -L {at}/usr/share/seabios -name guest=web1,debug-threads=on"
        f" -nodefaults -display none -machine pc,usb=off -accel kvm -cpu host -m {memory_mib} -smp {cpus}"
        f" -kernel /mnt{FOLDER}/vmlinuz -initrd /mnt{FOLDER}/initrd -serial file:/tmp/guest.console"
        f" -append 'console=ttyS0 quiet panic=-1 nokaslr mitigations=off tsc=reliable address={address}'"
        " -drive file=/dev/vdb,format=raw,if=none,id=disk,readonly=on -device virtio-blk-pci,drive=disk"
        f" {network}"
    )


def _make_initrd(disk: Path, busybox: Path, folder: Path) -> None:
    """Creates the initrd: busybox, and the modules, which are taken out of the disk of the kernel's hosts."""
    tools, contents = images.tools(), folder / "contents-of-initrd"

    def ask(request: str) -> str:
        command = tools.command("debugfs", "-R", request, str(disk))
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    for name in ("bin", "dev", "proc", "sys", "tmp", "modules", DISK.lstrip("/")):
        (contents / name).mkdir(parents=True)
    (contents / "bin/busybox").write_bytes(busybox.read_bytes())
    (contents / "bin/busybox").chmod(0o755)
    (contents / "init").write_text(INIT)
    (contents / "init").chmod(0o755)
    # Each line: /INODE/MODE/UID/GID/NAME/SIZE/
    rows = [row.split("/") for row in ask("ls -p /lib/modules").splitlines() if row]
    (version,) = [row[5] for row in rows if row[5] not in (".", "..")]
    ask(f"dump /lib/modules/{version}/modules.dep {folder / 'modules.dep'}")
    order = images.with_dependencies(folder / "modules.dep", MODULES)
    for file in order:
        ask(f"dump /lib/modules/{version}/{file} {contents / 'modules' / Path(file).name}")
    (contents / "modules/order").write_text("".join(f"{Path(file).name}\n" for file in order))
    images.make_archive(contents, busybox, folder / "guest-initrd")
