"""The schedule model with very large costs."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.operators.instances import random_problem
from placewright.operators.judge import judge
from placewright.operators.planners.exact_schedule import ExactSchedule
from placewright.operators.problem import Links, OperatorProblem
from placewright.planning.contract import Context
from tests.operators.planners.test_exact_schedule import best_latency

pytest.importorskip("ortools")


def practically_never(seed: int, links: Links) -> OperatorProblem:
    """A random problem; some operators take 1e13 s somewhere, and so do some links."""
    rng = np.random.default_rng(seed)
    p = random_problem(seed, most_operators=4, most_devices=3, links=links)
    home = rng.integers(0, p.m, p.n)[p.colocation]
    compute = np.where(rng.random((p.n, p.m)) < 0.3, 1e13, np.minimum(p.compute_s, 2.0))
    compute[np.arange(p.n), home] = np.minimum(p.compute_s, 2.0)[np.arange(p.n), home]
    cut = (rng.random((p.m, p.m)) < 0.3) & ~np.eye(p.m, dtype=np.bool_)
    return p.replace(
        compute_s=compute,
        latency_s=np.where(cut, 1e13, p.latency_s),
        pinned=np.full(p.n, -1),
        memory_bytes=np.full(p.m, np.inf),
    )


@pytest.mark.parametrize("links", Links)
def test_costs_past_64_bits_are_no_option(links: Links) -> None:
    """As good as brute force, and proved."""
    proved = 0
    for seed in range(12):
        problem = practically_never(seed, links)
        wanted = best_latency(problem)
        proposal = ExactSchedule()(problem, Context())
        plan = proposal.plan
        assert judge(problem, plan).value == pytest.approx(wanted, rel=1e-6)
        assert (proposal.bound or 0.0) <= wanted * (1 + 1e-12)
        proved += (proposal.bound or 0.0) >= wanted * (1 - 1e-6)
    assert proved >= 11
