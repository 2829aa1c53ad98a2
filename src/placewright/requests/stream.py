"""`Stream`: requests with arrival, family, deadline, accuracy floor, sensitivities and size."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from placewright.errors import InputError
from placewright.numerics.arrays import FloatArray, IntArray, freeze_arrays

COLUMNS = (
    "arrival_s",
    "deadline_s",
    "min_accuracy",
    "time_sensitivity",
    "accuracy_sensitivity",
    "input_bytes",
)


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """Requests in order of arrival; shape (requests,) each.

    Attributes
    ----------
    arrival_s
        Points in time, from 0.
    family
        Index of the service's families.
    deadline_s
        Seconds after the arrival.
    min_accuracy
        What an answer must have; 0: any.
    time_sensitivity, accuracy_sensitivity
        In [0, 1]: how much a late, an inaccurate answer matters; used by the thesis's two steps.
    input_bytes
        What is sent to the server.
    """

    arrival_s: FloatArray
    family: IntArray
    deadline_s: FloatArray
    min_accuracy: FloatArray
    time_sensitivity: FloatArray
    accuracy_sensitivity: FloatArray
    input_bytes: FloatArray

    def __post_init__(self) -> None:
        freeze_arrays(self)
        _check(self)

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def due_s(self) -> FloatArray:
        """Deadlines as points in time."""
        due: FloatArray = self.arrival_s + self.deadline_s
        return due

    def taken(self, positions: Any, arrival_s: FloatArray) -> Stream:
        """The requests at these positions, an index or a slice, arriving at other times."""
        columns = {item.name: getattr(self, item.name)[positions] for item in fields(self)}
        return Stream(**columns | {"arrival_s": arrival_s})

    def rates(self, families: int, duration_s: float) -> FloatArray:
        """Shape (families,): requests per second of each family."""
        counts: FloatArray = np.bincount(self.family, minlength=families) / duration_s
        return counts


def stream_of(arrival_s: Any, deadline_s: Any, family: Any = 0, **given: Any) -> Stream:
    """Requests without an accuracy floor, sensitivities and bytes, unless `given`."""
    arrival = np.asarray(arrival_s, dtype=np.float64)
    n = len(arrival)
    usual: dict[str, Any] = {
        "min_accuracy": 0.0,
        "time_sensitivity": 0.5,
        "accuracy_sensitivity": 0.5,
        "input_bytes": 0.0,
    }
    columns = {"deadline_s": deadline_s, "family": family} | usual | given
    return Stream(arrival, **{key: np.broadcast_to(value, n) for key, value in columns.items()})


def _check(s: Stream) -> None:
    """Raise where a request is wrong.

    Raises `InputError`, which names the first request that is wrong, and its value.
    """
    n = len(s.arrival_s)
    for key in (*COLUMNS, "family"):
        if getattr(s, key).shape != (n,):
            by = f"{getattr(s, key).shape}, expected ({n},)"
            raise InputError(f"{key} has the wrong shape", where="stream", by=by)
    for key in COLUMNS:
        values = getattr(s, key)
        _refuse(key, ~(np.isfinite(values) & (values >= 0)), values, "must be a number >= 0")
    _refuse("deadline_s", s.deadline_s <= 0, s.deadline_s, "must be above 0")
    for key in COLUMNS[2:5]:
        _refuse(key, getattr(s, key) > 1, getattr(s, key), "must be in [0, 1]")
    late = np.flatnonzero(np.diff(s.arrival_s) < 0)
    if len(late):
        raise InputError("requests are not in order of arrival", where=f"request {late[0] + 1}")


def _refuse(key: str, bad: Any, values: FloatArray, why: str) -> None:
    if bad.any():
        k = int(bad.argmax())
        raise InputError(f"{key} {why}", where=f"request {k}", by=f"got {values[k]}")
