"""When operators began and ended: by the host's clock, or by a GPU's own.

A GPU runs kernels later than they are launched. Waiting for it after every operator would time the
wait; instead marks are put among its work, and read when the step is over.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, final

import torch


class Timer:
    """Marks in the work of one device, read in ``time.perf_counter()`` seconds.

    This one is for devices whose calls return when they are done.
    """

    def start(self) -> None:
        """Begin a step."""

    def mark(self) -> Any:
        """Note when the device will have done everything launched so far."""
        return time.perf_counter()

    def seconds(self, marks: Sequence[Any]) -> tuple[float, ...]:
        """When the device reached these marks; only after `settle`."""
        return tuple(marks)

    def settle(self) -> None:
        """Wait until the device has done everything launched so far."""


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
        """Tie the GPU's clock to the host's by a first mark on an idle GPU."""
        self.settle()
        self._origin = self.mark()
        # The GPU is idle, so the mark is reached when the host sees it, but for some microseconds.
        self._origin.synchronize()
        self._origin_s = time.perf_counter()

    def mark(self) -> torch.cuda.Event:
        """Record an event behind everything launched so far."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def seconds(self, marks: Sequence[torch.cuda.Event]) -> tuple[float, ...]:
        """See `Timer.seconds`; events count milliseconds."""
        return tuple(self._origin_s + 1e-3 * self._origin.elapsed_time(m) for m in marks)

    def settle(self) -> None:
        """Wait for all streams of the device."""
        torch.cuda.synchronize(self._device)


def timer_of(torch_device: str) -> Timer:
    """The timer for a device."""
    return CudaTimer(torch_device) if torch_device.startswith("cuda") else Timer()
