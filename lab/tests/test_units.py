"""The units that nearpath ships and writes, as they are, started by a running systemd: they do their job, are restarted
and stopped, and what their filter of system calls forbids ends them.
"""

import json
from pathlib import Path

from lab import Host
from lab.agent import Result
from lab.fixtures import lab, representative
from lab.payload import PROJECT
from lab.waiting import wait_until

from .hosts import TWO_NODES, VIRTIO
from .test_systemd import boot_systemd, shown, tuned

FETCH = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=60).read().decode())"

# Makes calls with arguments that the kernel refuses otherwise; EPERM is the filter's answer.
FORBIDDEN = """
import ctypes, errno, json
libc = ctypes.CDLL(None, use_errno=True)

def refused(*call):
    ctypes.set_errno(0)
    return libc.syscall(*call) == -1 and ctypes.get_errno() == errno.EPERM

calls = {"getppid": (110,), "delete_module": (176, 0, 0), "reboot": (169, 0, 0, 0)}
calls |= {"settimeofday": (164, 1, 0), "setpriority": (141, 0, 0, 19)}
print(json.dumps({name: refused(*call) for name, call in calls.items()}))
"""


def install(host: Host, name: str, text: str) -> None:
    """Puts a unit where an administrator does, and the program where packages do."""
    host.check("ln -sf /usr/local/bin/nearpath /usr/bin/nearpath")
    host.write(f"/etc/systemd/system/{name}", text.encode())


# What an emulated CPU is too slow for: its share of a CPU, and a diagnosis each minute.
EMULATED = """[Service]
CPUQuota=
ExecStart=
ExecStart=/usr/bin/nearpath monitor --listen 127.0.0.1:9477 --findings-interval 10s --max-overhead none
"""


def install_monitor(host: Host) -> None:
    install(host, "nearpath-monitor.service", host.check("nearpath monitor export systemd"))
    host.check("mkdir -p /etc/systemd/system/nearpath-monitor.service.d")
    host.write("/etc/systemd/system/nearpath-monitor.service.d/emulated.conf", EMULATED.encode())


def packaged(name: str) -> str:
    """A unit as in the packages: the Makefile puts the sandbox in its place."""
    folder: Path = PROJECT / "packaging/systemd"
    sandbox = (folder / "sandbox.conf").read_text().strip()
    return (folder / name).read_text().replace("@SANDBOX@", sandbox)


def fetch(host: Host, page: str) -> Result:
    return host.run(["python3", "-c", FETCH, f"http://127.0.0.1:9477/{page}"])


def scraped(host: Host) -> str:
    """The metrics, which are there as soon as somebody answers."""
    status, out, err = fetch(host, "metrics")
    assert status == 0 and "nearpath_build_info" in out, err
    return out


INSTRUMENTS = ("accepts", "drops", "facts", "findings", "locality", "memory", "stages", "steering", "tcp", "workers")


def wait_until_it_works(host: Host) -> None:
    """Waits until every instrument observes, and the host was diagnosed."""
    lines = [f'nearpath_instrument_up{{instrument="{name}"}} 1' for name in INSTRUMENTS]

    def works() -> bool:
        metrics = scraped(host)
        return all(line in metrics for line in lines) and fetch(host, "findings").status == 0

    wait_until(works, "the monitor observes and diagnoses")


def up(host: Host, unit: str) -> dict[str, str]:
    return shown(host, unit, "ActiveState", "NRestarts", "Result")


RUNNING = {"ActiveState": "active", "NRestarts": "0", "Result": "success"}


