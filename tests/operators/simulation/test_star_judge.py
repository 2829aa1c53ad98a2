"""Batch values of placements through host memory equal those of the judge."""

from __future__ import annotations

import numpy as np

from placewright.errors import InfeasibleError
from placewright.operators.groups import groups_of
from placewright.operators.judge import evaluate_many, judge
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem
from placewright.operators.simulation.star_judge import star_scores
from tests.operators.star_cases import star
from tests.operators.star_instances import star_problem


def judged(problem: OperatorProblem, plan: OperatorPlan) -> tuple[float, int]:
    """Value and bytes over; ``inf`` where the judge refuses the plan."""
    try:
        found = judge(problem, plan)
    except InfeasibleError:
        return np.inf, 0
    return found.value, found.violation_bytes


def drawn(problem: OperatorProblem, rng: np.random.Generator, count: int) -> np.ndarray:
    """Rows of devices that groups can use."""
    groups = groups_of(problem)
    chance = rng.random((count, *groups.allowed.shape)) * groups.allowed
    return chance.argmax(axis=2)[:, groups.group]


def test_latencies_are_the_judges() -> None:
    """Of random placements with the earliest calls and with given ones; some cannot be made."""
    stuck = made = 0
    for seed in range(40):
        problem = star_problem(seed, calls=1 + seed % 3)
        rng = np.random.default_rng(seed)
        rows = drawn(problem, rng, 4)
        values, over = evaluate_many(problem, rows)
        for row, value, bytes_over in zip(rows, values, over, strict=True):
            expected = judged(problem, OperatorPlan(row))
            assert value == expected[0]
            assert not np.isfinite(value) or bytes_over == expected[1]
        calls = rng.integers(0, min(problem.calls, 2), rows.shape)
        values, _ = star_scores(problem, rows, calls)
        for row, call, value in zip(rows, calls, values, strict=True):
            assert value == judged(problem, OperatorPlan(row, call=call))[0]
            stuck, made = stuck + (value == np.inf), made + (value < np.inf)
    assert stuck > 5
    assert made > 50


def test_throughputs_are_the_judges() -> None:
    """The largest loads of random placements."""
    for seed in range(20):
        problem = star(seed)
        rows = drawn(problem, np.random.default_rng(seed), 3)
        values, over = evaluate_many(problem, rows)
        for row, value, bytes_over in zip(rows, values, over, strict=True):
            assert (value, bytes_over) == judged(problem, OperatorPlan(row))
