"""Clocks: the time that compiling takes, and a flag that ends compiled loops at a deadline.

What compiling takes is not the planners' time: kernels are compiled once per installation.
Compiled loops cannot look at the clock themselves.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import numpy as np

from placewright.numerics.arrays import BoolArray

COMPILING = "compiling kernels, once after an installation"


class CompileClock:
    """A context manager that counts the seconds in which numba compiles; nested ones once.

    `begun`: called when something starts to be compiled.
    """

    def __init__(self, begun: Callable[[], None]) -> None:
        self._begun = begun
        self._seconds, self._depth, self._start = 0.0, 0, 0.0
        self._registered = False

    @property
    def seconds(self) -> float:
        """So far."""
        running = time.perf_counter() - self._start if self._depth else 0.0
        return self._seconds + running

    def on_start(self, event: Any) -> None:
        """Numba starts to compile a function."""
        if self._depth == 0:
            self._start = time.perf_counter()
            self._begun()
        self._depth += 1

    def on_end(self, event: Any) -> None:
        """Numba has compiled it."""
        self._depth -= 1
        if self._depth == 0:
            self._seconds += time.perf_counter() - self._start

    def notify(self, event: Any) -> None:
        """What numba calls."""
        (self.on_start if event.is_start else self.on_end)(event)

    def __enter__(self) -> Self:
        if "numba" in sys.modules:  # a wing without kernels never pays for the import
            from numba.core import event

            event.Listener.register(type(self))
            event.register("numba:compile", self)  # type: ignore[no-untyped-call]
            self._registered = True
        return self

    def __exit__(self, *exception: object) -> None:
        if self._registered:
            from numba.core import event

            event.unregister("numba:compile", self)  # type: ignore[no-untyped-call]


@contextmanager
def stop_flag(deadline_s: float) -> Iterator[BoolArray]:
    """An array of one flag that is set at the deadline, for kernels that release the GIL.

    `deadline_s`: ``time.perf_counter()`` value.
    """
    flag = np.zeros(1, dtype=np.bool_)
    if deadline_s == math.inf:
        yield flag
        return
    timer = threading.Timer(max(0.0, deadline_s - time.perf_counter()), flag.fill, (True,))
    timer.daemon = True
    timer.start()
    try:
        yield flag
    finally:
        timer.cancel()
