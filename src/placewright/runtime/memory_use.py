"""Memory that a worker's devices have needed since they took their part of a model."""

from __future__ import annotations

import ctypes
import gc
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from placewright.errors import RunError

OUT_OF_MEMORY = "out of memory"

_STATED = re.compile(OUT_OF_MEMORY + r": held (\d+) bytes, asked for (\d+) more")

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class MemoryUse:
    """Peaks by device: of a GPU what PyTorch has allocated, of a CPU the process's own memory.

    What a process had before it took its part (Python, PyTorch) is not counted, nor are the pages
    of library files that kernels touch when they are first called: all processes share them, and
    the system takes them away where memory is short.
    """

    def __init__(self, torch_devices: Sequence[str]) -> None:
        self._devices = tuple(torch_devices)
        self._before = 0

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

    @staticmethod
    def _now() -> int:
        """Bytes of this process without its pages of files."""
        return _status("VmRSS") - _status("RssFile")

    @contextmanager
    def told(self) -> Iterator[None]:
        """Raise a `RunError` that `stated` reads where the memory does not suffice."""
        try:
            yield
        except (MemoryError, RuntimeError) as error:
            asked = _asked(error)
            if asked is None:
                raise
            gpu = self._devices[0].startswith("cuda")
            held = (
                torch.cuda.memory_allocated(self._devices[0])
                if gpu
                else max(0, self._now() - self._before)
            )
            what = f"{OUT_OF_MEMORY}: held {held} bytes, asked for {asked} more"
            raise RunError(what) from error


def return_freed_memory() -> None:
    """Hand all memory that nothing uses back to the system, where glibc can be asked for it."""
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def stated(traceback: str) -> tuple[int, int] | None:
    """Bytes held and asked for by a worker that ran out of memory, from its traceback."""
    found = _STATED.search(traceback)
    return None if found is None else (int(found[1]), int(found[2]))


def _status(key: str) -> int:
    """Bytes by the kernel's account of this process; 0 where it gives none."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024
    return 0


def _asked(error: BaseException) -> int | None:
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
