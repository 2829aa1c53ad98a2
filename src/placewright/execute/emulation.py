"""Slower devices and links than this machine has, emulated by waiting.

A device of speed s < 1 sleeps (1/s - 1) times the CPU time of each operator; a shaped link
holds its channel for latency + bytes / bandwidth. Whoever prints a number measured with
either of them says "emulated".
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

    def wait_s(self, size: int) -> float:
        """How long to wait before really sending, so that both together take `duration_s`."""
        return max(0.0, self.duration_s(size) - _SEND_S - size * _SEND_S_PER_BYTE)


@dataclass(slots=True)
class Stretch:
    """Sleeps so that this process is as slow as a device of speed ``1 / factor``.

    Short sleeps are collected until they are worth a system call: what is owed is paid
    before anything that others can see.
    """

    factor: float
    owed_s: float = 0.0

    def add(self, cpu_s: float) -> None:
        """Note `cpu_s` seconds of work and sleep if enough is owed."""
        self.owed_s += cpu_s * (self.factor - 1.0)
        if self.owed_s > _WORTH_A_SLEEP_S:
            self.pay()

    def pay(self) -> None:
        """Sleep what is owed; what the sleep took too long is credited."""
        if self.owed_s > 0:
            start = time.perf_counter()
            time.sleep(self.owed_s)
            self.owed_s -= time.perf_counter() - start


_WORTH_A_SLEEP_S = 1e-3

_SEND_S, _SEND_S_PER_BYTE = 7e-5, 2e-10
"""What waking up and sending over loopback take by themselves (see `profile.links`)."""


def precise_sleeps() -> None:
    """Ask Linux for sleeps that end within a microsecond or so instead of fifty."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1000, 0, 0, 0)
    except (OSError, AttributeError):
        return
