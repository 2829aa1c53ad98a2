"""One run at a time in a folder of snapshots."""

from __future__ import annotations

import fcntl
import os
import weakref
from contextlib import suppress
from pathlib import Path

from placewright.errors import InputError


class FolderLock:
    """A lock on a folder, from when it is made until it is released or the process ends.

    Two runs in one folder would remove each other's unfinished snapshots, and after a fault one
    would go on from what the other has learned. The lock is the folder's own: it leaves no file
    and needs no room. Where the file system has no such locks (NFS) nothing is held.

    Raises `InputError`: another run holds it.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
        self._release = weakref.finalize(self, _release, handle, os.getpid())
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise InputError(
                "another run is using this folder",
                where=str(folder),
                hint="close that run, or give this one a folder of its own",
            ) from None
        except OSError:
            pass

    @property
    def released(self) -> bool:
        """Whether others may have the folder."""
        return not self._release.alive

    def release(self) -> None:
        """Let others have the folder; twice is fine."""
        self._release()


def _release(handle: int, owner: int) -> None:
    """Release the lock; a forked process shares it and only closes its own handle."""
    if os.getpid() == owner:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)
    os.close(handle)
