"""The PBQP planner against every placement."""

from __future__ import annotations

import itertools
import sys

import numpy as np
import pytest

from placewright.operators.conformance import random_problem, tiny
from placewright.operators.judge import OperatorJudge, judge
from placewright.operators.plan import check_plan
from placewright.operators.planners.pbqp import PbqpPlanner
from placewright.operators.problem import OperatorProblem
from placewright.planning.contract import Context


def every_placement(problem: OperatorProblem) -> np.ndarray:
    """All placements that respect groups, pins and support."""
    _, group = np.unique(problem.colocation, return_inverse=True)
    allowed = problem.allowed()
    first = [int(np.flatnonzero(group == g)[0]) for g in range(group.max() + 1)]
    choices = [np.flatnonzero(allowed[i]) for i in first]
    return np.array([np.array(x)[group] for x in itertools.product(*choices)])


@pytest.mark.parametrize("seed", range(25))
def test_serial_time_is_least(seed: int) -> None:
    """One thing at a time and one reader per tensor: the least serial time, and proved."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 7))
    tensors = [(int(rng.integers(0, j)), float(rng.random()), [j]) for j in range(1, n)]
    problem = tiny(rng.random((n, 3)).tolist(), tensors, overlap="serial")
    proposal = PbqpPlanner()(problem, Context())
    plan = proposal.plan
    least = OperatorJudge(problem).many(every_placement(problem))[0].min()
    assert judge(problem, plan).value == pytest.approx(least)
    assert proposal.bound == pytest.approx(least)


def test_serial_bound_holds_with_fan_out() -> None:
    """With shared tensors, groups, pins and memory the bound stays below every placement."""
    checked = 0
    for seed in range(60):
        problem = random_problem(seed, most_operators=6, most_devices=3).replace(
            overlap="serial", objective="latency"
        )
        values, _ = OperatorJudge(problem).many(every_placement(problem))
        if np.isfinite(values).any():
            proposal = PbqpPlanner()(problem, Context())
            plan = proposal.plan
            check_plan(problem, plan)
            assert proposal.bound <= values.min() * (1 + 1e-9)
            checked += 1
    assert checked > 30


def test_prices_for_bytes_find_room() -> None:
    """The fastest device holds half of a chain; the plan cuts it where the tensor is small."""
    sizes = [9.0, 9.0, 0.5, 9.0, 9.0]
    chain = [(i, s, [i + 1]) for i, s in enumerate(sizes)]
    problem = tiny([[1.0, 2.0]] * 6, chain, resident_bytes=[10.0] * 6, memory_bytes=[60.0, 60.0])
    judgement = judge(problem, PbqpPlanner()(problem, Context()).plan)
    assert judgement.feasible
    assert len(judgement.transfers) == 1
    assert judgement.transfers.tensor.tolist() == [2]


def test_ctrl_c_in_the_bound_keeps_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan is the same, only nothing is proved."""

    def pressed(*arguments: object) -> None:
        raise KeyboardInterrupt

    problem = tiny([[1.0, 2.0]] * 3, [(0, 9.0, [1, 2])], overlap="serial")
    whole = PbqpPlanner()(problem, Context())
    monkeypatch.setattr(sys.modules[PbqpPlanner.__module__], "serial_bound", pressed)
    proposal = PbqpPlanner()(problem, Context())
    plan = proposal.plan
    assert proposal.interrupted
    assert np.array_equal(plan.placement, whole.plan.placement)
    assert proposal.bound is None
    assert whole.bound > 0.0
