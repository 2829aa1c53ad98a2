"""How a model of another runtime is timed on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable

from placewright.cluster.cluster import Device
from placewright.cluster.detect import cpu_cores

RUNS, WARM_UP, LONGEST_S = 40, 3, 2.0
"""Measured runs, runs before them, and seconds after which no further one starts."""

LEAST = 3
"""Measured runs, however long they take."""


def run_seconds(run: Callable[[], object]) -> list[float]:
    """Seconds of runs after the warm-up."""
    found: list[float] = []
    while len(found) < WARM_UP + RUNS:
        if len(found) >= WARM_UP + LEAST and sum(found) > LONGEST_S:
            break
        began = time.perf_counter()
        run()
        found.append(time.perf_counter() - began)
    return found[WARM_UP:]


def threads_of(device: Device) -> int:
    """Threads that a device computes with: its cores, at most those that are here."""
    return max(1, min(device.cores, cpu_cores()))
