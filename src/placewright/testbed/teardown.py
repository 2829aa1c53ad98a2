"""Removal of a testbed: with the last process that owns it, after a reboot, or by ``down``."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from placewright.testbed import groups, namespaces
from placewright.testbed.link_table import LinkTable
from placewright.testbed.record import (
    CHANGES,
    LINKS,
    Process,
    Record,
    one_at_a_time,
    record_in,
    records,
)

MODULE = b"placewright.testbed.emulator"
"""In the arguments of an emulator, before the folder of its testbed."""


def remove(record: Record) -> None:
    """End the processes in its groups and its emulator; remove groups, namespaces and record.

    Where something cannot be removed (`RunError`) the record stays, to try ``down`` again.
    """
    # Processes first, which may hold the namespaces; the record last: until then `down` finds all
    # of it.
    for group in record.groups:
        groups.remove(Path(group))
    for namespace in record.namespaces:
        namespaces.remove(namespace)
    end_emulator(record)
    shutil.rmtree(record.folder)


def end_emulator(record: Record) -> None:
    """Kill its emulator, unless this process is it; wait until its devices are released.

    One that has not yet written its number into the link table, because it is stopped or starts
    slowly, is found by its arguments.
    """
    processes = (int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit())
    found = [p for p in processes if p != os.getpid() and is_emulator(p, record.folder)]
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    while any(is_emulator(pid, record.folder) for pid in found):
        time.sleep(0.002)


def emulator_pid(record: Record) -> int:
    """The process number of its emulator, 0 where none runs."""
    path = record.folder / LINKS
    if not path.exists():
        return 0
    pid = LinkTable(path).emulator_pid
    return pid if pid and is_emulator(pid, record.folder) else 0


def is_emulator(pid: int, folder: Path) -> bool:
    """Whether that process is the emulator, not a later one of the same number (or a zombie)."""
    with suppress(OSError):
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return MODULE in arguments and str(folder).encode() in arguments
    return False


def leave(record: Record) -> None:
    """Give up ownership; remove the testbed unless another process owns it, or it is to stay."""
    with one_at_a_time():
        # Under the lock the record is read anew: another process may have joined or removed it.
        now, own = record.now(), Process.this()
        if now is None or own not in now.owners:
            return
        others = now.others(own)
        if others:
            replace(now, owners=others).write()
        else:
            remove(now)


def end(record: Record) -> None:
    """Remove the testbed, whichever process owns it; idempotent."""
    with one_at_a_time():
        now = record.now()
        if now is not None:
            remove(now)


def end_all(only: str | None = None) -> tuple[Record, ...]:
    """Remove every testbed, or the one with the id `only`, those made in part included."""
    with one_at_a_time():
        found = tuple(record for record in records() if only in (None, record.id))
        for record in found:
            remove(record)
    return found


def sweep() -> None:
    """Remove every testbed whose owners ended, or whose machine rebooted, without removing it."""
    with one_at_a_time():
        for record in records():
            if record.abandoned:
                remove(record)


def still_needed(folder: Path) -> Record | None:
    """The record in `folder`; ``None`` where it is down, or was abandoned and is down now."""
    record = record_in(folder)
    if record is None or not record.abandoned:
        return record  # without the lock, which the making of another testbed holds for seconds
    with one_at_a_time():
        record = record_in(folder)
        if record is not None and record.abandoned:
            remove(record)
            return None
    return record


def owner_events(folder: Path) -> Iterator[tuple[int, ...]]:
    """Files, one of which becomes readable when an owner ends or the record changes; repeatedly.

    Ends when the testbed in `folder` is down: it is removed here where its last owner ended
    without doing so.
    """
    changes = _open_pipe(folder / CHANGES)
    while (record := still_needed(folder)) is not None:
        # Without an end to wait for, all owners are gone: the next turn of the loop removes the
        # testbed.
        ends = [file for owner in record.owners if (file := _end_of(owner)) is not None]
        if ends or not record.owners:
            yield (changes, *ends)
        for file in ends:
            os.close(file)
        with suppress(BlockingIOError):
            os.read(changes, 4096)
    os.close(changes)


def _open_pipe(pipe: Path) -> int:
    """Open for reading, and for writing: a pipe without a writer is always ready to be read."""
    with suppress(FileExistsError):
        os.mkfifo(pipe, 0o600)  # other users could read its messages away
    return os.open(pipe, os.O_RDWR | os.O_NONBLOCK)


def _end_of(owner: Process) -> int | None:
    """A file that becomes readable when `owner` ends, ``None`` if it has ended."""
    try:
        file = os.pidfd_open(owner.pid)
    except ProcessLookupError:
        return None
    if owner.alive:
        return file
    os.close(file)  # it belongs to a later process of the same number
    return None
