"""Loads of ideals stay exact beside very large costs."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.operators.conformance import tiny
from placewright.operators.judge import judge
from placewright.operators.planners.contiguous_dp import IdealDp
from placewright.operators.problem import OperatorProblem
from placewright.planning.contract import Context
from tests.operators.star_cases import best_value, star


def test_a_time_that_rounds_the_rest_away_leaves_no_residue() -> None:
    """1e10 s comes into a walk beside 1e-6 s and goes again: the bound is not above the value."""
    problem = tiny(
        [[1e-6, 1e10], [1e10, 1.0], [1.0, 1e10], [1e-6, 1.0]],
        [(1, 0.0, [2])],
        objective="throughput",
        communication="star",
        contiguous=True,
        host_seconds_per_byte=[0.0, 1.0],
    )
    proposal = IdealDp()(problem, Context())
    plan = proposal.plan
    assert proposal.bound <= judge(problem, plan).value == pytest.approx(1.000002, rel=1e-12)


def test_loads_are_exact_beside_very_large_costs() -> None:
    """With huge times and tensors among small ones: brute force, and a proof."""
    for seed in range(40):
        problem = never(seed)
        wanted = best_value(problem)
        proposal = IdealDp()(problem, Context())
        plan = proposal.plan
        assert judge(problem, plan).value == pytest.approx(wanted, rel=1e-9)
        assert wanted * (1 - 1e-9) <= proposal.bound <= wanted


def never(seed: int) -> OperatorProblem:
    """A random pipeline in which some times are 1e13 s and some tensors 1e16 bytes."""
    rng = np.random.default_rng(seed)
    problem = star(seed, contiguous=True)
    compute = np.where(np.isfinite(problem.compute_s), problem.compute_s, 3.0) + rng.random()
    compute[rng.random(compute.shape) < 0.3] = 1e13
    compute[np.arange(problem.n), rng.integers(0, problem.m, problem.n)] = rng.random(problem.n)
    return problem.replace(
        compute_s=compute,
        tensor_bytes=np.where(rng.random(problem.t) < 0.3, 1e16, problem.tensor_bytes),
        pinned=np.full(problem.n, -1),
        memory_bytes=np.full(problem.m, np.inf),
    )