@lab(topology=TWO_NODES, nics=VIRTIO)
def test_the_monitor_is_started_scraped_restarted_and_stopped(host: Host) -> None:
    install_monitor(host)
    boot_systemd(host)
    # With Type=notify it is started once the program says that it is.
    host.check("systemctl start nearpath-monitor")
    assert up(host, "nearpath-monitor") == RUNNING
    wait_until_it_works(host)
    log = host.check("journalctl --no-pager --unit nearpath-monitor")
    assert "cannot" not in log and "not permitted" not in log, log

    first = shown(host, "nearpath-monitor", "MainPID")["MainPID"]
    host.check("systemctl restart nearpath-monitor")
    assert shown(host, "nearpath-monitor", "MainPID")["MainPID"] != first
    wait_until_it_works(host)
    host.check("systemctl stop nearpath-monitor")
    assert shown(host, "nearpath-monitor", "ActiveState", "Result") == {"ActiveState": "inactive", "Result": "success"}

    # What the filter forbids, for a program in the same unit; one call that it permits tells them apart.
    unit = host.check("cat /etc/systemd/system/nearpath-monitor.service").splitlines()
    others = ("ExecStart=", "Type=", "Restart", "Watchdog")
    settings = [line for line in unit if not line.startswith(others)]
    settings.insert(settings.index("[Service]") + 1, "Type=oneshot\nExecStart=/usr/bin/python3 /etc/forbidden.py")
    host.write("/etc/systemd/system/forbidden.service", "\n".join(settings).encode())
    host.write("/etc/forbidden.py", FORBIDDEN.encode())
    host.check("systemctl daemon-reload")
    host.run("systemctl start forbidden")
    said = host.check("journalctl --no-pager --output cat --unit forbidden")
    [refused] = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert refused == {
        "getppid": False,
        "delete_module": True,
        "reboot": True,
        "settimeofday": True,
        "setpriority": True,
    }


@representative
@lab(topology=TWO_NODES, nics=VIRTIO)
def test_the_socket_starts_the_monitor(host: Host) -> None:
    install_monitor(host)
    install(host, "nearpath-monitor.socket", host.check("nearpath monitor export systemd-socket"))
    boot_systemd(host)
    host.check("systemctl start nearpath-monitor.socket")
    assert shown(host, "nearpath-monitor", "ActiveState") == {"ActiveState": "inactive"}
    scraped(host)
    assert up(host, "nearpath-monitor") == RUNNING
    # No scrape is lost with a restart.
    host.check("systemctl restart nearpath-monitor")
    scraped(host)


@lab(topology=TWO_NODES, nics=VIRTIO)
def test_the_boot_service_applies_and_the_watch_applies_again(host: Host) -> None:
    plan = tuned(host, "plan", "--nic", "nic0")
    assert plan["changes"], plan
    host.check("mkdir -p /etc/nearpath")
    host.write("/etc/nearpath/plan.json", json.dumps(plan).encode())
    for name in ("nearpath-boot.service", "nearpath-watch.service"):
        install(host, name, packaged(name))
    boot_systemd(host)
    host.check("systemctl start nearpath-boot")
    assert shown(host, "nearpath-boot", "Result", "ExecMainStatus") == {"Result": "success", "ExecMainStatus": "0"}
    journal = tuned(host, "status")["journal"]
    assert journal and {entry["state"] for entry in journal} == {"applied"}, journal

    host.check("systemctl start nearpath-watch")
    assert up(host, "nearpath-watch") == RUNNING
    # Its NIC is gone and comes back.
    driver = host.check("readlink -f /sys/class/net/nic0/device/driver").strip()
    others = set(host.check("ls /sys/class/net").split()) - {"nic0"}
    device = host.check("basename $(readlink -f /sys/class/net/nic0/device)").strip()
    host.check(f"echo {device} > {driver}/unbind")
    host.check(f"echo {device} > {driver}/bind")
    # There is no udev to name it.
    [new] = set(host.check("ls /sys/class/net").split()) - others
    host.check(f"ip link set {new} name nic0")

    def is_back() -> bool:
        states = {entry["state"] for entry in tuned(host, "status")["journal"]}
        return states == {"applied"} and host.run("ls /sys/class/net/nic0").status == 0

    wait_until(is_back, "the settings of the NIC are back")
    host.check("systemctl restart nearpath-watch")
    assert up(host, "nearpath-watch") == RUNNING
    host.check("systemctl stop nearpath-watch")
    assert shown(host, "nearpath-watch", "Result") == {"Result": "success"}
    assert {entry["state"] for entry in tuned(host, "status")["journal"]} == {"applied"}, "the changes stay"
