"""Monitor: receives the progress and the notes of calls that take a while."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol, cast

from placewright.planning.contract import Progress, silent

LOG = logging.getLogger("placewright")

Names = tuple[str, str, str]
"""Labels of the value, of the lower bound and of the gap between them; an empty one is hidden."""

SEARCH: Names = ("best", "bound", "gap")
STEPS: Names = ("a step takes", "predicted", "")
"""A running plan: the median step, and its predicted duration."""


class Meter(Progress, Protocol):
    """Receives the progress of one phase."""

    def step(self, what: str) -> None:
        """Name the current step of a phase that has no value."""


class Monitor(Protocol):
    """Receives notes, and a meter's worth of progress for every phase."""

    def note(self, text: str) -> None:
        """Receive one line on what was found or decided."""

    def meter(self, title: str, names: Names = SEARCH) -> AbstractContextManager[Meter]:
        """Begin a phase; it ends with the ``with`` block."""


@dataclass(frozen=True, slots=True)
class Listener:
    """A monitor that hands progress to a function and notes to the logger ``placewright``."""

    progress: Progress = silent

    def note(self, text: str) -> None:
        """Log the line at level INFO."""
        LOG.info("%s", text)

    @contextmanager
    def meter(self, title: str, names: Names = SEARCH) -> Iterator[Meter]:
        """Prefix every step of the phase with its title."""
        yield _Forward(self.progress, title, time.perf_counter())


@dataclass(frozen=True, slots=True)
class _Forward:
    """A meter that forwards to `Listener.progress`."""

    progress: Progress
    title: str
    start: float

    def __call__(self, *, what: str, value: float, bound: float, elapsed_s: float) -> None:
        self.progress(
            what=f"{self.title}: {what}",
            value=value,
            bound=bound,
            elapsed_s=elapsed_s,
        )

    def step(self, what: str) -> None:
        elapsed_s = time.perf_counter() - self.start
        self(what=what, value=math.inf, bound=0.0, elapsed_s=elapsed_s)


def monitor_of(progress: Progress | Monitor) -> Monitor:
    """The monitor itself, or one that forwards to a progress function."""
    if hasattr(progress, "meter"):
        return cast(Monitor, progress)
    return Listener(progress)
