"""Records for `make test`: skipped tests, and reruns after a failure.

Input: a test and a reason. Output: a line in the file that an environment variable names, if it is set.
"""

import os
from pathlib import Path

# Maximum length of a reason, in characters.
LONGEST_REASON = 200


def record_skip(test: str, reason: str) -> None:
    """Records that a test was skipped."""
    _record("NEARPATH_SKIP_LOG", test, reason)


def record_rerun(test: str, cause: str) -> None:
    """Records that a test, or a part of one, was rerun, and why."""
    _record("NEARPATH_RERUN_LOG", test, cause)


def _record(log: str, test: str, reason: str) -> None:
    """Writes one line in a single write, so that those of several processes do not mix."""
    if path := os.environ.get(log):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(f"{test}\t{' '.join(reason.split())[:LONGEST_REASON]}\n")
