"""The scenes: traffic, the fault, and whether a change of the host heals it.

Each is a function that sets up a stage; with `stage.faulty` unset it plays the same traffic without the fault.
"""

from collections.abc import Callable
from dataclasses import dataclass

from .stage import HOST_CPU, PEER_CPU, Stage


@dataclass(frozen=True)
class Scene:
    """A scene, by name."""

    name: str
    play: Callable[[Stage], None]
    what: str
    # Whose the finding is where no change of the host heals it; empty where one does.
    whose: frozenset[str] = frozenset()
    # Which end is fixed.
    fixes: str = "host"


SCENES: list[Scene] = []


def healable(play: Callable[[Stage], None]) -> Callable[[Stage], None]:
    """Adds a scene that a change of the host heals."""
    SCENES.append(Scene(_name(play), play, _what(play)))
    return play


def not_healable(*whose: str) -> Callable[[Callable[[Stage], None]], Callable[[Stage], None]]:
    """Adds a scene that no change of the host heals."""

    def add(play: Callable[[Stage], None]) -> Callable[[Stage], None]:
        SCENES.append(Scene(_name(play), play, _what(play), frozenset(whose)))
        return play

    return add


def _name(play: Callable[[Stage], None]) -> str:
    return play.__name__.replace("_", "-")


def _what(play: Callable[[Stage], None]) -> str:
    return (play.__doc__ or "").strip().split("\n")[0].rstrip(".")


@healable
def fifo_task(stage: Stage) -> None:
    """A SCHED_FIFO task takes the reader's CPU for 12 of each 62 ms."""
    stage.link.pair()
    stage.reader()
    if stage.faulty:
        stage.hog(name="poller", fifo=10, busy_us=12_000, pause_us=50_000)
    stage.datagrams()


@healable
def busy_task(stage: Stage) -> None:
    """A task of equal priority computes on the CPU of a reader that needs four tenths of it."""
    stage.link.pair()
    stage.reader(work_us=200)
    if stage.faulty:
        stage.hog()
    stage.datagrams()


@healable
def busy_crowd(stage: Stage) -> None:
    """Three tasks compute on the reader's CPU, now and then."""
    stage.link.pair()
    stage.reader()
    if stage.faulty:
        stage.hog(tasks=3, busy_us=9_000, pause_us=20_000)
    stage.datagrams()


@healable
def busy_task_beside_server(stage: Stage) -> None:
    """A task computes on the CPU of a server that answers requests over TCP."""
    stage.link.pair()
    stage.start(stage.host, "server", "echo", cpu=HOST_CPU, work_us=200)
    if stage.faulty:
        stage.hog()
    requests(stage)


@healable
def fifo_task_beside_server(stage: Stage) -> None:
    """A SCHED_FIFO task takes the CPU of a server, that answers requests over TCP, for 5 of each 30 ms."""
    stage.link.pair()
    stage.start(stage.host, "server", "echo", cpu=HOST_CPU)
    if stage.faulty:
        stage.hog(name="poller", fifo=10, busy_us=5_000, pause_us=25_000)
    requests(stage)


@healable
def interrupts_off(stage: Stage) -> None:
    """A task keeps interrupts of the reader's CPU off for some milliseconds."""
    stage.link.pair()
    stage.at(stage.host, "sh", "-c", f"echo {1 << HOST_CPU:x} >/sys/class/net/{stage.host.device}/queues/rx-0/rps_cpus")
    stage.reader()
    if stage.faulty:
        stage.spawn([str(stage.folder / "disturb"), "interrupts_off", str(HOST_CPU), str(PEER_CPU)], waits=False)
    stage.datagrams()


@healable
def readers_on_one_cpu(stage: Stage) -> None:
    """Two readers that need half a CPU each are pinned to the same."""
    stage.link.pair()
    stage.reader(port=9000, work_us=235)
    stage.reader(port=9001, work_us=235, cpu=HOST_CPU if stage.faulty else PEER_CPU)
    stage.datagrams(port=9000)
    stage.datagrams(port=9001)


@healable
def tasks_beside_client(stage: Stage) -> None:
    """Two tasks compute on the CPU of a client, which waits for answers over TCP."""
    stage.link.pair()
    stage.start(stage.peer, "server", "echo", cpu=PEER_CPU, fifo=40)
    if stage.faulty:
        stage.hog(tasks=2)
    stage.start(stage.host, "client", "requests", figures=stage.file, to=stage.peer.ip, cpu=HOST_CPU)


@healable
def receive_buffer_default(stage: Stage) -> None:
    """The default receive buffer holds a part of a burst; each session opens a new socket."""
    stage.link.pair()
    if stage.faulty:
        stage.sysctl("net.core.rmem_default", "16384")
    stage.reader(session_ms=100, work_us=20)
    stage.datagrams(burst=64, size=1000)


