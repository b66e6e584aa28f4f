"""Images of virtual hosts: QEMU, a root file system, and each kernel with its disk.

All are artifacts in the cache, built from the distribution's packages:

    tools()          QEMU and the programs of a peer, run from their directory
    root()           the root file system of the guests, as a directory
    kernel("6.12")   vmlinuz, initrd and disk.ext4 (the root with this kernel's modules)

The last two exist in several variants (`VARIANTS`): what most guests have, and with DPDK.
"""

import functools
import lzma
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from . import cache, distribution
from .distribution import Unavailable
from .run_folder import RunFolder

# Kernel series, and the suites that have it, or will have it.
KERNELS = {
    "5.10": ("bullseye",),
    "6.1": ("bookworm",),
    "6.12": ("trixie",),
    "7.2": ("forky", "sid"),
}

# Files in the guests besides packages: `initrd/` and `root/`.
GUEST = Path(__file__).parent / "guest"

TOOLS_PACKAGES = ("e2fsprogs", "iperf3", "iputils-ping", "kmod", "qemu-system-x86", "qemu-utils")

ROOT_PACKAGES = (
    "bpftool",
    "bpftrace",
    "busybox-static",
    "ethtool",
    "iperf3",
    "iproute2",
    "iputils-ping",
    "irqbalance",
    "kmod",
    "libelf1",
    "numactl",
    "openvswitch-switch",
    "procps",
    "python3-minimal",
    "qemu-guest-agent",
    "systemd",
    "util-linux",
    "zlib1g",
)

ROOT_OPTIONS = (
    "--variant=minbase",
    "--skip=check/empty",
    "--dpkgopt=path-exclude=/usr/share/doc/*",
    "--dpkgopt=path-exclude=/usr/share/man/*",
    "--dpkgopt=path-exclude=/usr/share/locale/*",
)


@dataclass(frozen=True)
class Variant:
    """A root file system of guests: its packages, and their suite if it is not the machine's own."""

    packages: tuple[str, ...] = ROOT_PACKAGES
    options: tuple[str, ...] = ROOT_OPTIONS
    suite: str = ""
    disk_size: str = "1600M"

    def suites(self) -> tuple[str]:
        """The suite of its packages."""
        return (self.suite or distribution.codename(),)


# By name; the usual one has none.
VARIANTS = {
    "": Variant(),
    # DPDK 24.11 and its testpmd, Open vSwitch 3.5 with and without it. Drivers are those of the emulated NICs, and of
    # ports without one. The C library is newer than the machine's, so programs built there run here.
    "dpdk": Variant(
        packages=(
            *(name for name in ROOT_PACKAGES if name not in ("bpftrace", "libelf1")),
            "dpdk-dev",
            "librte-mempool-ring25",
            "librte-net-af-packet25",
            "librte-net-e1000-25",
            "librte-net-null25",
            "librte-net-vhost25",
            "librte-net-virtio25",
            "librte-net-vmxnet3-25",
            "openvswitch-switch-dpdk",
        ),
        # What programs are compiled with, most of the size of dpdk-dev's dependencies.
        options=(*ROOT_OPTIONS, "--dpkgopt=path-exclude=/usr/include/*", "--dpkgopt=path-exclude=*.a"),
        suite="trixie",
        disk_size="2400M",
    ),
}

# A guest's modules, by their paths in the kernel tree (`net/sched/sch_fq`).
GUEST_MODULES = re.compile(
    r"(arch|crypto|lib|net|virt)/.*"
    r"|fs/(9p|ext4|fscache|fuse|jbd2|mbcache|netfs|overlayfs).*"
    r"|drivers/(block/virtio_blk|char/virtio_console|char/hw_random/.*|crypto/ccp/.*)"
    r"|drivers/(dca|i2c|pps|ptp|uio|vdpa|vfio|vhost|virtio)/.*"
    r"|drivers/net/(bonding|ethernet/intel|geneve|ipvlan|macvlan|mdio|netdevsim|phy|vmxnet3|vxlan).*"
    r"|drivers/net/(dummy|ifb|macvtap|net_failover|tap|tun|veth|virtio_net)"
)

# The modules needed to find and mount a guest's disk.
DISK_MODULES = ("virtio_pci", "virtio_blk", "crc32c_generic", "ext4")

# Of the disk with a test's payload, unless its files need more.
PAYLOAD_SIZE = 64 << 20


