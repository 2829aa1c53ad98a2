"""CPU time and processes of this machine, as Linux's /proc has them; needs no torch."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

STAT = Path("/proc/stat")
PROCESSES = Path("/proc")

IDLE = (3, 4)
"""Columns of a line of `STAT` in which nothing is done: idle, and waiting for a disk."""

GUEST = 8
"""From this column on, what other columns have already."""


def busy_seconds(cores: Collection[int] | None = None) -> float | None:
    """CPU seconds spent on these cores since the system started; ``None`` where unknown.

    Of all CPUs where no cores are named. What a hypervisor took away counts too.
    """
    try:
        lines = STAT.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    wanted, total = {"cpu"} if cores is None else {f"cpu{core}" for core in cores}, 0
    for line in lines:
        name, *columns = line.split()
        if name in wanted:
            ticks = [int(column) for column in columns[:GUEST]]
            total += sum(ticks) - sum(ticks[k] for k in IDLE)
    return total / os.sysconf("SC_CLK_TCK")


def process_seconds(pid: int) -> float:
    """CPU seconds of a process, 0 once it is gone."""
    columns = _stat(pid)
    if not columns:
        return 0.0
    return (int(columns[11]) + int(columns[12])) / os.sysconf("SC_CLK_TCK")


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal; one that a debugger holds was not."""
    return _stat(pid)[:1] == ["T"]


def children_of(pid: int) -> list[int]:
    """Child processes, of all threads."""
    found: list[int] = []
    for file in (PROCESSES / str(pid) / "task").glob("*/children"):
        with suppress(OSError):
            found += map(int, file.read_text().split())
    return found


def _stat(pid: int) -> list[str]:
    """Columns after the name, which may hold anything; none once the process is gone."""
    try:
        stat = (PROCESSES / str(pid) / "stat").read_bytes()
    except OSError:
        return []
    return stat.rpartition(b")")[2].decode("ascii").split()