@healable
def receive_buffer_limit(stage: Stage) -> None:
    """net.core.rmem_max cuts the receive buffer that each session's socket sets."""
    stage.link.pair()
    if stage.faulty:
        stage.sysctl("net.core.rmem_max", "16384")
    stage.reader(session_ms=100, work_us=20, rcvbuf=1 << 20)
    stage.datagrams(burst=64, size=1000)


@healable
def packet_backlog(stage: Stage) -> None:
    """The backlog of a CPU holds a part of a burst, that RPS sends there."""
    stage.link.pair()
    rps(stage, HOST_CPU)
    if stage.faulty:
        stage.sysctl("net.core.netdev_max_backlog", "8")
    stage.reader()
    stage.datagrams(burst=128, rate=4000)


@healable
def softirq_budget(stage: Stage) -> None:
    """NET_RX handles one packet at a time, and leaves the rest of a burst to ksoftirqd beside a busy task."""
    stage.link.pair()
    rps(stage, HOST_CPU)
    if stage.faulty:
        stage.sysctl("net.core.netdev_budget", "1")
        stage.sysctl("net.core.dev_weight", "1")
    stage.reader(cpu=PEER_CPU, fifo=20)
    stage.hog()
    stage.datagrams(burst=64)


@healable
def accept_queue(stage: Stage) -> None:
    """Bursts of connections overflow net.core.somaxconn; the server calls listen() each 50 ms."""
    stage.link.pair()
    if stage.faulty:
        stage.sysctl("net.core.somaxconn", "4", stage.host)
    stage.start(stage.host, "server", "echo", cpu=HOST_CPU, listen_ms=50)
    requests(stage, "connects", rate=400, burst=60)


@healable
def syn_queue(stage: Stage) -> None:
    """Bursts of connections over 20 ms overflow net.ipv4.tcp_max_syn_backlog."""
    stage.wire()
    if stage.faulty:
        stage.sysctl("net.ipv4.tcp_syncookies", "0", stage.host)
        stage.sysctl("net.ipv4.tcp_max_syn_backlog", "8", stage.host)
    stage.start(stage.host, "server", "echo", cpu=HOST_CPU)
    requests(stage, "connects", rate=800, burst=40)


@healable
def tcp_receive_buffer(stage: Stage) -> None:
    """The largest TCP receive buffer limits a stream over 20 ms."""
    stage.wire()
    if stage.faulty:
        stage.sysctl("net.ipv4.tcp_rmem", "4096 65536 65536", stage.host)
    stage.start(stage.host, "server", "sink", figures=stage.file, cpu=HOST_CPU)
    stage.start(
        stage.peer,
        "client",
        "stream",
        figures=stage.file,
        to=stage.host.ip,
        cpu=PEER_CPU,
        fifo=40,
        rate=200,
        size=32768,
    )


@healable
def tcp_send_buffer(stage: Stage) -> None:
    """The largest TCP send buffer limits a stream over 20 ms."""
    stage.wire()
    if stage.faulty:
        stage.sysctl("net.ipv4.tcp_wmem", "4096 16384 65536", stage.host)
    stage.start(stage.peer, "server", "sink", figures=stage.file, cpu=PEER_CPU, fifo=40)
    stage.start(
        stage.host, "client", "stream", figures=stage.file, to=stage.peer.ip, cpu=HOST_CPU, rate=200, size=32768
    )


@healable
def transmit_queue_length(stage: Stage) -> None:
    """A device's queue holds a part of a burst that is sent."""
    stage.wire(delay_us=100)
    if stage.faulty:
        stage.at(stage.host, "ip", "link", "set", stage.host.device, "txqueuelen", "16")
    stage.start(stage.peer, "reader", figures=stage.file, cpu=PEER_CPU, fifo=40)
    stage.start(stage.host, "datagrams", figures=stage.file, to=stage.peer.ip, cpu=HOST_CPU, burst=128, rate=4000)


@healable
def neighbour_table(stage: Stage) -> None:
    """There are more peers than net.ipv4.neigh.default.gc_thresh3 lets the neighbour table hold."""
    stage.link.pair()
    stage.at(stage.peer, "ip", "route", "add", "local", "10.79.0.0/16", "dev", "lo")
    stage.at(stage.host, "ip", "route", "add", "10.79.0.0/16", "dev", stage.host.device)
    if stage.faulty:
        for number, value in (("1", "32"), ("2", "64"), ("3", "128")):
            stage.sysctl(f"net.ipv4.neigh.default.gc_thresh{number}", value)
    stage.start(stage.peer, "reader", figures=stage.file, cpu=PEER_CPU, fifo=40)
    stage.start(stage.host, "datagrams", figures=stage.file, to="10.79.0.1", cpu=HOST_CPU, peers=300)


@healable
def gro_flush(stage: Stage) -> None:
    """GRO holds datagrams for 3 ms, before the stack sees them (net/core/dev.c, gro_flush_timeout)."""
    stage.link.pair()
    stage.reader()
    if stage.faulty:
        stage.at(stage.host, "ethtool", "-K", stage.host.device, "gro", "on", "rx-udp-gro-forwarding", "on")
        stage.write(f"/sys/class/net/{stage.host.device}/gro_flush_timeout", "3000000", stage.host)
    # So few that each waits alone.
    stage.datagrams(rate=300)


