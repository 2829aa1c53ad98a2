"""Slower devices and links than this machine has, emulated by waiting.

A device of speed s < 1 sleeps (1/s - 1) times the CPU time of each operator; a shaped link
holds its channel for latency + bytes / bandwidth. A printed number that was measured
with either of them is marked "emulated".
"""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass

_PR_SET_TIMERSLACK = 29


@dataclass(frozen=True, slots=True)
class ShapedLink:
    """One directed link: seconds before the first byte, seconds per byte, shared channel."""

    latency_s: float
    seconds_per_byte: float
    channel: int

    def duration_s(self, size: int) -> float:
        """How long a message of `size` bytes holds the channel."""
        return self.latency_s + size * self.seconds_per_byte


@dataclass(slots=True)
class Stretch:
    """Sleeps so that this process is as slow as a device of speed ``1 / factor``.

    CPU time is what slowness is counted in, so that waiting for others costs nothing twice. Its
    clock takes microseconds to read, as long as a small operator: it is read when the wall clock
    says that enough is owed to be worth a system call, and before anything that others can see.
    """

    factor: float
    owed_s: float = 0.0
    _cpu_s: float = 0.0
    _wall_s: float = 0.0

    def begin(self) -> None:
        """Work from here on counts."""
        self._cpu_s, self._wall_s = time.thread_time(), time.perf_counter()

    def worked(self) -> None:
        """Sleep if enough is owed for the work since `begin`."""
        # Wall time is at least CPU time: an upper limit of what is owed, for the price of a quick
        # clock.
        owed_s = self.owed_s + (time.perf_counter() - self._wall_s) * (self.factor - 1.0)
        if owed_s > _WORTH_A_SLEEP_S:
            self.pay()

    def pay(self) -> None:
        """Sleep what is owed for the work since `begin`, and begin again.

        What the sleep took too long is credited.
        """
        self.owed_s += (time.thread_time() - self._cpu_s) * (self.factor - 1.0)
        if self.owed_s > 0:
            start = time.perf_counter()
            sleep_until(start + self.owed_s)
            self.owed_s -= time.perf_counter() - start
        self.begin()


def sleep_until(deadline_s: float) -> None:
    """Wait until ``time.perf_counter()`` is there: a sleep, and the last moment awake."""
    left_s = deadline_s - time.perf_counter()
    if left_s > _OVERSLEEP_S:
        time.sleep(left_s - _OVERSLEEP_S)
    # The last moment awake: a sleep ends too late by more than an emulated link may be wrong.
    while time.perf_counter() < deadline_s:
        pass


_WORTH_A_SLEEP_S = 1e-3

_OVERSLEEP_S = 4e-5
"""What Linux takes to wake a process up later than requested, on a virtual machine."""


def precise_sleeps() -> None:
    """Ask Linux for sleeps that end within a microsecond or so instead of fifty."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1000, 0, 0, 0)
    except (OSError, AttributeError):
        return
