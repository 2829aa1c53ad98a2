"""`Stream`: requests with arrival, family, deadline, accuracy floor, sensitivities and size.

Arrival processes: Poisson, with rates by step, Markov-modulated (MMPP), gamma; and counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from placewright.errors import InputError
from placewright.numerics.arrays import FloatArray, IntArray, axes, check_axes, freeze_arrays

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

    arrival_s: FloatArray = field(metadata=axes("r"))
    family: IntArray = field(metadata=axes("r"))
    deadline_s: FloatArray = field(metadata=axes("r"))
    min_accuracy: FloatArray = field(metadata=axes("r"))
    time_sensitivity: FloatArray = field(metadata=axes("r"))
    accuracy_sensitivity: FloatArray = field(metadata=axes("r"))
    input_bytes: FloatArray = field(metadata=axes("r"))

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
    check_axes(s, {"r": len(s)}, "stream")
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


MOST = 20_000_000
"""Requests of one stream; more do not fit the memory of a small machine."""

IN_BURSTS, BURST_S = 0.2, 2.0
"""Of Markov-modulated arrivals: share of the time that is in bursts, mean seconds of one."""


MOST_STEPS = 1e15
"""Of rates that change: more are not counted exactly."""


def stepped_poisson(
    rng: np.random.Generator, rates_per_s: Sequence[float], step_s: float, duration_s: float
) -> FloatArray:
    """Poisson arrivals whose rate changes every `step_s`; after the last rate the first comes.

    Each gap is drawn with the rate at the previous arrival: t += exponential(1) / rate(t).
    """
    rates = _checked(rates_per_s, step_s, duration_s)
    if duration_s / step_s > MOST_STEPS:
        raise InputError(
            "steps are too short for the duration",
            where="step_s",
            by=f"{step_s:g} s in {duration_s:g} s",
            hint=f"at most {MOST_STEPS:.0e} steps",
        )
    if rates.min() <= 0:
        raise InputError("a rate must be above 0", where="rates", by=f"got {rates.min():g}")
    times: list[float] = []
    t = 0.0
    known, steps = rates.tolist(), len(rates)
    while True:
        for gap in rng.exponential(1.0, 4096).tolist():
            t += gap / known[int(t / step_s) % steps]
            if t >= duration_s:
                return np.array(times)
            times.append(t)


def poisson(rng: np.random.Generator, rate_per_s: float, duration_s: float) -> FloatArray:
    """Poisson arrivals at a constant rate."""
    return stepped_poisson(rng, [rate_per_s], duration_s, duration_s)


def counted(rng: np.random.Generator, counts: Sequence[int], step_s: float) -> FloatArray:
    """``counts[i]`` arrivals at uniform times of step i.

    Raises `InputError`: there would be too many requests.
    """
    if sum(counts) > MOST:
        by = f"{sum(counts):.3g}, at most {MOST}"
        raise InputError("too many requests", where="counts", by=by)
    parts = [np.sort(rng.random(n)) * step_s + k * step_s for k, n in enumerate(counts)]
    return np.concatenate(parts)


def mmpp(
    rng: np.random.Generator, rate_per_s: float, duration_s: float, burst: float = 3.0
) -> FloatArray:
    """Markov-modulated Poisson arrivals with two states and this mean rate.

    `burst`: rate in a burst over the rate outside of one; both states last exponentially long.
    """
    if not burst >= 1:
        raise InputError("burst must be at least 1", where="mmpp", by=f"got {burst:g}")
    _checked([rate_per_s], duration_s, duration_s)
    if duration_s / BURST_S > MOST:
        by = f"{duration_s / BURST_S:.3g}, at most {MOST}"
        raise InputError("too many bursts", where="mmpp", by=by, hint="check the unit of duration")
    calm = rate_per_s / (1 - IN_BURSTS + IN_BURSTS * burst)
    holds_s = (BURST_S * (1 - IN_BURSTS) / IN_BURSTS, BURST_S)
    t, state, parts = 0.0, int(rng.random() < IN_BURSTS), []
    while t < duration_s:
        until = min(duration_s, t + rng.exponential(holds_s[state]))
        count = rng.poisson((burst if state else 1.0) * calm * (until - t))
        parts.append(t + np.sort(rng.random(count)) * (until - t))
        t, state = until, 1 - state
    return np.concatenate(parts)


def gamma(
    rng: np.random.Generator, rate_per_s: float, duration_s: float, variation: float = 2.0
) -> FloatArray:
    """Arrivals with independent gamma gaps; `variation` is their coefficient of variation."""
    if not variation > 0:
        raise InputError("variation must be above 0", where="gamma", by=f"got {variation}")
    _checked([rate_per_s], duration_s, duration_s)
    shape = variation**-2
    times = np.zeros(0)
    while not len(times) or times[-1] < duration_s:
        gaps = rng.gamma(shape, 1.0 / (shape * rate_per_s), int(rate_per_s * duration_s) + 64)
        start = times[-1] if len(times) else 0.0
        times = np.concatenate([times, start + np.cumsum(gaps)])
    return times[times < duration_s]


def scaled(arrival_s: FloatArray, rate_per_s: float) -> tuple[FloatArray, float]:
    """Measured arrivals, from 0 and sped up to a mean rate; and how long they last."""
    if len(arrival_s) < 2 or arrival_s[-1] <= arrival_s[0]:
        raise InputError("a trace needs two requests at different times", where="trace")
    duration_s = len(arrival_s) / rate_per_s
    factor = duration_s / float(arrival_s[-1] - arrival_s[0])
    return (arrival_s - arrival_s[0]) * factor * (1 - 1e-12), duration_s


def _checked(rates_per_s: Sequence[float], step_s: float, duration_s: float) -> FloatArray:
    """Rates as an array.

    Raises `InputError`: a rate, step or duration is no positive number, or there would be too many
    requests.
    """
    rates = np.asarray(rates_per_s, dtype=np.float64)
    if not len(rates) or not np.isfinite(rates).all() or rates.min() < 0:
        raise InputError("rates must be numbers >= 0", where="rates")
    if not (0 < step_s < np.inf and 0 < duration_s < np.inf):
        by = f"got {step_s:g} s and {duration_s:g} s"
        raise InputError("step and duration must be above 0", where="rates", by=by)
    with np.errstate(over="ignore"):
        expected = rates.mean() * duration_s
    if expected > MOST:
        raise InputError("too many requests", where="rates", by=f"{expected:.3g}, at most {MOST}")
    return rates
