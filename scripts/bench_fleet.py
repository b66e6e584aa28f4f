#!/usr/bin/env python3
"""Measures what the metrics of a fleet cost a Prometheus: make bench-fleet.

Pages of a real daemon under traffic are kept, one each few seconds. A real Prometheus then scrapes many hosts that show
these pages, one after another: once with native histograms, once as text. Its memory by series and, of a block that it
writes, its bytes by sample are what a fleet of any size is computed from.

usage: bench_fleet.py NEARPATH PROMETHEUS [HOSTS]
"""

import contextlib
import http.server
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

from bench_monitor import PROTOBUF, Server, flood, free_port

# Pages, and the seconds between two of them.
PAGES = 60
EACH_S = 5.0
# Loading the programs is paid back before all sources observe.
SETTLE_S = 120
FLEET = 10_000
# Of a host with 64 CPUs and two NICs of 32 queues, at most.
SERIES = 500
SCRAPE_S = 15
DAY_S = 86_400
FORMATS = {"native histograms": PROTOBUF, "text": "text/plain;version=0.0.4"}


def pages(nearpath: str) -> dict[str, list[bytes]]:
    """Successive pages of a daemon in each format."""
    port = free_port()
    command = [nearpath, "monitor", "--listen", f"127.0.0.1:{port}", "--interval", f"{EACH_S}s"]
    kept: dict[str, list[bytes]] = {name: [] for name in FORMATS}
    sender = flood()
    try:
        with Server(command, port) as monitor:
            time.sleep(SETTLE_S)
            for number in range(PAGES):
                for name, accept in FORMATS.items():
                    kept[name].append(monitor.scrape(accept))
                print(f"\r{number + 1} of {PAGES} pages", end="", file=sys.stderr, flush=True)
                time.sleep(EACH_S)
    finally:
        sender.kill()
        sender.wait()
    print(file=sys.stderr)
    return kept


class Hosts:
    """Hosts that show pages: each scrape of a host gets its next one."""

    def __init__(self, bodies: list[bytes], content_type: str) -> None:
        hosts = self
        self.bodies = bodies
        self.shown: dict[str, int] = {}
        self.lock = threading.Lock()

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:  # noqa: N802 - the library's name
                body = hosts.next(self.path)
                self.send_response(200 if body else 404)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def handle(self) -> None:
                with contextlib.suppress(OSError):
                    # A scraper that has gone.
                    super().handle()

            def log_message(self, *_: object) -> None:
                """Says nothing."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def next(self, host: str) -> bytes:
        """The page of a host, or nothing after the last."""
        with self.lock:
            number = self.shown.get(host, 0)
            self.shown[host] = number + 1
        return self.bodies[number] if number < len(self.bodies) else b""

    def all_shown(self, hosts: int) -> bool:
        """Whether each host has shown each page."""
        with self.lock:
            return len(self.shown) == hosts and min(self.shown.values()) >= len(self.bodies)


def own_metric(address: str, name: str) -> float:
    """The sum of a metric that Prometheus exposes of itself."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    found = [float(line.split()[-1]) for line in lines if re.match(rf"{name}[ {{]", line)]
    if not found:
        raise SystemExit(f"Prometheus has no {name}")
    return sum(found)


def rss(pid: int) -> int:
    """Resident bytes of a process that are not pages of files."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) * 1024


def wait(what: str, reached, limit_s: float = 900) -> None:
    """Waits until something is reached."""
    end = time.monotonic() + limit_s
    while not reached():
        if time.monotonic() > end:
            raise SystemExit(f"waited too long for {what}")
        time.sleep(0.5)


def is_ready(address: str) -> bool:
    """Whether it serves."""
    try:
        with urllib.request.urlopen(f"http://{address}/-/ready", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


def scraped(prometheus: str, bodies: list[bytes], name: str, count: int) -> dict[str, float]:
    """What it costs a Prometheus to scrape these pages of so many hosts."""
    content_type = PROTOBUF if FORMATS[name] == PROTOBUF else "text/plain; version=0.0.4; charset=utf-8"
    hosts = Hosts(bodies, content_type)
    port = hosts.server.server_address[1]
    address = f"127.0.0.1:{free_port()}"
    jobs = [
        {"job_name": f"host{n}", "metrics_path": f"/{n}", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
        for n in range(count)
    ]
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "prometheus.yml"
        # JSON is YAML.
        config.write_text(json.dumps({"global": {"scrape_interval": "2s"}, "scrape_configs": jobs}))
        data = Path(folder) / "data"
        features = ["--enable-feature=native-histograms"] if FORMATS[name] == PROTOBUF else []
        command = [prometheus, f"--config.file={config}", f"--storage.tsdb.path={data}", "--web.enable-admin-api"]
        command += [f"--web.listen-address={address}", "--log.level=error", *features]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            wait("Prometheus", lambda: is_ready(address))
            wait("the pages to be scraped", lambda: hosts.all_shown(count))
            series = own_metric(address, "prometheus_tsdb_head_series")
            memory = rss(process.pid)
            request = urllib.request.Request(f"http://{address}/api/v1/admin/tsdb/snapshot", method="POST")
            with urllib.request.urlopen(request, timeout=300) as answer:
                snapshot = data / "snapshots" / json.load(answer)["data"]["name"]
            written = sum(file.stat().st_size for file in snapshot.rglob("*") if file.is_file())
            meta = [json.loads(file.read_text())["stats"] for file in snapshot.glob("*/meta.json")]
            stored = sum(stats["numSamples"] for stats in meta)
        finally:
            process.terminate()
            process.wait()
            hosts.server.shutdown()
    return {"series": series / count, "memory": memory / series, "bytes": written / stored}


def main() -> None:
    """Measures and prints."""
    if len(sys.argv) not in (3, 4):
        raise SystemExit(__doc__.rsplit("usage: ", 1)[1].strip())
    count = int(sys.argv[3]) if len(sys.argv) == 4 else 100
    kept = pages(sys.argv[1])
    print(f"{count} hosts with {PAGES} pages each, of a daemon under traffic; {FLEET:,} hosts each {SCRAPE_S} s:")
    factor = 0.0
    for name, bodies in kept.items():
        cost = scraped(sys.argv[2], bodies, name, count)
        # The same metrics are more series as text: the first format says how much larger a host with SERIES is.
        factor = factor or SERIES / cost["series"]
        series, page = cost["series"] * factor, len(bodies[-1]) * factor
        rate = FLEET * series / SCRAPE_S
        print(
            f"  {name}: {cost['series']:.0f} series a host, {len(bodies[-1]) / 1e3:.1f} kB a scrape, "
            f"{cost['memory'] / 1e3:.1f} kB of memory a series, {cost['bytes']:.2f} bytes a sample in a block"
        )
        print(
            f"    with {series:.0f} series a host: {rate / 1e3:.0f}k samples/s, "
            f"{FLEET * series * cost['memory'] / 1e9:.0f} GB of memory, "
            f"{rate * DAY_S * cost['bytes'] / 1e9:.0f} GB a day, {FLEET * page / SCRAPE_S / 1e6:.0f} MB/s of scrapes",
            flush=True,
        )


if __name__ == "__main__":
    main()
