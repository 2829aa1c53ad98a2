"""One step as all workers saw it, on one clock; timers of operators.

A GPU runs kernels later than they are launched. Waiting for it after every operator would time the
wait; instead marks are put among its work, and read when the step is over.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np
import torch

from placewright.numerics.arrays import FloatArray
from placewright.runtime.host import Host


@dataclass(frozen=True, slots=True)
class StepLog:
    """What one device saw of one step, ``time.perf_counter()`` seconds of its machine.

    `transfers`: tensor (its position in the graph), target device, start and end.
    `scalars`: outputs of one element that were made here: the loss.
    `random`: state of the generator after the step, where it was given one to draw from.
    """

    start_s: float
    end_s: float
    operators: tuple[int, ...] = ()
    spans_s: tuple[float, ...] = ()
    transfers: tuple[tuple[int, int, float, float], ...] = ()
    scalars: Mapping[str, float] = field(default_factory=dict)
    random: bytes = b""

    @property
    def seconds(self) -> FloatArray:
        """What each of `operators` took, where the step was watched."""
        spans = np.asarray(self.spans_s).reshape(-1, 2)
        seconds: FloatArray = spans[:, 1] - spans[:, 0]
        return seconds


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step as all workers saw it, times from the step's start.

    `duration_s`: from the first start to the last end.
    `logs`: one per device, times still on a clock: that of the first device's machine.
    """

    origin_s: float
    duration_s: float
    logs: tuple[StepLog, ...]

    @property
    def scalars(self) -> dict[str, float]:
        """Outputs of one element by name: the loss."""
        return {name: value for log in self.logs for name, value in log.scalars.items()}

    @property
    def random(self) -> bytes:
        """State of the generator after the step, where the session was given one before it."""
        return next((log.random for log in self.logs if log.random), b"")


def step_record(logs: Sequence[StepLog], hosts: Sequence[Host]) -> StepRecord:
    """Put together what each device saw."""
    logs = aligned(logs, hosts)
    origin = min(log.start_s for log in logs)
    return StepRecord(origin, max(log.end_s for log in logs) - origin, logs)


def operator_seconds(records: Sequence[StepRecord], operators: int) -> FloatArray:
    """Median seconds of every operator over watched steps, shape (operators,)."""
    times = np.full((len(records), operators), np.nan)
    for row, record in zip(times, records, strict=True):
        for log in record.logs:
            row[list(log.operators)] = log.seconds
    median: FloatArray = np.median(times, axis=0)
    return median


def occupied_seconds(records: Sequence[StepRecord], operators: int) -> FloatArray:
    """Median seconds from each operator's start to the next one's, shape (operators,).

    With what the executor does between two operators, which `operator_seconds` leaves out: of steps
    in which one device has everything to do, the last operator until the step's end.
    """
    times = np.full((len(records), operators), np.nan)
    for row, record in zip(times, records, strict=True):
        for log in (log for log in record.logs if log.operators):
            starts = np.asarray(log.spans_s).reshape(-1, 2)[:, 0]
            row[list(log.operators)] = np.diff(starts, append=log.end_s)
    median: FloatArray = np.median(times, axis=0)
    return median


def aligned(logs: Sequence[StepLog], hosts: Sequence[Host]) -> tuple[StepLog, ...]:
    """The logs of one step, all on the clock of the first worker's host."""
    first: dict[str, float] = {}
    for log, host in zip(logs, hosts, strict=True):
        first.setdefault(host.boot, log.start_s)
    origin = logs[0].start_s
    return tuple(
        _shifted(log, origin - first[host.boot]) for log, host in zip(logs, hosts, strict=True)
    )


def _shifted(log: StepLog, by_s: float) -> StepLog:
    if by_s == 0:
        return log
    return replace(
        log,
        start_s=log.start_s + by_s,
        end_s=log.end_s + by_s,
        spans_s=tuple(t + by_s for t in log.spans_s),
        transfers=tuple((tag, to, a + by_s, b + by_s) for tag, to, a, b in log.transfers),
    )


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
