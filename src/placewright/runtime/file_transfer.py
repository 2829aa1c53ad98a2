"""A worker's side of files that travel in orders, where it shares no disk with the caller.

What a worker keeps has no name in any folder: nothing of it is left, however the worker ends.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from placewright.runtime.scratch import Scratch

PIECE_BYTES = 16 << 20
"""A few of them are in memory at a time."""


class FileTransfer:
    """One file that comes in, and one that goes out."""

    def __init__(self) -> None:
        self._incoming: IO[bytes] | None = None
        self._outgoing: IO[bytes] | None = None

    def begin(self) -> str:
        """An empty file that comes in; the path under which this process finds it."""
        self._incoming = tempfile.TemporaryFile(prefix="placewright-")  # noqa: SIM115
        return f"/proc/self/fd/{self._incoming.fileno()}"

    def append(self, piece: bytes) -> None:
        """The next piece of what comes in."""
        assert self._incoming is not None
        self._incoming.write(piece)
        self._incoming.flush()

    def pack(self, write: Callable[[str], str]) -> str:
        """Keep what `write` writes into the path that it is given, to be taken away.

        Returns
        -------
        str
            Why it cannot be written; empty if it is.
        """
        try:
            with Scratch() as folder:
                path = Path(folder) / "file"
                why = write(str(path))
                if not why:
                    # Opened before the folder goes: the file lives on without a name.
                    self._outgoing = path.open("rb")
        except OSError as error:
            return str(error)
        return why

    def take(self) -> bytes:
        """The next piece of what goes out; empty after the last."""
        piece = b"" if self._outgoing is None else self._outgoing.read(PIECE_BYTES)
        if not piece and self._outgoing is not None:
            self._outgoing.close()  # has no name any more: now the disk has its room back
            self._outgoing = None
        return piece
