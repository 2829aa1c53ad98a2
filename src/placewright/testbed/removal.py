"""Taking a testbed down: whatever of it exists, and nothing else."""

from __future__ import annotations

import os
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

from placewright.testbed import groups, namespaces
from placewright.testbed.link_table import LinkTable
from placewright.testbed.record import LINKS, Record


def remove(record: Record) -> None:
    """End the processes in its groups and its emulator; remove groups, namespaces and record.

    Raises
    ------
    RunError
        Something would not go; the record stays, so that ``down`` can be tried again.
    """
    for group in record.groups:
        groups.remove(Path(group))
    for namespace in record.namespaces:
        namespaces.remove(namespace)
    end_emulator(record)
    shutil.rmtree(record.folder)


def end_emulator(record: Record) -> None:
    """Kill its emulator, unless we are it; wait until it has let go of its devices."""
    pid = emulator_pid(record)
    if pid in (0, os.getpid()):
        return
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    while _is_emulator(pid, record.folder):
        time.sleep(0.002)


def emulator_pid(record: Record) -> int:
    """The process number of its emulator, 0 where none runs."""
    path = record.folder / LINKS
    if not path.exists():
        return 0
    pid = LinkTable(path).emulator_pid
    return pid if pid and _is_emulator(pid, record.folder) else 0


def _is_emulator(pid: int, folder: Path) -> bool:
    """Whether that process is it, and not a later one of the same number (or a zombie)."""
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return str(folder).encode() in words
    return False
