"""Whether other processes are at work on this machine while it is measured.

They share its cores and its memory bus, and a profile takes what they cost for the operators' own.
"""

from __future__ import annotations

import os
import time
import warnings
from pathlib import Path

from placewright.profiling.caveats import ProfileWarning

STAT = Path("/proc/stat")
LOOK_S = 0.25
IDLE = (3, 4)
"""Columns of a line of `STAT` in which nothing is done: idle, and waiting for a disk."""

GUEST = 8
"""From this column on, what other columns have already."""

ROOM = 0.25
"""CPUs that may be busy beside the measurement: an editor, a shell."""


class BusyMachineWarning(ProfileWarning):
    """Measured beside other work; what was measured is longer than it need be."""


def warn_of_background_load(what: str, cores: int) -> None:
    """Look around for a moment, and warn where the cores that are to be measured are not free.

    Says nothing where the system does not tell (other than Linux).

    Parameters
    ----------
    what
        Is to be measured.
    cores
        That the measurement needs.
    """
    count = os.cpu_count() or 1
    busy = busy_cpus()
    if busy > max(ROOM, count - cores - ROOM):
        warnings.warn(
            f"{what} was measured while other processes kept {busy:.1f} of {count} CPUs busy: "
            "costs are too high\n  next: profile again when the machine is idle",
            BusyMachineWarning,
            stacklevel=2,
        )


def busy_cpus(seconds: float = LOOK_S) -> float:
    """CPUs at work while this process sleeps; what a hypervisor took away counts too."""
    before = _ticks()
    time.sleep(seconds)
    after = _ticks()
    if before is None or after is None:
        return 0.0
    whole, idle = (now - then for now, then in zip(after, before, strict=True))
    return (1.0 - idle / whole) * (os.cpu_count() or 1) if whole > 0 else 0.0


def _ticks() -> tuple[int, int] | None:
    """Ticks of all CPUs since the start, and those of them in which nothing was done."""
    try:
        columns = [int(word) for word in STAT.read_text().split("\n", 1)[0].split()[1:]]
    except (OSError, ValueError):
        return None
    return sum(columns[:GUEST]), sum(columns[k] for k in IDLE)
