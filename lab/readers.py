"""Programs that read recordings, for the test that compares what they read: DuckDB, pyarrow, ClickHouse and Spark.

Debian has none of them; they are of PyPI, in a virtual environment in the cache. Spark also needs a Java runtime, and
is the largest: it is installed only on request.
"""

import subprocess
import sys
from pathlib import Path

from . import cache, distribution

PACKAGES = ["duckdb==2.0.1", "pyarrow==26.0.1", "chdb==4.4.0"]
SPARK = ["pyspark==3.5.9"]


def python(spark: bool) -> Path:
    """The interpreter that has them; the environment is made if it is missing or outdated."""
    packages = PACKAGES + (SPARK if spark else [])
    # The environment links to its interpreter, and its modules are built for one version.
    inputs = (packages, sys.version, sys.executable)
    folder = cache.artifact("readers-spark" if spark else "readers", inputs, lambda at: _install(packages, at))
    return folder / "bin/python"


def _install(packages: list[str], folder: Path) -> None:
    for command in (
        [sys.executable, "-m", "venv", folder],
        [
            folder / "bin/python",
            "-m",
            "pip",
            "install",
            "--quiet",
            "--only-binary=:all:",
            "--no-binary=pyspark",
            *packages,
        ],
    ):
        done = subprocess.run(command, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode != 0:
            lines = done.stdout.strip().splitlines() or [f"exit status {done.returncode}"]
            raise distribution.Unavailable(f"programs that read recordings cannot be installed: {lines[-1]}")
