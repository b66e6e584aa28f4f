#!/usr/bin/env python3
"""Measures what `nearpath monitor` costs beside node_exporter, in one run: make bench-monitor.

Both are scraped at the same moments. First the same facts of both (softnet, interrupts, memory of nodes), then the
whole daemon while packets go through loopback as fast as one sender sends them. CPU time is that of all threads, from
/proc/PID/task/*/schedstat; that of programs in the kernel is in nearpath's own metrics.

With --soak (make soak-monitor), the daemon runs for that time with all its sources and a recording, while network
namespaces, interfaces, listeners and processes come and go every few seconds. Its memory, series, descriptors and
threads must be in the last third what they are in the second; exit status 1 if they are more.

usage: bench_monitor.py NEARPATH NODE_EXPORTER [SCRAPES]
       bench_monitor.py --soak SECONDS NEARPATH
"""

import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

COLLECTORS = ["softnet", "interrupts", "softirqs", "meminfo_numa", "netdev", "stat"]
INTERVAL_S = 1.0
# Loading the programs is above the limit, and paid back for some minutes.
SETTLE_S = 240
OBSERVE_S = 120
PROTOBUF = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Server:
    """A daemon under measurement, ended with the block."""

    def __init__(self, command: list[str], port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/metrics"
        # What ended before is not part of it; what it says is of no interest.
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def __enter__(self) -> "Server":
        deadline = time.monotonic() + 60
        while True:
            try:
                if self.scrape():
                    return self
            except OSError:
                pass
            if time.monotonic() > deadline or self.process.poll() is not None:
                self.process.kill()
                raise SystemExit(f"{self.process.args[0]} does not answer")
            time.sleep(0.2)

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()

    def scrape(self, accept: str = "text/plain") -> bytes:
        """What it exposes."""
        request = urllib.request.Request(self.url, headers={"Accept": accept})
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.read()

    def cpu_s(self) -> float:
        """CPU time of its threads."""
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/schedstat")
        return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9

    def memory_mb(self) -> float:
        """Resident memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) / 1000


def series(text: bytes) -> int:
    """Series of an exposition as text; a histogram is one."""
    lines = text.decode().splitlines()
    return sum(1 for line in lines if line and not line.startswith("#") and "_bucket{" not in line)


def metric(server: Server, name: str) -> float:
    """The value of a series without labels."""
    found = re.search(rf"^{name} (\S+)$", server.scrape().decode(), re.MULTILINE)
    return float(found[1]) if found else 0.0


def beside(nearpath: str, exporter: str, scrapes: int) -> None:
    """The same facts of both."""
    ports = [free_port(), free_port()]
    collectors = [f"--collector.{name}" for name in COLLECTORS]
    theirs = [exporter, "--collector.disable-defaults", *collectors, f"--web.listen-address=127.0.0.1:{ports[0]}"]
    ours = [nearpath, "monitor", "--source", "facts", "--interval", f"{INTERVAL_S}s", "--max-overhead", "none"]
    ours += ["--listen", f"127.0.0.1:{ports[1]}"]
    with Server(theirs, ports[0]) as node_exporter, Server(ours, ports[1]) as monitor:
        servers = {"node_exporter": node_exporter, "nearpath monitor": monitor}
        time.sleep(2)
        before = {name: server.cpu_s() for name, server in servers.items()}
        start = time.monotonic()
        for scrape in range(1, scrapes + 1):
            for server in servers.values():
                server.scrape(PROTOBUF if server is monitor else "text/plain")
            time.sleep(max(0.0, start + scrape * INTERVAL_S - time.monotonic()))
        print(f"{scrapes} scrapes, one each {INTERVAL_S:.0f} s: softnet, interrupts, memory of nodes")
        for name, server in servers.items():
            ms = (server.cpu_s() - before[name]) / scrapes * 1e3
            text = server.scrape()
            proto = f", {len(server.scrape(PROTOBUF)) / 1e3:.1f} kB protobuf" if server is monitor else ""
            print(
                f"  {name:<17} {ms:6.2f} ms CPU a scrape, {server.memory_mb():5.1f} MB, "
                f"{len(text) / 1e3:6.1f} kB text{proto}, {series(text)} series",
                flush=True,
            )


def flood() -> subprocess.Popen:
    """Datagrams through loopback as fast as a process sends them."""
    code = (
        "import socket\n"
        "r=socket.socket(socket.AF_INET,socket.SOCK_DGRAM);r.bind(('127.0.0.1',0));r.setblocking(False)\n"
        "s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM);s.connect(r.getsockname())\n"
        "while True:\n"
        "  s.send(b'x'*64)\n"
        "  try: r.recv(64)\n"
        "  except BlockingIOError: pass\n"
    )
    return subprocess.Popen([sys.executable, "-c", code])


def whole(nearpath: str) -> None:
    """The whole daemon with its usual limit, while packets go as fast as they can."""
    port = free_port()
    command = [nearpath, "monitor", "--listen", f"127.0.0.1:{port}"]
    sender = flood()
    try:
        with Server(command, port) as monitor:
            time.sleep(SETTLE_S)
            counters = ["nearpath_observing_cpu_seconds_total"]
            before = [monitor.cpu_s(), *(metric(monitor, name) for name in counters)]
            packets = softnet()
            start = time.monotonic()
            while time.monotonic() < start + OBSERVE_S:
                time.sleep(15)
                monitor.scrape(PROTOBUF)
            seconds = time.monotonic() - start
            after = [monitor.cpu_s(), *(metric(monitor, name) for name in counters)]
            own, all_of_it = ((now - then) / seconds * 100 for now, then in zip(after, before, strict=True))
            rate = (softnet() - packets) / seconds
            print(f"whole daemon, {rate / 1e3:.0f}k packets/s, scraped each 15 s, {seconds:.0f} s, --max-overhead 1%")
            print(f"  {all_of_it:.2f} % of a CPU with its programs in the kernel, {own:.2f} % its own threads")
            print(f"  {monitor.memory_mb():.1f} MB")
            print(f"  {len(monitor.scrape(PROTOBUF)) / 1e3:.1f} kB protobuf, {series(monitor.scrape())} series")
    finally:
        sender.kill()
        sender.wait()


# Sends 100 datagrams and makes five connections each 50 ms; the connections end, and their ports are others each time.
CLIENT = """
import socket, sys, time
to = (sys.argv[1], 7000)
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
while True:
  for n in range(100):
    udp.sendto(b"x" * 64, to)
  for n in range(5):
    with socket.create_connection(to) as tcp:
      tcp.sendall(b"x"); tcp.recv(1)
  time.sleep(0.05)
"""
SERVER = """
import socket, sys, threading
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); udp.bind((sys.argv[1], 7000))
tcp = socket.create_server((sys.argv[1], 7000))
threading.Thread(target=lambda: [udp.recv(64) for _ in iter(int, 1)], daemon=True).start()
print(flush=True)
while True:
  with tcp.accept()[0] as one: one.sendall(one.recv(1))
