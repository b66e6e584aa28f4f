"""An interactive shell in a virtual host, with nearpath and traffic.

The host has a common misconfiguration: RPS sends what the NIC's node receives to the other
node, away from the program that reads it. `nearpath diagnose` finds it.
"""

import argparse
import contextlib
import os
import select
import shutil
import signal
import socket
import sys
import termios
import tty
from collections.abc import Iterator
from pathlib import Path

from . import images
from .cache import say
from .host import Host, Job
from .machine import Machine, Nic, Topology

PORT = 5201
MODELS = ("igb", "virtio", "vmxnet3", "e1000e")

# A rate that emulation sustains next to interactive use.
TRAFFIC = ["--bandwidth", "4M", "--parallel", "4", "--time", "86400"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `lab shell`."""
    parser.add_argument("--kernel", choices=images.KERNELS, default="6.12", help="default: %(default)s")
    parser.add_argument(
        "--nodes", type=int, choices=range(1, 9), default=2, metavar="N", help="nodes, 1 to 8 (default: 2)"
    )
    parser.add_argument(
        "--cores", type=int, choices=range(1, 9), default=2, metavar="N", help="cores per node (default: 2)"
    )
    parser.add_argument("--threads", type=int, choices=(1, 2), default=1, help="threads per core (default: 1)")
    parser.add_argument("--nic", choices=MODELS, default="igb", help="model of the NIC (default: %(default)s)")
    parser.add_argument("--nic-node", type=int, default=0, metavar="N", help="node of the NIC (default: %(default)s)")


def machine(options: argparse.Namespace) -> Machine:
    """The requested host."""
    if options.nic_node >= options.nodes:
        raise SystemExit(f"lab: --nic-node {options.nic_node}: there are {options.nodes} nodes, from 0")
    topology = Topology((options.cores,) * options.nodes, options.threads)
    return Machine(options.kernel, topology, (Nic(options.nic, options.nic_node),))


def run(wanted: Machine, payload: Path) -> None:
    """Starts the host and its traffic, and connects the terminal to a shell in it until the shell exits."""
    with Host.restore(wanted, payload) as host, traffic(host):
        say(f"a host with kernel {host.check(['uname', '-r']).strip()}, {len(wanted.topology.cores)} nodes and OVS;")
        say("iperf3 receives TCP through nic0 and br0. Try: nearpath show nics, nearpath diagnose")
        say("exiting the shell (Ctrl-D) stops the host")
        environment = f"TERM={shell_word(os.environ.get('TERM', 'dumb'))}"
        bash = f"cd /root; exec env {environment} setsid --ctty --wait bash --login </dev/hvc0 >/dev/hvc0 2>&1"
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(str(host.folder / "shell"))
            job = host.start(bash)
            with terminal(host):
                connect(line, job)


def shell_word(word: str) -> str:
    """A safe shell word: only the letters, digits and dashes."""
    return "".join(letter for letter in word if letter.isalnum() or letter in "-_")


@contextlib.contextmanager
def traffic(host: Host) -> Iterator[None]:
    """Sends TCP from the peer to a reader on the first node, with RPS to the last node if there are two."""
    topology = host.machine.topology
    near, far = (topology.cpus_of(node) for node in (0, len(topology.cores) - 1))
    if near != far:
        mask = sum(1 << cpu for cpu in far)
        host.check(f"for rps in /sys/class/net/nic0/queues/rx-*/rps_cpus; do echo {mask:x} >$rps; done")
    host.start(["taskset", "--cpu-list", f"{near.start}-{near.stop - 1}", "iperf3", "--server", "--daemon"])
    host.check(f"until ss --listening --tcp --numeric | grep -q :{PORT}; do sleep 0.05; done")
    client = host.peer.start(["iperf3", "--client", host.machine.address(), *TRAFFIC])
    try:
        yield
    finally:
        client.kill()
        client.communicate()


@contextlib.contextmanager
def terminal(host: Host) -> Iterator[None]:
    """Passes each key to the guest unchanged, and the window size."""
    if not sys.stdin.isatty():
        host.check(["stty", "-F", "/dev/hvc0", "-echo"])
        yield
        return

    def resized(*_: object) -> None:
        size = shutil.get_terminal_size()
        host.run(["stty", "-F", "/dev/hvc0", "columns", str(size.columns), "rows", str(size.lines)])

    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setraw(sys.stdin)
        resized()
        signal.signal(signal.SIGWINCH, resized)
        yield
    finally:
        signal.signal(signal.SIGWINCH, signal.SIG_DFL)
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def connect(line: socket.socket, job: Job) -> None:
    """Copies between this terminal and the shell until the shell exits."""
    sources: list[int] = [line.fileno(), sys.stdin.fileno()]
    while True:
        ready, _, _ = select.select(sources, [], [], 0.5)
        if line.fileno() in ready:
            data = line.recv(65536)
            if not data:
                return
            os.write(sys.stdout.fileno(), data)
        elif sys.stdin.fileno() in ready:
            # The end of a script ends the shell's input: Ctrl-D on its terminal.
            data = os.read(sys.stdin.fileno(), 65536)
            line.sendall(data or b"\x04")
            if not data:
                sources.remove(sys.stdin.fileno())
        elif not job.running():
            return
