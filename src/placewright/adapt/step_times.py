"""Step times of several candidates, measured in turns: how far one is behind, and how surely.

Everything is in logarithms: differences are relative. A candidate's time is the median of its
steps. The error of a median comes from the scatter of steps within a turn and from that of the
turns of one candidate, whichever is larger: a machine that is busy for a second slows whole turns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from placewright.adapt.device_factors import MEDIAN_ERROR, SIGMA_PER_MAD
from placewright.numerics.arrays import FloatArray

LEAST_SCATTER = 0.01
"""Of steps; four that happen to agree do not prove that a machine is free of noise."""

LEAST_FREEDOM = 3
"""Turns beyond each candidate's first one, in all, from which their scatter is used."""


class StepTimes:
    """Step times of `count` candidates, turn by turn."""

    def __init__(self, count: int) -> None:
        self._turns: list[list[FloatArray]] = [[] for _ in range(count)]

    def add(self, k: int, seconds: Sequence[float]) -> None:
        """Add a turn of candidate `k`, step by step."""
        self._turns[k].append(np.log(np.asarray(seconds, dtype=np.float64)))

    def forget_last(self, k: int) -> None:
        """Remove the last turn of candidate `k`."""
        self._turns[k].pop()

    def turns(self, k: int) -> int:
        """Number of turns of candidate `k`."""
        return len(self._turns[k])

    def median_s(self, k: int) -> float:
        """Median seconds per step, ``inf`` before the first turn."""
        return math.exp(self._median(k)) if self._turns[k] else math.inf

    def least_s(self, k: int) -> float:
        """Median seconds per step of the fastest turn, ``inf`` before the first one."""
        medians = (math.exp(np.median(turn)) for turn in self._turns[k])
        return min(medians, default=math.inf)

    def behind(self, k: int, other: int) -> float:
        """Relative difference to the step time of `other`, over turns that both had."""
        # In turns that both had the machine was equally busy for both.
        both = min(self.turns(k), self.turns(other))
        return self._median(k, both) - self._median(other, both)

    def error(self, k: int, other: int) -> float:
        """Standard error of `behind`."""
        return math.sqrt(self._variance(k) + self._variance(other))

    def shift(self, k: int) -> tuple[float, float]:
        """Relative difference of the last turn to those before, and its standard error.

        Both are ``nan`` where there is none before.
        """
        if self.turns(k) < 2:
            return math.nan, math.nan
        last, before = self._turns[k][-1], np.concatenate(self._turns[k][:-1])
        steps = 1.0 / len(last) + 1.0 / len(before)
        error = MEDIAN_ERROR * self._scatter() * math.sqrt(steps)
        return float(np.median(last) - np.median(before)), error

    def _median(self, k: int, turns: int | None = None) -> float:
        return float(np.median(np.concatenate(self._turns[k][:turns])))

    def _variance(self, k: int) -> float:
        steps = sum(len(turn) for turn in self._turns[k])
        within = (MEDIAN_ERROR * self._scatter()) ** 2 / steps
        return max(within, self._turn_variance() / self.turns(k))

    def _scatter(self) -> float:
        """Relative standard deviation of a step within its turn, robust against outliers."""
        apart = [np.abs(t - np.median(t)) for turns in self._turns for t in turns if len(t) > 1]
        if not apart:
            return math.inf
        lost = np.mean([len(t) / (len(t) - 1) for t in apart])  # the median was taken from them
        return max(LEAST_SCATTER, float(SIGMA_PER_MAD * np.median(np.concatenate(apart)) * lost))

    def _turn_variance(self) -> float:
        """Variance of a turn's median around its candidate's, 0 with too few turns to estimate."""
        sums, freedom = 0.0, 0
        for turns in self._turns:
            if len(turns) > 1:
                medians = np.array([np.median(turn) for turn in turns])
                sums += float(np.sum((medians - medians.mean()) ** 2))
                freedom += len(turns) - 1
        return sums / freedom if freedom >= LEAST_FREEDOM else 0.0


def likely_gain(behind: float, error: float) -> float:
    """Expected relative gain of learning which of two candidates is faster.

    The one that is `behind` may be ahead in truth: the mean of ``max(0, x)`` for x normal around
    ``-behind`` with this standard error.
    """
    if error <= 0:
        return max(0.0, -behind)
    z = behind / error
    density = math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    return error * density - behind * 0.5 * math.erfc(z / math.sqrt(2.0))
