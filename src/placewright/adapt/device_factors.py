"""Device factors: how many times longer a device takes than predicted, and how sure that is.

The one estimator of calibration (whole steps on each device), interference (devices that compute
together), the online profile (sampled steps of a run) and measured nodes and links of wing 3.

From the samples of one device against their prediction, taken in one or more turns::

    factor = min over turns of (median of the turn's samples) / prediction
    error  = 1.2533 * 1.4826 * MAD / sqrt(samples)    of that turn, relative to the factor

The median ignores single disturbed samples, the least turn ignores disturbed turns: other load can
only add time. ``1.4826 * MAD`` (median absolute deviation) estimates a standard deviation, and a
median's standard error is 1.2533 = sqrt(pi / 2) times that of a mean, both for normal noise. One
sample says nothing of its error, which is then ``inf``.

A device without samples gets the median factor of the others: a profile is assumed to be as wrong
about it as about them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from placewright.numerics.arrays import BoolArray, FloatArray

SIGMA_PER_MAD = 1.4826
"""Standard deviation over median absolute deviation, for normal noise."""

MEDIAN_ERROR = 1.2533
"""Standard error of a median over that of a mean, sqrt(pi / 2) for normal noise."""


@dataclass(frozen=True, slots=True)
class DeviceFactor:
    """Measured over predicted seconds.

    `error`: relative standard error; ``inf`` where it is unknown.
    """

    value: float
    error: float = math.inf


def device_factor(turns: Sequence[ArrayLike], predicted_s: float = 1.0) -> DeviceFactor:
    """Estimate one device's factor.

    `turns`: seconds of every sample, turn by turn; each turn has at least one.
    `predicted_s`: prediction of a sample, seconds; above 0.
    """
    samples = min((np.asarray(t, dtype=np.float64) for t in turns), key=np.median)
    middle = float(np.median(samples))
    if len(samples) < 2 or middle <= 0:
        return DeviceFactor(middle / predicted_s)
    scatter = SIGMA_PER_MAD * float(np.median(np.abs(samples - middle))) / middle
    return DeviceFactor(middle / predicted_s, MEDIAN_ERROR * scatter / math.sqrt(len(samples)))


def usual_factor(factors: Sequence[DeviceFactor]) -> float:
    """The median factor, for devices without samples; 1 where there is none."""
    return float(np.median([factor.value for factor in factors])) if factors else 1.0


def filled(known: Mapping[int, DeviceFactor], devices: int) -> FloatArray:
    """Shape (devices,): the known factors, `usual_factor` of them elsewhere."""
    usual = usual_factor(list(known.values()))
    return np.array([known[d].value if d in known else usual for d in range(devices)])


SETTLING = 5
"""Steps whose median is the reference of a new plan."""

MEMORY = 40
"""Steps that the spread is taken from: more than twice as many as a change needs to be seen."""


def departed(measured: FloatArray, expected: FloatArray, tolerance: float) -> BoolArray:
    """Whether measurements are off by more than `tolerance`, relative to what is expected.

    False where nothing was measured (``nan``); any time is off where none was expected.
    """
    found: BoolArray = np.abs(measured - expected) > tolerance * expected
    return found


@dataclass(slots=True)
class Drift:
    """Compares the median of the last steps with a reference of the same plan.

    A change counts when it exceeds the tolerance and three standard deviations of such a median,
    as the steps themselves scatter.

    `tolerance`: least relative change that counts, in both directions.
    `window`: steps of the running median: a burst shorter than half of it is not seen.
    """

    tolerance: float = 0.1
    window: int = 5
    reference_s: float = float("nan")
    _recent: deque[float] = field(init=False)
    _first: list[float] = field(init=False, default_factory=list)
    _past: deque[float] = field(init=False)

    def __post_init__(self) -> None:
        self._recent = deque(maxlen=self.window)
        self._past = deque(maxlen=MEMORY)

    def restart(self) -> None:
        """Take a new reference: a new plan is in force, or what has changed is known."""
        self.reference_s = float("nan")
        self._recent.clear()
        self._first.clear()
        self._past.clear()

    def expect(self, seconds: float) -> None:
        """Set the reference: the plan in force was measured before."""
        self.restart()
        # Settled at once: these stand for the steps from which it is known.
        self._first += [seconds] * SETTLING
        self.reference_s = seconds

    def accept(self) -> None:
        """Make the present step time the reference: a further change is seen at once."""
        self.reference_s = self.recent_s
        self._past.clear()
        # What the steps scatter by at the new level; the old level would count as scatter.
        self._past.extend(self._recent)
        self._recent.clear()

    def note(self, seconds: float) -> bool:
        """Add a step; whether the running median has departed from the reference."""
        self._past.append(seconds)
        if len(self._first) < SETTLING:
            self._first.append(seconds)
            self.reference_s = float(np.median(self._first))
            return False
        self._recent.append(seconds)
        if len(self._recent) < self.window:
            return False
        return abs(self.change) > max(self.tolerance, self.scatter)

    @property
    def scatter(self) -> float:
        """Three relative standard deviations of a running median, from the steps' own spread."""
        past = np.asarray(self._past)
        middle = np.median(past)
        deviation = SIGMA_PER_MAD * np.median(np.abs(past - middle)) / middle
        return float(3.0 * MEDIAN_ERROR * deviation / np.sqrt(self.window))

    @property
    def settled(self) -> bool:
        """Whether the reference stands."""
        return len(self._first) >= SETTLING

    @property
    def recent_s(self) -> float:
        """Median of the last steps."""
        return float(np.median(self._recent)) if self._recent else self.reference_s

    @property
    def change(self) -> float:
        """``recent / reference - 1``."""
        return self.recent_s / self.reference_s - 1.0
