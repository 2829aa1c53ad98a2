"""Files that travel in orders, piece by piece, for workers that share no disk with the caller.

On the worker's side a file has no name in any folder: nothing of it is left, however the worker
ends.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from placewright.execute.group import WorkerGroup

PIECE_BYTES = 16 << 20
"""A few of them are in memory at a time."""


class Parcels:
    """A worker's files, filled or read in pieces, by a name of their own."""

    def __init__(self) -> None:
        self._files: dict[str, IO[bytes]] = {}

    def open(self, name: str) -> str:
        """An empty file; the path under which this process finds it."""
        self.drop(name)
        file = tempfile.TemporaryFile(prefix="placewright-")  # noqa: SIM115
        self._files[name] = file
        return f"/proc/self/fd/{file.fileno()}"

    def append(self, name: str, piece: bytes) -> None:
        """Fill it."""
        self._files[name].write(piece)
        self._files[name].flush()

    def read(self, name: str, offset: int) -> bytes:
        """The piece that begins at `offset`; empty after the end."""
        return os.pread(self._files[name].fileno(), PIECE_BYTES, offset)

    def drop(self, name: str) -> None:
        """Remove it if it is there."""
        if name in self._files:
            self._files.pop(name).close()


def hand_out(group: WorkerGroup, file: Path) -> list[str]:
    """Give every worker a copy of a file; the path under which each finds its own."""
    paths = group.order_all("open_parcel", "in")
    with file.open("rb") as source:
        while piece := source.read(PIECE_BYTES):
            group.order_all("append_parcel", "in", piece)
    return paths


def collect(group: WorkerGroup, verb: str, files: Sequence[Path]) -> None:
    """Have every worker write a file with `verb` and fetch it."""
    paths = group.order_all("open_parcel", "out")
    group.order(verb, [(path,) for path in paths])
    with ExitStack() as stack:
        targets = [stack.enter_context(file.open("wb")) for file in files]
        offset = 0
        while any(pieces := group.order_all("read_parcel", "out", offset)):
            offset += PIECE_BYTES
            for target, piece in zip(targets, pieces, strict=True):
                target.write(piece)
    group.order_all("drop_parcel", "out")
