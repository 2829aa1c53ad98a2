"""Which devices can send to which."""

from __future__ import annotations

import numpy as np

from placewright.numerics.arrays import BoolArray
from placewright.operators.problem import OperatorProblem


def linked(problem: OperatorProblem) -> BoolArray:
    """Shape (m, m): whether a tensor can go from one device to another; False on the diagonal."""
    p = problem
    pairs: BoolArray = (p.channel >= 0) & np.isfinite(p.latency_s + p.seconds_per_byte)
    return pairs & ~np.eye(p.m, dtype=np.bool_)