class Tools:
    """Programs of the distribution that run from a directory, with the libraries in it:
    Debian 12 can thus use QEMU 10 without changing its own packages."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def find(self, program: str) -> Path | None:
        """The file of one of the programs, if it is among them."""
        places = (self.path / place / program for place in ("usr/bin", "usr/sbin", "bin", "sbin"))
        return next((place for place in places if place.exists()), None)

    def command(self, program: str, *arguments: str, name: str = "") -> list[str]:
        """The command line that runs one of the programs, optionally under another name."""
        file = self.find(program)
        if file is None:
            raise FileNotFoundError(f"{program} is not among the lab's tools ({self.path})")
        libraries = [self.path / place for place in ("lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu")]
        search = ":".join(map(str, libraries))
        loader = str(self.path / "lib64/ld-linux-x86-64.so.2")
        return [loader, "--argv0", name or program, "--library-path", search, str(file), *arguments]

    def qemu(self) -> list[str]:
        """The command line that runs QEMU for this architecture, with its firmware."""
        firmware = [part for name in ("qemu", "seabios") for part in ("-L", f"{self.path}/usr/share/{name}")]
        return self.command("qemu-system-x86_64", *firmware)


@functools.cache
def tools() -> Tools:
    """QEMU and the other programs that run outside the guests."""
    suite = distribution.codename()
    suites = (suite, f"{suite}-backports")
    inputs = (suites, distribution.versions(suites, TOOLS_PACKAGES))

    def build(path: Path) -> None:
        distribution.bootstrap(path, suites, TOOLS_PACKAGES, "--variant=extract")

    return Tools(cache.artifact("tools", inputs, build))


@functools.cache
def root(variant: str = "") -> Path:
    """The root file system of the guests, without a kernel's modules."""
    wanted = VARIANTS[variant]
    inputs = (wanted.options, distribution.versions(wanted.suites(), wanted.packages))

    def build(path: Path) -> None:
        distribution.bootstrap(path, wanted.suites(), wanted.packages, *wanted.options)
        for folder in ("var/lib/apt/lists", "var/cache/apt"):
            shutil.rmtree(path / folder)

    return cache.artifact(_named("root", variant), inputs, build)


def beside_root(packages: tuple[str, ...]) -> Path:
    """Packages with all that they depend on, as a directory without what the guests' root file system has: for a
    payload. Their installation scripts are not run."""
    suites = (distribution.codename(),)
    base = root()
    inputs = (base.name, distribution.versions(suites, packages))

    def build(path: Path) -> None:
        distribution.bootstrap(path, suites, packages, "--variant=extract", *ROOT_OPTIONS[1:])
        # Packages may hold /bin, which is a link to /usr/bin where they are installed.
        for name in ("bin", "lib", "lib64", "sbin"):
            if (path / name).is_dir() and not (path / name).is_symlink():
                shutil.copytree(path / name, path / "usr" / name, symlinks=True, dirs_exist_ok=True)
                shutil.rmtree(path / name)
            (path / name).unlink(missing_ok=True)
        for file in path.rglob("*"):
            place = base / file.relative_to(path)
            is_folder = file.is_dir() and not file.is_symlink()
            if not is_folder and (place.exists() or place.is_symlink()):
                file.unlink()
        for folder in ("boot", "dev", "proc", "run", "sys", "tmp", "usr/share/doc", "var"):
            shutil.rmtree(path / folder, ignore_errors=True)

    return cache.artifact("-".join(("beside", *packages)), inputs, build)


@functools.cache
def kernel(series: str, variant: str = "") -> Path:
    """The directory of a kernel series: `vmlinuz`, `initrd` and `disk.ext4`."""
    suite, version = _suite(series)
    base, size = root(variant), VARIANTS[variant].disk_size
    guest = cache.tree_hash(GUEST)
    inputs = (suite, version, base.name, guest, GUEST_MODULES.pattern, DISK_MODULES, size)

    def build(path: Path) -> None:
        with RunFolder("kernel") as scratch:
            packages, disk, initrd = (scratch.path / name for name in ("packages", "disk", "initrd"))
            distribution.bootstrap(packages, (suite,), ("linux-image-amd64",), "--variant=extract")
            (modules,) = (found for found in packages.glob("**/lib/modules/*") if (found / "kernel").is_dir())
            (image,) = [*packages.glob("boot/vmlinuz-*"), *modules.glob("vmlinuz")]
            shutil.copy(image, path / "vmlinuz")
            subprocess.run(["cp", "-a", "--", base, disk], check=True)
            subprocess.run(["cp", "-a", "--", f"{GUEST}/root/.", disk], check=True)
            modules = _install_modules(modules, disk)
            _make_initrd(initrd, base / "bin/busybox", modules, path / "initrd")
            make_disk(disk, path / "disk.ext4", size)

    return cache.artifact(_named(f"kernel-{series}", variant), inputs, build)


