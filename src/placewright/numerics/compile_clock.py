"""What compiling takes is not the planners' time: kernels are compiled once per installation."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Self

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
