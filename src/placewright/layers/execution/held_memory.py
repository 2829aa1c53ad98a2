"""Resident memory of this process, now and at its peak, as the kernel counts it."""

from __future__ import annotations

import ctypes
import math
import os
from contextlib import suppress
from pathlib import Path


def resident_bytes() -> int:
    """Bytes of memory that this process holds now, freed ones given back."""
    release_memory()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def forget_peak() -> None:
    """Count the peak from now on."""
    release_memory()
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_bytes() -> float:
    """Most resident memory since `forget_peak`; NaN where the kernel does not count it."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024.0 * int(line.split()[1])
    return math.nan


def release_memory() -> None:
    """Give freed memory back to the system, so that what a process holds can be measured."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
