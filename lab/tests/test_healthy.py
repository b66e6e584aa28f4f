"""Hosts with nothing wrong: `diagnose` reports no warning on them, and exits with 0."""

from functools import partial

from lab import Host, Nic
from lab.fixtures import lab

from .hosts import LATER_TIERS, ONE_NODE, on_every_host

# The namespaces of a container.
CONTAINER = ["unshare", "--net", "--pid", "--fork", "--mount-proc"]


@partial(on_every_host, tiers=LATER_TIERS)
def test_an_idle_host_is_quiet(host: Host) -> None:
    quiet(host, [])


@lab(topology=ONE_NODE, nics=(Nic("e1000e"),))
def test_an_idle_host_of_one_cpu_is_quiet(host: Host) -> None:
    host.check("for cpu in 1 2 3; do echo 0 >/sys/devices/system/cpu/cpu$cpu/online; done")
    quiet(host, [])


@lab(topology=ONE_NODE, nics=(Nic("e1000e"),))
def test_a_container_is_quiet(host: Host) -> None:
    quiet(host, CONTAINER)


def quiet(host: Host, prefix: list[str]) -> None:
    """Diagnoses the host inside the environment of `prefix`; the status is 1 with a warning, 2 if one is critical."""
    status, said, problems = host.run([*prefix, "nearpath", "diagnose", "--for", "2s", "--exit-code", "-v"])
    assert status == 0, said + problems
    assert said.startswith("No problems found"), said
