"""Value and bytes over of many placements whose transfers go through host memory (star)."""

from __future__ import annotations

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray, thawed
from placewright.numerics.njit import njit_cached
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem
from placewright.operators.simulation.loads import star_value
from placewright.operators.simulation.star.calls import Calls, calls_of, most_calls, simulate_calls
from placewright.operators.simulation.star.latency import accelerators, is_star_latency, units
from placewright.operators.sizes import room_bytes


def star_scores(
    problem: OperatorProblem, placements: IntArray, calls: IntArray | None = None
) -> tuple[FloatArray, IntArray]:
    """Shape (k,) each: seconds, ``inf`` where a call would wait for itself, and bytes over.

    Parameters
    ----------
    placements
        Shape (k, n), devices that can run the operators.
    calls
        Shape (k, n), the call of each operator, without gaps; ``None`` for the earliest ones.
    """
    p, rows = problem, np.ascontiguousarray(placements, dtype=np.int64)
    held = np.ceil(p.resident_bytes)
    resident = np.array([np.bincount(row, held, p.m) for row in rows]).reshape(-1, p.m)
    over = np.maximum(0, resident.astype(np.int64) - room_bytes(p)).sum(axis=1)
    refused = ~np.isfinite(p.compute_s[np.arange(p.n), rows]).all(axis=1)
    if not is_star_latency(p):
        value_s = np.array([star_value(p, OperatorPlan(row)) for row in rows])
    elif calls is None:
        unit = np.array([units(p, OperatorPlan(row)) for row in rows]).reshape(rows.shape)
        value_s = _ends(calls_of(p), rows, unit)
    else:
        unit = np.where(accelerators(p)[rows], rows * most_calls(p) + calls, -1)
        value_s = _ends(calls_of(p), rows, thawed(unit))
    return np.where(refused, np.inf, value_s), over


@njit_cached
def _ends(c: Calls, placements: IntArray, unit: IntArray) -> FloatArray:
    """When the last operator of each placement ends, ``inf`` where one waits for itself."""
    value_s = np.zeros(len(placements))
    for k in range(len(placements)):
        ready_s, _, _ = simulate_calls(c, placements[k], unit[k])
        for end_s in ready_s:
            if np.isnan(end_s):
                value_s[k] = np.inf
            value_s[k] = max(value_s[k], end_s)
    return value_s
