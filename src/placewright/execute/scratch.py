"""Folders for what is needed only while a run lasts: weights on their way, a meeting point.

A process that is killed cannot remove its own. Each folder holds a lock that ends with the process,
however that ends, and whoever makes the next folder removes those whose lock is free.
"""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO

PREFIX = "placewright-run-"
LOCK = "lock"


class Scratch(tempfile.TemporaryDirectory[str]):
    """A temporary folder that does not outlive a killed process for long."""

    def __init__(self) -> None:
        sweep()
        super().__init__(prefix=PREFIX)
        self._lock = _held(Path(self.name))

    def cleanup(self) -> None:
        """Remove it; twice is fine."""
        super().cleanup()
        self._lock.close()


def sweep() -> None:
    """Remove the folders of processes that have ended without doing so."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{LOCK}"):
        with suppress(OSError), path.open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path.parent, ignore_errors=True)


def _held(folder: Path) -> IO[str]:
    """A lock that has its name only once it is held: nobody sees it free before."""
    draft = folder / (LOCK + ".new")
    lock = draft.open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    draft.rename(folder / LOCK)
    return lock
