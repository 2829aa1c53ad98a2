"""Time limits of every wait for workers.

    a worker process starts                START_S
    all workers join the process group     JOIN_S
    torchrun's processes call the first    GATHER_S
    an order (load, migrate, state, ...)   ORDER_S + bytes / SLOW_BYTES_PER_S
    steps                                  STEP_S + SILENCE_STEPS x expected seconds
    steps of which nothing is expected     FIRST_STEPS_S each
    a process that is stopped (SIGSTOP)    STOPPED_S
    Ray's head is gone                     HEAD_S
    a process ends when it is asked to     END_S

``PLACEWRIGHT_PATIENCE=4`` makes all of them four times as long, for machines that are slow or busy.
Time in which the waiting process itself is stopped (Ctrl-Z) does not count.
"""

from __future__ import annotations

import math
import os
import time

from placewright.errors import InputError

VARIABLE = "PLACEWRIGHT_PATIENCE"

START_S = 45.0
"""Until a process runs its first line; the first one waits for PyTorch to be loaded."""

JOIN_S = 30.0
"""Until the workers have connections to each other."""

GATHER_S = 60.0
"""Between the first of torchrun's processes and the last."""

ORDER_S = 30.0
SLOW_BYTES_PER_S = 20e6
"""State is read, written and sent faster than this."""

STEP_S = 15.0
SILENCE_STEPS = 20.0
"""A step that takes so many times what it was expected to take is stuck."""

FIRST_STEPS_S = 900.0

STOPPED_S = 5.0
"""A SIGSTOP with a SIGCONT within this is not noticed."""

HEAD_S = 8.0
"""Calls that wait for it in Python raise sooner; Ray itself ends the process after 15 s."""

END_S = 5.0

GROUP_S = 1800.0
"""Within one exchange of tensors: gloo's own limit, for workers that no caller watches."""

LOOK_S = 0.5
"""Between two looks at what is waited for."""


def patience(seconds: float) -> float:
    """A limit of this module as the environment wants it; `InputError` where that is no number."""
    given = os.environ.get(VARIABLE) or "1"
    try:
        factor = float(given)
    except ValueError:
        factor = math.nan
    if not 0 < factor < math.inf:
        by, hint = f"got {given!r:.100}", "4 makes limits four times as long; or unset it"
        raise InputError("is no positive number", where=VARIABLE, by=by, hint=hint)
    return seconds * factor


def order_s(size_bytes: float = 0.0) -> float:
    """Limit of an order that moves so many bytes."""
    return patience(ORDER_S + size_bytes / SLOW_BYTES_PER_S)


def steps_s(count: int, expected_s: float) -> float:
    """Limit of so many steps, each expected to take `expected_s`; ``nan`` if nothing is known."""
    if math.isfinite(expected_s):
        return patience(STEP_S + SILENCE_STEPS * count * expected_s)
    return patience(FIRST_STEPS_S * count)


class Countdown:
    """What is left of a limit. It has to be looked at every `LOOK_S` seconds or so."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = self.left_s = limit_s
        self._looked_s = time.monotonic()

    def look(self) -> float:
        """Seconds since the last look, without those in which this process was stopped."""
        now_s = time.monotonic()
        # Looks are `LOOK_S` apart: a gap that is much longer is a process that did not run.
        passed_s = min(now_s - self._looked_s, 4 * LOOK_S)
        self._looked_s = now_s
        self.left_s -= passed_s
        return passed_s

    @property
    def over(self) -> bool:
        """Whether nothing is left."""
        return self.left_s <= 0

    @property
    def next_s(self) -> float:
        """Until the next look at the latest."""
        return max(0.0, min(LOOK_S, self.left_s))
