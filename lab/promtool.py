"""Prometheus' promtool, for the test that asks it for percentiles.

It takes 3.0, which stable suites do not have: this is the one of Debian unstable, unpacked into the cache.
"""

from pathlib import Path

from . import cache, distribution

SUITES = ["sid"]
PACKAGE = "promtool"


def path() -> Path:
    """The program; it is fetched when it is missing, or when there is a newer one."""
    version = distribution.versions(SUITES, [PACKAGE])
    folder = cache.artifact(PACKAGE, version, lambda at: distribution.unpack(SUITES, PACKAGE, at))
    return folder / "usr/bin/promtool"
