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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from placewright.numerics.arrays import FloatArray

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
