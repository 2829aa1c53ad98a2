"""When operators began and ended: by the host's clock, or by a GPU's own.

A GPU does what it is asked for later. Waiting for it after every operator would time the wait;
instead, marks are put among its work, and read when the step is over.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, final

import torch


class Timer(ABC):
    """Marks in the work of one device, read in ``time.perf_counter()`` seconds."""

    @abstractmethod
    def start(self) -> None:
        """Begin a step."""

    @abstractmethod
    def mark(self) -> Any:
        """Note where the device's work stands when everything asked for so far is done."""

    @abstractmethod
    def seconds(self, marks: Sequence[Any]) -> tuple[float, ...]:
        """When the device was there; only after `settle`."""

    @abstractmethod
    def settle(self) -> None:
        """Wait until the device has done what it was asked for."""


@final
class HostTimer(Timer):
    """For devices whose calls return when they are done."""

    def start(self) -> None:
        """Nothing to do."""

    def mark(self) -> float:
        """Now."""
        return time.perf_counter()

    def seconds(self, marks: Sequence[float]) -> tuple[float, ...]:
        """As they were noted."""
        return tuple(marks)

    def settle(self) -> None:
        """Nothing is under way."""


@final
class CudaTimer(Timer):
    """CUDA events on the stream that computes.

    An operator's time begins where the one before it ends, or where the GPU has nothing to do
    until the host has started the operator's kernels: a launch that keeps a GPU waiting counts.
    """

    def __init__(self, torch_device: str) -> None:
        self._device = torch.device(torch_device)
        self._origin: Any = None
        self._origin_s = 0.0

    def start(self) -> None:
        """A first mark on an idle GPU ties its clock to the host's."""
        self.settle()
        self._origin = self.mark()
        self._origin.synchronize()
        self._origin_s = time.perf_counter()

    def mark(self) -> torch.cuda.Event:
        """An event behind everything asked for so far."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def seconds(self, marks: Sequence[torch.cuda.Event]) -> tuple[float, ...]:
        """Events count milliseconds."""
        return tuple(self._origin_s + 1e-3 * self._origin.elapsed_time(m) for m in marks)

    def settle(self) -> None:
        """All streams of the device."""
        torch.cuda.synchronize(self._device)


def timer_of(torch_device: str) -> Timer:
    """The timer for a device."""
    return CudaTimer(torch_device) if torch_device.startswith("cuda") else HostTimer()
