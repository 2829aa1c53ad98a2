"""Stages by CP-SAT, with numbers that are too large for the solver."""

from __future__ import annotations

import math

import numpy as np
import pytest

from placewright.operators.conformance import tiny
from placewright.operators.planners.pipelines.contiguous import IdealChain, best_stages
from placewright.operators.planners.pipelines.contraction import contract

pytest.importorskip("ortools")


def test_a_tensor_of_very_large_cost_is_not_cut() -> None:
    """1e16 s count as too long for any stage, not as nothing: the bound is the optimum."""
    problem = tiny(
        [[1.0, 1.0], [2.0, 2.0], [2.5, 2.5]],
        [(0, 1e16, [1]), (1, 1.0, [2])],
        objective="throughput",
        communication="star",
        contiguous=True,
        host_seconds_per_byte=[1.0, 1.0],
    )
    c = contract(problem, contiguous=True)
    start = IdealChain(5.5, np.zeros(3, dtype=np.int64), (0,))
    found = best_stages(c, start, seed=0, deadline_s=math.inf, workers=1)
    assert found.bound_s == pytest.approx(4.0, rel=1e-6)
    assert found.chain is not None
    assert found.chain.stage[c.node].tolist() == [0, 0, 1]