def _named(name: str, variant: str) -> str:
    """The name of an artifact that exists in each variant."""
    return f"{name}-{variant}" if variant else name


def _suite(series: str) -> tuple[str, str]:
    """The first suite that has a kernel of this series, and the version of its package."""
    seen = []
    for suite in KERNELS[series]:
        version = distribution.versions((suite,), ("linux-image-amd64",))["linux-image-amd64"]
        if version.startswith(f"{series}."):
            return suite, version
        seen.append(f"{suite} has {version}")
    raise Unavailable(f"no suite has a kernel {series}: {', '.join(seen)}")


def _install_modules(packaged: Path, disk: Path) -> Path:
    """Copies the modules that guests need into a root file system; returns their directory."""
    installed = disk / "lib/modules" / packaged.name
    for file in (packaged / "kernel").rglob("*.ko*"):
        name = file.relative_to(packaged / "kernel")
        if GUEST_MODULES.fullmatch(str(name).partition(".ko")[0]):
            target = installed / "kernel" / name.with_name(f"{name.name.partition('.ko')[0]}.ko")
            target.parent.mkdir(parents=True, exist_ok=True)
            # Busybox cannot read compressed modules, and this saves the guest the work.
            target.write_bytes(lzma.decompress(file.read_bytes()) if file.suffix == ".xz" else file.read_bytes())
    for index in packaged.glob("modules.*"):
        shutil.copy(index, installed)
    _run(tools().command("kmod", "--basedir", str(disk), packaged.name, name="depmod"))
    return installed


def _make_initrd(folder: Path, busybox: Path, modules: Path, archive: Path) -> None:
    """Creates the initrd: busybox, and the modules for the disk."""
    (folder / "modules").mkdir(parents=True)
    for name in ("bin", "dev", "proc", "root"):
        (folder / name).mkdir()
    shutil.copy(busybox, folder / "bin")
    shutil.copy(GUEST / "initrd/init", folder)
    order = with_dependencies(modules / "modules.dep", DISK_MODULES)
    for name in order:
        shutil.copy(modules / name, folder / "modules")
    (folder / "modules/order").write_text("".join(f"{Path(name).name}\n" for name in order))
    make_archive(folder, busybox, archive)


def make_archive(folder: Path, busybox: Path, archive: Path) -> None:
    """Creates an initrd from a directory."""
    listing = "".join(f"{file.relative_to(folder)}\n" for file in sorted(folder.rglob("*")))
    archive.write_bytes(_run([str(busybox), "cpio", "-o", "-H", "newc"], folder, listing.encode()))


def with_dependencies(modules_dep: Path, wanted: tuple[str, ...]) -> list[str]:
    """The files of some modules and their dependencies, in load order; `modules_dep` is the file of that name."""
    # Each line of modules.dep: a module and its dependencies, the last of which must be loaded first.
    lines = (line.split() for line in modules_dep.read_text().splitlines())
    needs = {Path(first.rstrip(":")).stem: (first.rstrip(":"), *others) for first, *others in lines}
    files = (file for name in wanted if name in needs for file in reversed(needs[name]))
    return list(dict.fromkeys(files))


def make_disk(folder: Path, disk: Path, size: str | int) -> None:
    """Creates an ext4 file system from a directory: without a journal, since it is discarded after use."""
    features = ["-O", "^has_journal,^metadata_csum", "-m", "0", "-E", "lazy_itable_init=1,nodiscard"]
    _run(tools().command("mke2fs", "-q", "-t", "ext4", *features, "-d", str(folder), str(disk), _size(size)))


def _size(size: str | int) -> str:
    """As mke2fs takes it: a number alone would be in blocks."""
    return size if isinstance(size, str) else f"{size >> 10}k"


def _run(command: list[str], cwd: Path | None = None, stdin: bytes = b"") -> bytes:
    """Runs a program that must succeed; returns its output."""
    result = subprocess.run(command, cwd=cwd, input=stdin, capture_output=True, check=False)
    if result.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed: {result.stderr.decode(errors='replace').strip()}")
    return result.stdout
