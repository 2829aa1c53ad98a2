"""Clocks: the time that compiling takes, and a flag that ends compiled loops at a deadline.

What compiling takes is not the planners' time: kernels are compiled once per installation.
Compiled loops cannot look at the clock themselves.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar, Self

import numpy as np

from placewright.numerics.arrays import BoolArray

COMPILING = "compiling kernels, once after an installation"


class CompileClock:
    """A context manager that counts the seconds in which numba compiles; nested ones once.

    `begun`: called when something starts to be compiled.
    Also where Numba is imported only afterwards: `numerics.njit` tells the clocks that run.
    """

    running: ClassVar[list[CompileClock]] = []

    def __init__(self, begun: Callable[[], None]) -> None:
        self._begun = begun
        self._seconds, self._depth, self._start = 0.0, 0, 0.0

    @property
    def seconds(self) -> float:
        """So far."""
        running = time.perf_counter() - self._start if self._depth else 0.0
        return self._seconds + running

    def start(self) -> None:
        """A function is compiled from now on."""
        if self._depth == 0:
            self._start = time.perf_counter()
            self._begun()
        self._depth += 1

    def stop(self) -> None:
        """It is compiled; what began before this clock ran is not counted."""
        if self._depth > 0:
            self._depth -= 1
            if self._depth == 0:
                self._seconds += time.perf_counter() - self._start

    def __enter__(self) -> Self:
        self.running.append(self)
        return self

    def __exit__(self, *exception: object) -> None:
        self.running.remove(self)


@contextmanager
def stop_flag(deadline_s: float) -> Iterator[BoolArray]:
    """An array of one flag that is set at the deadline, for kernels that release the GIL.

    `deadline_s`: ``time.perf_counter()`` value.
    """
    flag = np.zeros(1, dtype=np.bool_)
    stop: Stop | None = getattr(_of_thread, "stop", None)
    if stop is not None:
        stop.flags.append(flag)
        flag[0] = stop.given
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


class Stop:
    """Sets the flags of one thread, those that are still to come too, as at their deadlines."""

    def __init__(self) -> None:
        self.flags: list[BoolArray] = []
        self.given = False

    def of_this_thread(self) -> None:
        """Let this object stop the thread that calls this."""
        _of_thread.stop = self

    def give(self) -> None:
        """Stop the thread's compiled loops."""
        self.given = True
        for flag in self.flags:
            flag.fill(True)


_of_thread = threading.local()
