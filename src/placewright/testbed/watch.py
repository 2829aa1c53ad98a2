"""What the emulator watches beside its packets: the ends of the processes that it works for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from placewright.testbed.ending import still_needed
from placewright.testbed.record import CHANGES, Process


def watches(folder: Path) -> Iterator[tuple[int, ...]]:
    """Files, one of which becomes readable when an owner ends or the record changes; then anew.

    There are no more when the testbed in `folder` is down: it is taken down here where its last
    owner ended without doing so.
    """
    changes = _listen(folder / CHANGES)
    while (record := still_needed(folder)) is not None:
        ends = [file for owner in record.owners if (file := _end_of(owner)) is not None]
        if ends or not record.owners:
            yield (changes, *ends)
        for file in ends:
            os.close(file)
        with suppress(BlockingIOError):
            os.read(changes, 4096)
    os.close(changes)


def _listen(pipe: Path) -> int:
    """The reading end; open for writing too, for a pipe that nobody writes to is always ready."""
    with suppress(FileExistsError):
        os.mkfifo(pipe, 0o600)  # others could take out what is meant for us
    return os.open(pipe, os.O_RDWR | os.O_NONBLOCK)


def _end_of(owner: Process) -> int | None:
    """A file that becomes readable when `owner` ends, ``None`` where it has."""
    try:
        file = os.pidfd_open(owner.pid)
    except ProcessLookupError:
        return None
    if owner.alive:
        return file
    os.close(file)  # of a later process of its number
    return None
