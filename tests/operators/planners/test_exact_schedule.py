"""Exact latency of few operators equals brute force."""

from __future__ import annotations

from itertools import permutations, product

import numpy as np
import pytest

from placewright.errors import InfeasibleError
from placewright.operators.conformance import random_problem, tiny
from placewright.operators.judge import OperatorJudge, judge
from placewright.operators.plan import Dispatch
from placewright.operators.planners.exact import Exact
from placewright.operators.planners.exact_schedule import ExactSchedule
from placewright.operators.problem import Links, OperatorProblem
from placewright.planning.candidates import Status
from placewright.planning.contract import Context
from placewright.planning.solving import solve
from tests.operators.star_cases import every_placement

pytest.importorskip("ortools")


def best_latency(p: OperatorProblem) -> float:
    """Value of the best of all placements, orders and dispatches, ``inf`` where none fits."""
    uses = np.repeat(np.arange(p.t), np.diff(p.consumer_offsets))
    edges = list(zip(p.tensor_producer[uses].tolist(), p.consumers.tolist(), strict=True))
    orders = [
        np.array(order)
        for order in permutations(range(p.n))
        if all(order.index(i) < order.index(j) for i, j in edges)
    ]
    rows, judge_, best = every_placement(p), OperatorJudge(p), np.inf
    for order, dispatch in product(orders, Dispatch):
        value, over = judge_.many(rows, order, dispatch)
        best = min(best, value[over == 0].min(initial=np.inf))
    return float(best)


@pytest.mark.parametrize("links", Links)
def test_plans_equal_brute_force(links: Links) -> None:
    """Placements, orders and dispatches; channels that are shared; bounds below the optimum."""
    found = proved = 0
    for seed in range(30):
        problem = random_problem(seed, most_operators=4, most_devices=3, links=links)
        wanted = best_latency(problem)
        if wanted == np.inf:
            with pytest.raises(InfeasibleError):
                ExactSchedule()(problem, Context())
            continue
        proposal = ExactSchedule()(problem, Context())
        plan = proposal.plan
        judgement = judge(problem, plan)
        assert judgement.feasible
        assert (proposal.bound or 0.0) <= wanted * (1 + 1e-12)
        assert judgement.value >= wanted * (1 - 1e-12)
        found += 1
        proved += (proposal.bound or 0.0) >= judgement.value * (1 - 1e-6)
    assert proved >= found - 1 > 20


def test_twenty_operators_are_proved() -> None:
    """Where HEFT is not optimal."""
    rng = np.random.default_rng(20)
    compute = rng.uniform(1, 10, (20, 1)) * rng.uniform(0.7, 1.4, (20, 3))
    tensors = [
        (i, float(rng.uniform(1, 8)), sorted({min(19, i + int(rng.integers(1, 6)))}))
        for i in range(19)
    ]
    for links in Links:
        problem = tiny(compute.tolist(), tensors, links=links)
        result = solve(problem, "exact")
        assert result.status is Status.OPTIMAL
        assert result.value < solve(problem, "heft").value


def test_larger_problems_say_why_not() -> None:
    """And by how many operators."""
    problem = tiny([[1.0, 2.0]] * 61)
    assert "60 operators, not 61" in str(Exact().unsupported_reason(problem))
    assert Exact().unsupported_reason(tiny([[1.0, 2.0]] * 60)) is None


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
