"""LinkTable: rate, delay and counters of every directed link, shared with the running emulator.

One small file, mapped into memory by the emulator and by other processes: a change is one
aligned eight-byte store, in force with the next packet, without a message or a lock.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Final

FIELDS: Final = (
    "rate",  # bytes per second, 0 where there is no way
    "delay_s",
    "channel",  # index of the shared resource
    "cut",  # 1 while the way is cut
    "packets",  # counted by the emulator from here on
    "bytes",
    "dropped",
    "marked",
)
_HEADER: Final = ("devices", "emulator_pid")
_SIZE: Final = 8


class LinkTable:
    """A table of `FIELDS` for every pair of devices, in the file `path` that `create` made."""

    __slots__ = ("count", "values")

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            # The mapping lives on when the file is closed, and as long as a view of it.
            self.values = memoryview(mmap.mmap(file.fileno(), 0)).cast("d")
        self.count = int(self.values[0])

    @classmethod
    def create(cls, path: Path, count: int) -> LinkTable:
        """A file for `count` devices in which no way leads anywhere yet."""
        values = len(_HEADER) + len(FIELDS) * count * count
        temporary = path.with_name(path.name + ".new")  # a file cut short could not even be removed
        temporary.write_bytes(struct.pack("=d", count).ljust(_SIZE * values, b"\0"))
        temporary.replace(path)
        return cls(path)

    @property
    def emulator_pid(self) -> int:
        """Process number of the emulator that attached last, 0 before the first."""
        return int(self.values[1])

    @emulator_pid.setter
    def emulator_pid(self, pid: int) -> None:
        self.values[1] = float(pid)

    def square(self, field: str) -> memoryview[float]:
        """All values of one field, row by row: the way from i to j is at ``i * count + j``."""
        ways = self.count * self.count
        start = len(_HEADER) + FIELDS.index(field) * ways
        return self.values[start : start + ways]

    def get(self, field: str, source: int, target: int) -> float:
        """One field of the way from `source` to `target`."""
        return self.square(field)[source * self.count + target]

    def set(self, field: str, source: int, target: int, value: float) -> None:
        """Change one field; in force with the next packet."""
        self.square(field)[source * self.count + target] = value
