"""One step as all workers saw it, on one clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

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
