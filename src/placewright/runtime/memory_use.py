"""Memory that a worker's devices have needed since they took their part of a model."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from placewright.runtime.out_of_memory import asked_bytes, out_of_memory


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
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _status(key: str) -> int:
    """Bytes by the kernel's account of this process; 0 where it gives none."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024
    return 0
