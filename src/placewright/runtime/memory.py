"""Memory that a worker's devices have needed, and the error where it does not suffice.

A worker's error reaches the caller as text; the numbers are read from there.
"""

from __future__ import annotations

import ctypes
import gc
import math
import mmap
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import torch

from placewright.errors import RunError, WorkerError
from placewright.report.text import size

KILLED = "killed by signal 9"
"""How a worker ends that the kernel takes memory from, among others."""

_STATED = re.compile(r"out of memory: held (\d+) bytes, asked for (\d+) more")

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def asked_bytes(error: BaseException) -> int | None:
    """Bytes that an allocation was for; 0 if unknown, ``None`` for any other error."""
    text = str(error)
    host = re.search(r"tried to allocate (\d+) bytes", text)
    if host is not None:
        return int(host[1])
    gpu = re.search(r"Tried to allocate ([\d.]+) ([KMG]?)iB", text)
    if gpu is not None:
        return int(float(gpu[1]) * _UNITS[gpu[2]])
    lacks = isinstance(error, MemoryError | torch.OutOfMemoryError)
    return 0 if lacks or "can't allocate memory" in text else None


class OutOfMemoryError(WorkerError):
    """A worker's memory did not suffice; bytes that it held, needed at least, and was to need.

    `expected`: by the judge; 0 if unknown.
    """

    held = needed = 0
    expected = 0.0

    @classmethod
    def of(cls, error: WorkerError, by: str, held: int, asked: int, expected: float) -> Self:
        """From the error that the worker ended with."""
        hint = "give the device a smaller `memory` in the cluster, or leave more of it free, and "
        hint += "place the model again"
        made = cls("the worker ran out of memory", where=error.where, by=by, hint=hint)
        made.held, made.needed, made.expected = held, held + asked, expected
        return made


def out_of_memory(held: int, asked: int) -> RunError:
    """What a worker raises; `explained` reads it."""
    return RunError(f"out of memory: held {held} bytes, asked for {asked} more")


def explained(error: WorkerError, expected: float) -> WorkerError:
    """The error with what the judge expected, where the worker's memory did not suffice.

    `expected`: bytes; 0 if unknown.
    """
    stated, held, asked = _STATED.search(f"{error.by}\n{error.hint}"), 0, 0
    if stated is not None:
        held, asked = int(stated[1]), int(stated[2])
        by = f"it held {size(held)} and asked for {size(asked) + ' ' if asked else ''}more"
        over = held + asked - expected
        if expected and over > 0:
            by += f", {size(over)} above the {size(expected)} that the judge expected"
        elif expected:  # it ended with less than it was to have
            by += f"; the judge expected {size(expected)}, at least {size(-over)} of it are missing"
    elif error.by.startswith("MemoryError"):  # while it read the order
        by = f"{size(expected)} is what the judge expected" if expected else error.by
    elif expected and error.by == KILLED:
        by = f"{KILLED}; the judge expected {size(expected)} for it"
        return WorkerError(error.what, where=error.where, by=by, hint=error.hint)
    else:
        return error
    return OutOfMemoryError.of(error, by, held, asked, expected)


class MemoryUse:
    """Peaks by device: of a GPU what PyTorch has allocated, of a CPU the process's own memory.

    What a process had before it took its part (Python, PyTorch) is not counted, nor are the pages
    of library files that kernels touch when they are first called: all processes share them, and
    the system takes them away where memory is short.

    Attributes
    ----------
    limit_bytes
        What the part may hold, ``inf`` where there is plenty: then all that is freed is kept for
        the next step. Else see `spared`.
    """

    def __init__(self, torch_devices: Sequence[str]) -> None:
        self._devices = tuple(torch_devices)
        self._before = 0
        self.limit_bytes = math.inf
        self._statm: int | None = None
        with suppress(OSError):  # other systems have none
            self._statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)

    def begin(self) -> None:
        """Count from here; what was freed before goes back to the system, so that it counts anew.

        Otherwise a part would reuse the memory that the one before has left in the process, and
        its peak would not be seen.
        """
        return_freed_memory()
        for device in self._devices:
            if device.startswith("cuda"):
                torch.cuda.reset_peak_memory_stats(device)
        with suppress(OSError):  # sets the kernel's peak back to what there is now
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        self._before = self._now()

    def peaks(self) -> list[int]:
        """Bytes by device."""
        return [
            torch.cuda.max_memory_allocated(device)
            if device.startswith("cuda")
            # The peak of file pages is not known; they hardly shrink, so those of now stand for it.
            else max(0, _status("VmHWM") - _status("RssFile") - self._before)
            for device in self._devices
        ]

    def spared(self, call: Callable[..., Any], made_bytes: int) -> Callable[..., Any]:
        """The call, before which freed memory is given back where it would pass the limit.

        It may need twice what it makes: kernels copy what they read into another layout. Where the
        system does not say what a process holds, the call is as it was.
        """
        if self._statm is None:
            return call
        statm = self._statm

        def called(*args: Any, **kwargs: Any) -> Any:
            if _resident(statm) - self._before + 2 * made_bytes > self.limit_bytes:
                trim()
            return call(*args, **kwargs)

        return called

    @staticmethod
    def _now() -> int:
        """Bytes of this process without its pages of files."""
        return _status("VmRSS") - _status("RssFile")

    @contextmanager
    def shortage_reported(self) -> Iterator[None]:
        """Raise `out_of_memory` where the memory does not suffice."""
        try:
            yield
        except (MemoryError, RuntimeError) as error:
            asked = asked_bytes(error)
            if asked is None:
                raise
            gpu = self._devices[0].startswith("cuda")
            held = (
                torch.cuda.memory_allocated(self._devices[0])
                if gpu
                else max(0, self._now() - self._before)
            )
            raise out_of_memory(held, asked) from error


def return_freed_memory() -> None:
    """Hand all memory that nothing uses back to the system, where glibc can be asked for it."""
    gc.collect()
    trim()


def trim() -> None:
    """Hand back what was freed, where glibc can be asked for it."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def keep_freed_memory() -> None:
    """Ask glibc to keep what is freed for the next step instead of handing it back each time.

    Handing back costs a page fault for every 4 KiB of every activation in every step. Keeping it
    costs memory: free pieces lie between used ones, and a third more than what is used was seen.
    `MemoryUse.spared` hands it back where a device has no such room.
    """
    trim_threshold, mmap_max = -1, -4
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for setting, value in ((trim_threshold, 1 << 30), (mmap_max, 0)):
            mallopt(setting, value)


def _resident(statm: int) -> int:
    """Bytes of this process without its pages of files, within a few pages, in two microseconds.

    `statm`: the open file of the kernel.
    """
    _, resident, of_files, *_ = os.pread(statm, 128, 0).split()
    return (int(resident) - int(of_files)) * mmap.PAGESIZE


def _status(key: str) -> int:
    """Bytes by the kernel's account of this process; 0 where it gives none."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024
    return 0
