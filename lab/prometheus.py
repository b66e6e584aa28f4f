"""Prometheus, Alertmanager and node_exporter, for tests of `nearpath monitor`: Debian unstable's, unpacked.

Stable suites have versions that do not know native histograms.
"""

from pathlib import Path

from . import cache, distribution

SUITES = ["sid"]
PACKAGES = {
    "prometheus": "prometheus",
    "prometheus-alertmanager": "prometheus-alertmanager",
    "amtool": "prometheus-alertmanager",
    "prometheus-node-exporter": "prometheus-node-exporter",
}


def path(program: str) -> Path:
    """A program of them; its package is downloaded if it is missing or outdated."""
    package = PACKAGES[program]
    version = distribution.versions(SUITES, [package])
    folder = cache.artifact(package, version, lambda at: distribution.unpack(SUITES, package, at))
    return folder / "usr/bin" / program
