"""Large-neighbourhood search on throughput: three devices at a time are planned anew by SCIP."""

from __future__ import annotations

import time
from itertools import combinations

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.operators.planners.pipelines.contraction import Contraction
from placewright.operators.planners.pipelines.slots.program import best_cuts, plan_of
from placewright.operators.problem import OperatorProblem
from placewright.operators.simulation.star.loads import star_loads

_SHARE_S = 5.0
"""Seconds that one trio may take."""


def by_trios(
    problem: OperatorProblem, c: Contraction, slot: IntArray, *, seed: int, deadline_s: float
) -> tuple[IntArray, bool]:
    """Slots of the nodes, no worse than `slot`, which fits; whether Ctrl-C came.

    Slots are devices here.

    The most loaded device is in every trio: without it nothing gets better. The first trio that
    helps is taken and the search begins again; it ends where none does, or at the deadline.
    """
    best, better = slot, True
    try:
        while better:
            better = False
            load_s = _loads(problem, c, best)
            worst = int(load_s.argmax())
            others = sorted((d for d in range(problem.m) if d != worst), key=lambda d: load_s[d])
            for pair in combinations(others, min(2, len(others))):
                until = min(deadline_s, time.perf_counter() + _SHARE_S)
                if time.perf_counter() >= deadline_s:
                    break
                value = float(load_s.max())
                among = (worst, *pair)
                found, _, interrupted = best_cuts(
                    c, best, value, seed=seed, deadline_s=until, among=among
                )
                if found is not None and _loads(problem, c, found).max() < value * (1 - 1e-9):
                    best, better = found, True
                if interrupted:
                    return best, True
                if better:
                    break
    except KeyboardInterrupt:
        return best, True
    return best, False


def _loads(problem: OperatorProblem, c: Contraction, slot: IntArray) -> FloatArray:
    """Shape (slots,), the load of every slot."""
    devices = np.concatenate([np.array(devices) for devices in c.pools])
    load_s: FloatArray = star_loads(problem, plan_of(c, slot)).load_s[devices]
    return load_s
