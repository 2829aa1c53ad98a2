"""SpeedUp: how much faster a plan is than its baseline, with a 95 % interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median, stdev
from typing import Any

T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Quantile 0.975 of Student's t for 1, 2, ... degrees of freedom."""


def half_interval(values: Sequence[float]) -> float:
    """Half the 95 % interval of the mean of two values or more, by Student's t."""
    return quantile_95(len(values) - 1) * stdev(values) / math.sqrt(len(values))


def quantile_95(freedom: int) -> float:
    """Of Student's t; that of nine degrees of freedom for more."""
    return T_95[min(freedom, len(T_95)) - 1]


@dataclass(frozen=True, slots=True)
class SpeedUp:
    """How many times as fast as the baseline a plan is.

    Attributes
    ----------
    ratio
        Step of the baseline over step of the plan.
    low, high
        95 % interval, ``nan`` where there was one round only.
    rounds
        Pairs of blocks of steps, one block of each right after the other.
    """

    ratio: float
    low: float
    high: float
    rounds: int

    @property
    def decided(self) -> bool:
        """Whether the interval leaves 1 out: the difference is more than noise."""
        return self.low > 1.0 or self.high < 1.0

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self) | {"decided": self.decided}


def speed_up(plan: Sequence[Sequence[float]], baseline: Sequence[Sequence[float]]) -> SpeedUp:
    """Compare step times that were measured in turns.

    Every round gives the ratio of its two medians; the answer is their geometric mean, with the
    interval of Student's t for the logarithms. What a machine does to both blocks of a round
    cancels.

    `plan`, `baseline`: seconds of every step, by round.
    """
    pairs = zip(plan, baseline, strict=True)
    logs = [math.log(median(other) / median(own)) for own, other in pairs]
    mean = sum(logs) / len(logs)
    if len(logs) < 2:
        return SpeedUp(math.exp(mean), math.nan, math.nan, len(logs))
    half = half_interval(logs)
    return SpeedUp(math.exp(mean), math.exp(mean - half), math.exp(mean + half), len(logs))
