"""Prometheus and Alertmanager, for tests of `nearpath monitor`: Debian unstable's, unpacked into the cache.

Stable suites have versions that do not know native histograms.
"""

from pathlib import Path

from . import cache, distribution

SUITES = ["sid"]
PACKAGES = {
    "prometheus": "prometheus",
    "amtool": "prometheus-alertmanager",
}


def path(program: str) -> Path:
    """A program of them; its package is downloaded if it is missing or outdated."""
    package = PACKAGES[program]
    version = distribution.versions(SUITES, [package])
    folder = cache.artifact(package, version, lambda at: distribution.unpack(SUITES, package, at))
    return folder / "usr/bin" / program
