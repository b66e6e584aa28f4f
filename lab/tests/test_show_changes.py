"""`nearpath show` follows what is changed on a running host; what a driver refuses stays.

One test per row of `CHANGES`. The other tests of `show` assert that everything else is still correct:
they compare the changed host like the booted one.
"""

import pytest

from lab import Machine

from .changes import CHANGES, Change
from .hosts import on_every_host
from .show import Reading


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.name)
@on_every_host
def test_change(machine: Machine, readings: dict[str, Reading], change: Change) -> None:
    booted, changed = readings["booted"].shown, readings["changed"].shown
    ((status, said),) = readings["changed"].answers[change.command]
    if change.is_taken(machine):
        assert status == 0, said
        assert change.shown(changed) == change.value != change.shown(booted)
    else:
        assert status != 0, "the driver took it"
        assert change.shown(changed) == change.shown(booted)
