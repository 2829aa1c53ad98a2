"""Format means with their 95 % intervals, by Student's t."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean

from placewright.measurement import half_interval


def geometric_mean(logs: Sequence[float], digits: int = 3) -> str:
    """Geometric mean of values given by their logarithms, with its interval from two values on."""
    middle = mean(logs)
    if len(logs) < 2:
        return f"{math.exp(middle):.{digits}f}"
    half = half_interval(logs)
    low, high = math.exp(middle - half), math.exp(middle + half)
    return f"{math.exp(middle):.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"
