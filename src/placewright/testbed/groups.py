"""Control groups: limits on CPU time and memory of the processes of a device.

Version 1 (one tree per controller) and version 2 (one tree), whichever has the CPU controller.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from placewright.errors import RunError, UnsupportedError

PERIOD_US: Final = 10_000
"""Quotas count per 10 ms: shorter than an operator of note, longer than the kernel's slices."""

RUNTIME_BYTES: Final = 512 << 20
"""Memory of Python, PyTorch and the allocator in a process: a device's memory is for the model, so
its group gets this much more."""

_LEAST_QUOTA_US: Final = 1_000
_NO_LIMIT: Final = 1 << 62
_LONGEST_PERIOD_US: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Trees:
    """Mount points of the control group trees (version 1 or 2; in version 2 it is one tree)."""

    version: int
    cpu: Path
    memory: Path

    def group(self, name: str) -> tuple[Path, ...]:
        """The directories that together are the group `name`: what a process joins."""
        return tuple(dict.fromkeys((self.cpu / name, self.memory / name)))

    def make(self, name: str) -> tuple[Path, ...]:
        """A group, and those above it; one that exists is kept."""
        for directory in self.group(name):
            directory.mkdir(parents=True, exist_ok=True)
        if self.version == 2:
            inner = Path(name)
            # From the root downwards: a group can hand on only controllers that it has itself.
            for parent in [*reversed(inner.parents)]:
                _write(self.cpu / parent / "cgroup.subtree_control", "+cpu +memory")
        return self.group(name)

    def limit_cpu(self, name: str, cores: float) -> None:
        """Give the group `cores` cores' worth of time, ``inf`` for as much as there is."""
        quota, period = quota_us(cores)
        if self.version == 2:
            _write(self.cpu / name / "cpu.max", f"{'max' if quota < 0 else quota} {period}")
            return
        # A quota above the old period's share is refused in between: lift it first.
        _write(self.cpu / name / "cpu.cfs_quota_us", "-1")
        _write(self.cpu / name / "cpu.cfs_period_us", str(period))
        _write(self.cpu / name / "cpu.cfs_quota_us", str(quota))

    def limit_memory(self, name: str, size_bytes: float) -> None:
        """Give the group `size_bytes` of memory for a model, ``inf`` for as much as there is.

        `RUNTIME_BYTES` come on top.
        """
        unlimited, key = ("max", "memory.max")
        if self.version == 1:
            unlimited, key = ("-1", "memory.limit_in_bytes")
        limit = unlimited if size_bytes == float("inf") else str(int(size_bytes) + RUNTIME_BYTES)
        _write(self.memory / name / key, limit)

    def cpu_limit(self, name: str) -> float:
        """The cores that the group gets now, as the kernel says."""
        if self.version == 2:
            quota, period = _read(self.cpu / name / "cpu.max").split()
        else:
            quota = _read(self.cpu / name / "cpu.cfs_quota_us")
            period = _read(self.cpu / name / "cpu.cfs_period_us")
        return float("inf") if quota in ("", "max", "-1") else int(quota) / int(period)

    def memory_limit(self, name: str) -> float:
        """The bytes of memory for a model that the group gets now, by what the kernel says."""
        return memory_limit(self.memory / name)


def memory_limit(directory: Path) -> float:
    """The bytes of memory for a model that a group gets, ``inf`` for as much as there is."""
    limit = _read(directory / "memory.max") or _read(directory / "memory.limit_in_bytes")
    limited = limit.isdigit() and int(limit) < _NO_LIMIT
    return float(int(limit) - RUNTIME_BYTES) if limited else float("inf")


def killed_for_memory(directory: Path) -> int:
    """How many processes of a group the kernel has killed because it had no memory left."""
    counts = _read(directory / "memory.events") or _read(directory / "memory.oom_control")
    words = counts.split()
    return int(words[words.index("oom_kill") + 1]) if "oom_kill" in words else 0


def quota_us(cores: float) -> tuple[int, int]:
    """Quota and period in microseconds; a quota of -1 is none."""
    if cores == float("inf"):
        return -1, PERIOD_US
    period = PERIOD_US
    # The kernel refuses quotas under a millisecond: small shares get one of a longer period.
    while cores * period < _LEAST_QUOTA_US and period < _LONGEST_PERIOD_US:
        period *= 2
    period = min(period, _LONGEST_PERIOD_US)
    return max(_LEAST_QUOTA_US, round(cores * period)), period


def find_trees(mounts: Path = Path("/proc/mounts")) -> Trees:
    """The trees of this machine; `UnsupportedError` if none has the CPU and memory controllers."""
    first: dict[str, Path] = {}
    for line in mounts.read_text().splitlines():
        _, where, kind, options, *_ = line.split()
        if kind == "cgroup":
            found = {"cpu", "memory"} & set(options.split(","))
            first |= {controller: Path(where) for controller in found}
        elif kind == "cgroup2":
            controllers = _read(Path(where) / "cgroup.controllers").split()
            if {"cpu", "memory"} <= set(controllers):
                return Trees(2, Path(where), Path(where))
    if {"cpu", "memory"} <= first.keys():
        return Trees(1, first["cpu"], first["memory"])
    raise UnsupportedError(
        "no control group tree with the cpu and memory controllers is mounted",
        where=str(mounts),
        hint="mount one (`mount -t cgroup2 none /sys/fs/cgroup`), or give a container its own",
    )


def remove(directory: Path) -> None:
    """End every process in a group and remove it; one that is not there is fine."""
    # Again and again: a process may fork between the list and the signal.
    for _ in range(200):
        kill(directory)
        try:
            directory.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            time.sleep(0.01)  # the kernel releases dead processes a little later
        else:
            return
    raise RunError(
        "the control group cannot be removed", where=str(directory), by="2 s after SIGKILL"
    )


def kill(directory: Path) -> None:
    """End every process in a group by SIGKILL."""
    for pid in _read(directory / "cgroup.procs").split():
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise RunError(
            f"the kernel refuses {text!r}: {error.strerror}",
            where=str(path),
            hint="control groups can be changed by root, outside of most containers",
        ) from None
