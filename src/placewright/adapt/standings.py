"""What a few noisy step times say: which plan is ahead, by how much, and how sure that is.

Everything is in logarithms: differences are relative. A plan's time is the median of its steps.
The error of a median comes from the scatter of steps within a turn and from that of the turns of
one plan, whichever is larger: a machine that is busy for a second slows whole turns down.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from placewright.numerics.arrays import FloatArray

LEAST_SCATTER = 0.01
"""Of steps; four that happen to agree do not prove that a machine is silent."""

MEDIAN_ERROR = 1.2533
"""Standard error of a median over that of a mean, sqrt(pi / 2) for normal noise."""

LEAST_FREEDOM = 3
"""Turns beyond each plan's first one, in all, from which their scatter is believed."""


@dataclass(slots=True)
class Standings:
    """Seconds of every plan, turn by turn.

    Parameters
    ----------
    plans
        How many there are.
    """

    plans: int
    _turns: list[list[FloatArray]] = field(init=False)

    def __post_init__(self) -> None:
        self._turns = [[] for _ in range(self.plans)]

    def note(self, plan: int, seconds: Sequence[float]) -> None:
        """A turn of `plan`, step by step."""
        self._turns[plan].append(np.log(np.asarray(seconds, dtype=np.float64)))

    def forget_last(self, plan: int) -> None:
        """The last turn of `plan` does not count."""
        self._turns[plan].pop()

    def turns(self, plan: int) -> int:
        """How many turns it had."""
        return len(self._turns[plan])

    def median_s(self, plan: int) -> float:
        """Seconds per step of a plan, ``inf`` for one that had no turn yet."""
        return math.exp(self._middle(plan)) if self._turns[plan] else math.inf

    def behind(self, plan: int, other: int) -> float:
        """How much longer than `other` it takes, relative; over turns that both had."""
        both = min(self.turns(plan), self.turns(other))
        return self._middle(plan, both) - self._middle(other, both)

    def error(self, plan: int, other: int) -> float:
        """Standard error of `behind`."""
        return math.sqrt(self._variance(plan) + self._variance(other))

    def shift(self, plan: int) -> tuple[float, float]:
        """How the last turn of `plan` differs from those before, relative, and its error.

        Not a number where there is none before.
        """
        if self.turns(plan) < 2:
            return math.nan, math.nan
        last, before = self._turns[plan][-1], np.concatenate(self._turns[plan][:-1])
        steps = 1.0 / len(last) + 1.0 / len(before)
        error = MEDIAN_ERROR * self._scatter() * math.sqrt(steps)
        return float(np.median(last) - np.median(before)), error

    def _middle(self, plan: int, turns: int | None = None) -> float:
        return float(np.median(np.concatenate(self._turns[plan][:turns])))

    def _variance(self, plan: int) -> float:
        steps = sum(len(turn) for turn in self._turns[plan])
        within = (MEDIAN_ERROR * self._scatter()) ** 2 / steps
        return max(within, self._turn_variance() / self.turns(plan))

    def _scatter(self) -> float:
        """Relative standard deviation of a step within its turn, outliers aside."""
        apart = [np.abs(t - np.median(t)) for turns in self._turns for t in turns if len(t) > 1]
        if not apart:
            return math.inf
        lost = np.mean([len(t) / (len(t) - 1) for t in apart])  # the median was taken from them
        return max(LEAST_SCATTER, float(1.4826 * np.median(np.concatenate(apart)) * lost))

    def _turn_variance(self) -> float:
        """Variance of a turn's median around its plan's, 0 where too few turns would say it."""
        sums, freedom = 0.0, 0
        for turns in self._turns:
            if len(turns) > 1:
                medians = np.array([np.median(turn) for turn in turns])
                sums += float(np.sum((medians - medians.mean()) ** 2))
                freedom += len(turns) - 1
        return sums / freedom if freedom >= LEAST_FREEDOM else 0.0


def likely_gain(behind: float, error: float) -> float:
    """What knowing which of two plans is faster would gain on average, relative.

    The one that is `behind` may be ahead in truth: the mean of ``max(0, x)`` for x normal around
    ``-behind`` with this standard error.
    """
    if error <= 0:
        return max(0.0, -behind)
    z = behind / error
    density = math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    return error * density - behind * 0.5 * math.erfc(z / math.sqrt(2.0))
