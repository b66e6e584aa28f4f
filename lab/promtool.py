"""Prometheus' promtool, for the test that compares percentiles with it.

The test needs 3.0, which stable suites do not have: this is Debian unstable's, unpacked into the cache.
"""

from pathlib import Path

from . import cache, distribution

SUITES = ["sid"]
PACKAGE = "promtool"


def path() -> Path:
    """The program; it is downloaded if it is missing or outdated."""
    version = distribution.versions(SUITES, [PACKAGE])
    folder = cache.artifact(PACKAGE, version, lambda at: distribution.unpack(SUITES, PACKAGE, at))
    return folder / "usr/bin/promtool"
