"""One step as all workers saw it, on one clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from placewright.numerics.arrays import FloatArray
from placewright.runtime.device_group import StepLog
from placewright.runtime.host import Host
from placewright.runtime.step.clock import aligned


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step as all workers saw it, times from the step's start.

    Attributes
    ----------
    duration_s
        From the first start to the last end.
    logs
        One per device, times still on a clock: that of the first device's machine.
    """

    origin_s: float
    duration_s: float
    logs: tuple[StepLog, ...]

    @property
    def scalars(self) -> dict[str, float]:
        """Outputs of one element by name: the loss."""
        return {name: value for log in self.logs for name, value in log.scalars.items()}


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