"""


def run(*command: str) -> None:
    """Runs a command, which must succeed."""
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


def passing_host(number: int, seconds: float) -> None:
    """A network namespace with an interface, a server and traffic to it, for some seconds."""
    # Names are never used twice. What ran before and failed may have left its own.
    name = f"soak{number}"
    address = f"10.99.{number // 60 % 250}.{number % 60 * 4 + 1}"
    run("ip", "netns", "add", name)
    processes = []
    try:
        run("ip", "link", "add", f"s{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
        run("ip", "address", "add", f"{address}/30", "dev", f"s{number}")
        run("ip", "link", "set", f"s{number}", "up")
        peer = address[: address.rindex(".") + 1] + str(number % 60 * 4 + 2)
        run("ip", "-n", name, "address", "add", f"{peer}/30", "dev", "eth0")
        run("ip", "-n", name, "link", "set", "eth0", "up")
        inside = ["ip", "netns", "exec", name, sys.executable, "-c"]
        server = subprocess.Popen([*inside, SERVER, peer], stdout=subprocess.PIPE)
        processes.append(server)
        server.stdout.readline()
        # Its server is killed first.
        processes.append(subprocess.Popen([sys.executable, "-c", CLIENT, peer], stderr=subprocess.DEVNULL))
        time.sleep(seconds)
    finally:
        for process in processes:
            process.kill()
            process.wait()
        run("ip", "netns", "delete", name)


def held(server: Server) -> dict[str, float]:
    """What the daemon holds."""
    proc = Path(f"/proc/{server.process.pid}")
    return {
        "memory MB": server.memory_mb(),
        "series": series(server.scrape()),
        "descriptors": len(list((proc / "fd").iterdir())),
        "threads": len(list((proc / "task").iterdir())),
    }


def soak(nearpath: str, seconds: float) -> bool:
    """Whether the daemon holds as much in the last third as in the second."""
    port = free_port()
    command = [nearpath, "monitor", "--listen", f"127.0.0.1:{port}"]
    early: dict[str, list[float]] = {}
    late: dict[str, list[float]] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        Server([*command, "--record", folder, "--keep-size", "16MiB"], port) as monitor,
    ):
        start = time.monotonic()
        number = 0
        next_line = 0.0
        while (now := time.monotonic() - start) < seconds:
            # Series of ten minutes, and what loading the programs has cost, are of the first third.
            third = ({}, early, late)[int(now / seconds * 3)]
            holds = held(monitor)
            for name, value in holds.items():
                third.setdefault(name, []).append(value)
            if now >= next_line:
                next_line += max(60.0, seconds / 30)
                said = "  ".join(f"{value:g} {name}" for name, value in holds.items())
                print(f"{now:6.0f} s {number:5} namespaces  {said}", flush=True)
            number += 1
            passing_host(number, 3.0)
        kept = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
        cpu = monitor.cpu_s() / seconds * 100
        observing = metric(monitor, "nearpath_observing_cpu_seconds_total") / seconds * 100
        if monitor.process.poll() is not None:
            raise SystemExit("the daemon has ended")
    print(f"{number} network namespaces in {seconds:.0f} s; recording {kept / 1e6:.1f} MB")
    print(f"{observing:.2f} % of a CPU with programs in the kernel, {cpu:.2f} % by its own threads")
    flat = True
    for name, values in late.items():
        before, after = (statistics.median(of) for of in (early[name], values))
        # Loading a program takes tens of megabytes for a moment: the median says what stays. A twentieth is what some
        # thread's pools are filled with, two what happens to be open.
        grew = after > before * 1.05 + (0 if name == "memory MB" else 2)
        flat = flat and not grew
        most = max(*early[name], *values)
        print(f"  {name}: median {before:g}, then {after:g}{': grew' if grew else ''}; at most {most:g}")
    return flat


def softnet() -> int:
    """Packets processed on all CPUs."""
    lines = Path("/proc/net/softnet_stat").read_text().splitlines()
    return sum(int(line.split()[0], 16) for line in lines)


def main() -> None:
    """Measures and prints."""
    if len(sys.argv) == 4 and sys.argv[1] == "--soak":
        raise SystemExit(0 if soak(sys.argv[3], float(sys.argv[2])) else 1)
    if len(sys.argv) not in (3, 4):
        raise SystemExit(__doc__.rsplit("usage: ", 1)[1].strip())
    beside(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) == 4 else 120)
    whole(sys.argv[1])


if __name__ == "__main__":
    main()
