"""A plan that is exported leaves the same settings as `tune apply`, in each form but grub's, which takes a boot. The
guests have no udev, tuned or Ansible: they are unpacked from their packages.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from lab import Host, distribution, images
from lab.fixtures import lab
from lab.payload import nearpath_payload

from .hosts import TWO_NODES, VIRTIO
from .test_systemd import boot_systemd
from .test_tune_export import misplace, nearpath, settings

SOMAXCONN = "/proc/sys/net/core/somaxconn"
UDEVD = "/usr/lib/systemd/systemd-udevd"
# What the installation scripts of dbus and tuned do; tuned writes to its folder, and a payload cannot be written to.
INSTALLS_TUNED = (
    "echo messagebus:x:990:990::/nonexistent:/usr/sbin/nologin >>/etc/passwd && echo messagebus:x:990: >>/etc/group"
    " && cp -rL /etc/tuned /etc/tuned.own && rm -r /etc/tuned && mv /etc/tuned.own /etc/tuned"
    " && mkdir -p /var/log/tuned"
    " && systemctl daemon-reload && systemctl start dbus.socket"
)
# How a host takes what was exported into /root/FORM.
TAKEN = {
    "sh": "/root/sh/nearpath-tune.sh apply",
    "boot": (
        "install -D /root/boot/nearpath-plan.json /etc/nearpath/plan.json"
        " && install /root/boot/nearpath-boot.service /etc/systemd/system/"
        " && systemctl daemon-reload && systemctl start nearpath-boot"
    ),
    "systemd": (
        "install -D -m 755 /root/systemd/nearpath-tune.sh /usr/local/sbin/nearpath-tune.sh"
        " && install /root/systemd/nearpath-tune.service /etc/systemd/system/"
        " && systemctl daemon-reload && systemctl start nearpath-tune"
    ),
    "sysctl": "sysctl -p /root/sysctl/*.conf",
    "tuned": (
        f"{INSTALLS_TUNED} && cp -r /root/tuned/nearpath /etc/tuned/ && systemctl start tuned"
        " && tuned-adm profile nearpath && tuned-adm active && tuned-adm verify"
    ),
    "ansible": "LC_ALL=C.UTF-8 ansible-playbook -i localhost, --connection local /root/ansible/nearpath-tune.yml",
    "udev": (
        f"install -D /root/udev/99-nearpath.rules /etc/udev/rules.d/99-nearpath.rules && {UDEVD} --daemon"
        " && udevadm trigger --action=add --subsystem-match=net && udevadm settle"
    ),
}
# Python starts slowly in emulation.
SLOW_S = 600
# What the export of a form is written to: a folder, or a file of this name in it.
FILES = {
    "ansible": "/nearpath-tune.yml",
    "sh": "/nearpath-tune.sh",
    "sysctl": "/60-nearpath.conf",
    "udev": "/99-nearpath.rules",
}
# What a form carries, if not everything: kinds of changes.
CARRIED = {"sysctl": {"sysctl"}, "udev": {"rps_cpus", "xps_cpus", "rps_flow_cnt"}}


@pytest.fixture(scope="module")
def payload(lab_here: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """nearpath, tuned, Ansible, and udev without its rules: a guest boots without it."""
    folder = tmp_path_factory.mktemp("udev")
    distribution.unpack((distribution.codename(),), "udev", folder)
    udevadm = next(path for path in folder.glob("**/bin/udevadm"))
    others = images.beside_root(("ansible-core", "dbus", "tuned"))
    return nearpath_payload({"/": others, "/usr/bin/udevadm": udevadm, UDEVD: udevadm})


def values(host: Host, plan: dict[str, Any]) -> dict[str, str]:
    """What the plan's settings are now, by the ids of its changes."""
    return {change["id"]: host.check(["cat", change["target"]]).strip() for change in plan["changes"]}


def undo(host: Host, form: str, found: dict[str, str], plan: dict[str, Any]) -> None:
    """By the form's own means, where it has one."""
    if form == "boot":
        status = nearpath(host, "status")["journal"]
        assert status and {entry["state"] for entry in status} == {"applied"}, status
        host.check("nearpath tune rollback")
        assert nearpath(host, "status")["journal"] == []
    elif form in ("sh", "systemd"):
        host.check(f"/root/{form}/nearpath-tune.sh undo")
    elif form == "ansible":
        host.check("/usr/local/sbin/nearpath-tune.sh undo")
    elif form == "tuned":
        host.check("tuned-adm off", timeout_s=SLOW_S)
    else:
        for change in plan["changes"]:
            host.run(f"echo {found[change['id']]} >{change['target']}")


def planned(host: Host) -> dict[str, Any]:
    """A plan of interrupts, queues and a sysctl, and the file with it in the guest."""
    plan = nearpath(host, "plan", "--nic", "nic0")
    sysctl = {"id": "somaxconn", "kind": "sysctl", "target": SOMAXCONN, "after": "4321", "finding": None}
    sysctl |= {"before": host.check(["cat", SOMAXCONN]).strip(), "why": "a test"}
    plan["changes"].append(sysctl | {"persist": [], "reboot": False, "optional": False})
    host.write("/root/plan.json", json.dumps(plan).encode())
    return plan


@pytest.mark.parametrize("form", TAKEN)
@lab(topology=TWO_NODES, nics=VIRTIO)
def test_a_form_leaves_the_settings_of_tune_apply(host: Host, form: str) -> None:
    boot_systemd(host)
    misplace(host, 0)
    before = settings(host)
    plan = planned(host)
    found = values(host, plan)
    host.check("nearpath tune apply /root/plan.json")
    applied = values(host, plan)
    assert all(applied[name] != found[name] for name in applied), (found, applied)
    host.check("nearpath tune rollback")
    assert settings(host) == before

    host.check(f"mkdir -p /root/{form}")
    output = host.check(f"nearpath tune export /root/plan.json --as {form} -o /root/{form}{FILES.get(form, '')} 2>&1")
    print(host.check(TAKEN[form], timeout_s=SLOW_S))
    now = values(host, plan)
    carried = {name for name in now if now[name] != found[name]}
    # What it carries is as 'tune apply' makes it; what it does not, it said, and left alone.
    assert {name: now[name] for name in carried} == {name: applied[name] for name in carried}
    assert all(name in output for name in now if name not in carried), (output, carried)
    kinds = CARRIED.get(form)
    assert carried == {change["id"] for change in plan["changes"] if kinds is None or change["kind"] in kinds}
    assert carried
    undo(host, form, found, plan)
    assert settings(host) == before