@healable
def segmentation_off(stage: Stage) -> None:
    """Segmentation offload is off on a device that sends a stream."""
    stage.link.pair()
    if stage.faulty:
        stage.at(stage.host, "ethtool", "-K", stage.host.device, "tso", "off", "gso", "off")
    stage.start(stage.peer, "server", "sink", figures=stage.file, cpu=PEER_CPU, fifo=40)
    stage.start(
        stage.host, "client", "stream", figures=stage.file, to=stage.peer.ip, cpu=HOST_CPU, rate=1000, size=400_000
    )


@healable
def polling_thread(stage: Stage) -> None:
    """The thread that polls the device (threaded NAPI) shares its CPU with a busy task."""
    stage.link.pair()
    # Otherwise veth hands datagrams to the CPU's backlog.
    stage.at(stage.host, "ethtool", "-K", stage.host.device, "gro", "on", "rx-udp-gro-forwarding", "on")
    stage.at(stage.host, "sh", "-c", f"echo 1 >/sys/class/net/{stage.host.device}/threaded")
    pin_threads(stage, f"napi/{stage.host.device}-")
    stage.reader(cpu=PEER_CPU, fifo=20)
    if stage.faulty:
        stage.hog()
    stage.datagrams()


@not_healable("application")
def computing_reader(stage: Stage) -> None:
    """The reader computes for 0.47 ms on each datagram, of which 2000 arrive each second."""
    stage.link.pair()
    stage.reader(work_us=470 if stage.faulty else 0)
    stage.datagrams()


@not_healable("application")
def lock_held(stage: Stage) -> None:
    """Another thread of the application holds, for 8 of each 40 ms, a lock that the reader takes."""
    stage.link.pair()
    stage.reader(lock=int(stage.faulty))
    stage.datagrams()


@not_healable("quota")
def cpu_quota(stage: Stage) -> None:
    """The quota of the reader's cgroup is used up by another of its tasks, on another CPU."""
    stage.link.pair()
    group = stage.quota(0.5) if stage.faulty else None
    stage.spawn(stage.command(stage.host, "reader", figures=stage.file, cpu=HOST_CPU), group)
    stage.spawn(stage.command(stage.host, "hog", name="sibling", cpu=PEER_CPU), group)
    stage.datagrams()


@not_healable("network", "peer")
def lossy_path(stage: Stage) -> None:
    """The path loses one packet in 50, and requests over TCP wait for retransmissions."""
    stage.wire(delay_us=2000, loss=50 if stage.faulty else 0)
    stage.start(stage.host, "server", "echo", cpu=HOST_CPU)
    requests(stage)


@not_healable("network", "peer")
def delayed_path(stage: Stage) -> None:
    """The path delays packets by 30 ms, now and then."""
    stage.wire(delay_us=2000, spike_us=30_000 if stage.faulty else 0)
    stage.start(stage.host, "server", "echo", cpu=HOST_CPU)
    requests(stage)


@not_healable("peer")
def slow_peer(stage: Stage) -> None:
    """The host sends requests to a peer that computes for 0.47 ms for each."""
    stage.link.pair()
    stage.start(stage.peer, "server", "echo", cpu=PEER_CPU, work_us=470 if stage.faulty else 0)
    stage.start(stage.host, "client", "requests", figures=stage.file, to=stage.peer.ip, cpu=HOST_CPU)


@not_healable("shaper", "host")
def shaper(stage: Stage) -> None:
    """Somebody limits the rate of the host's device with tbf."""
    stage.link.pair()
    if stage.faulty:
        tbf = ("tbf", "rate", "1600kbit", "burst", "1600", "latency", "40ms")
        stage.at(stage.host, "tc", "qdisc", "replace", "dev", stage.host.device, "root", *tbf)
    stage.start(stage.peer, "reader", figures=stage.file, cpu=PEER_CPU, fifo=40)
    stage.start(stage.host, "datagrams", figures=stage.file, to=stage.peer.ip, cpu=HOST_CPU)


def requests(stage: Stage, mode: str = "requests", **options: int) -> None:
    """Requests over TCP from the peer to the host."""
    stage.start(stage.peer, "client", mode, figures=stage.file, to=stage.host.ip, cpu=PEER_CPU, fifo=45, **options)


def rps(stage: Stage, cpu: int) -> None:
    """Packets that the host's device receives are processed on this CPU."""
    file = f"/sys/class/net/{stage.host.device}/queues/rx-0/rps_cpus"
    stage.at(stage.host, "sh", "-c", f"echo {1 << cpu:x} >{file}")


def pin_threads(stage: Stage, name: str) -> None:
    """Kernel threads whose name begins so run on the host's CPU only."""
    command = f"for p in $(grep -ls '^{name}' /proc/[0-9]*/comm | cut -d/ -f3); do taskset -cp {HOST_CPU} $p; done"
    stage.at(stage.host, "sh", "-c", command)
