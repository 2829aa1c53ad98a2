"""Large-neighbourhood search on throughput: three devices at a time are planned anew by SCIP."""

from __future__ import annotations

import time
from itertools import combinations

from placewright.arrays import IntArray
from placewright.operators._star_loads import star_loads
from placewright.operators.planners._contraction import Contraction
from placewright.operators.planners._free_cuts import best_cuts
from placewright.operators.problem import OperatorProblem

_SHARE_S = 5.0
"""Seconds that one trio may take."""


def by_trios(
    problem: OperatorProblem, c: Contraction, device: IntArray, *, seed: int, deadline_s: float
) -> IntArray:
    """Devices of the nodes, no worse than `device`, which fits.

    The most loaded device is in every trio: without it nothing gets better. The first trio that
    helps is taken and the search begins again; it ends where none does, or at the deadline.
    """
    best = device
    better = True
    while better:
        better = False
        load_s = star_loads(problem, c.placement(best)).load_s
        worst = int(load_s.argmax())
        others = sorted((d for d in range(problem.m) if d != worst), key=lambda d: load_s[d])
        for pair in combinations(others, min(2, len(others))):
            until = min(deadline_s, time.perf_counter() + _SHARE_S)
            if time.perf_counter() >= deadline_s:
                break
            value = float(load_s.max())
            among = (worst, *pair)
            found, _ = best_cuts(c, best, value, seed=seed, deadline_s=until, among=among)
            if found is not None and _value(problem, c, found) < value * (1 - 1e-9):
                best, better = found, True
                break
    return best


def _value(problem: OperatorProblem, c: Contraction, device: IntArray) -> float:
    return float(star_loads(problem, c.placement(device)).load_s.max())
