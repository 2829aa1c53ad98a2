"""Counting, penalties, repair and storage of judged placements."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.operators.conformance import random_placement, random_problem, tiny
from placewright.operators.judge import judge
from placewright.operators.plan import OperatorPlan, check_plan
from placewright.operators.planners.learned.evaluation import Evaluations
from placewright.operators.planners.trivial import Single
from placewright.planning.contract import Context


def test_costs_of_what_fits_are_the_judges_values() -> None:
    """On random problems with every constraint; what does not fit costs more than trivial plans."""
    fitting = short = 0
    for seed in range(60):
        problem = random_problem(seed)
        evaluations = Evaluations(problem, repairs=False)
        rng = np.random.default_rng(seed)
        rows = np.stack([random_placement(problem, rng) for _ in range(5)])
        values, over = evaluations.judge.many(rows)
        costs = evaluations.costs(rows)
        fits = (over == 0) & np.isfinite(values)
        assert np.array_equal(costs[fits], values[fits])
        assert (costs[~fits] >= evaluations.reference_s).all()
        fitting, short = fitting + fits.sum(), short + (~fits).sum()
    assert fitting > 50
    assert short > 10


def test_penalties_grow_with_the_overflow() -> None:
    """Of two placements that take equally long, the one with more bytes over costs more."""
    problem = tiny([[1.0, 1.0]] * 3).replace(
        resident_bytes=np.array([10.0, 20.0, 40.0]), memory_bytes=np.array([15.0, 1000.0])
    )
    evaluations = Evaluations(problem, repairs=False)
    costs = evaluations.costs(np.array([[0, 1, 1], [1, 0, 1], [1, 1, 0]]))
    value = judge(problem, OperatorPlan(np.array([0, 1, 1]))).value
    assert costs[0] == value
    assert costs[0] < costs[1] < costs[2]


def test_repair_moves_groups_off_full_devices() -> None:
    """A placement that resident bytes make infeasible is judged where they fit."""
    problem = tiny([[1.0, 9.0]] * 3).replace(
        resident_bytes=np.array([10.0, 20.0, 40.0]), memory_bytes=np.array([45.0, 1000.0])
    )
    evaluations = Evaluations(problem)
    cost = evaluations.costs(np.zeros((1, 3), dtype=np.int64))[0]
    assert cost < evaluations.reference_s
    assert evaluations.best.score.over_bytes == 0


def test_the_best_plan_is_never_worse_than_a_single_device() -> None:
    """Trivial plans are judged first, and count."""
    for seed in range(20):
        problem = random_problem(seed)
        evaluations = Evaluations(problem)
        assert evaluations.count >= 1
        for device in problem.device_names:
            try:
                judgement = judge(problem, Single(device)(problem, Context()))
            except Exception:
                continue
            if judgement.feasible:
                assert evaluations.best.score.over_bytes == 0
                assert evaluations.best.score.value_s <= judgement.value


def test_the_budget_is_kept_and_the_curve_falls() -> None:
    """`room` ends at the limit; the archive holds different placements, best first."""
    problem = random_problem(3)
    evaluations = Evaluations(problem, limit=40, elites=4)
    rng = np.random.default_rng(0)
    while count := evaluations.room(7):
        evaluations.costs(np.stack([random_placement(problem, rng) for _ in range(count)]))
    assert evaluations.count == 40 or evaluations.best.score.value_s == 0.0
    values = [point.value_s for point in evaluations.curve]
    assert values == sorted(values, reverse=True)
    costs = [cost for cost, _ in evaluations.archive]
    assert costs == sorted(costs)
    assert len(costs) <= 4
    assert len({row.tobytes() for _, row in evaluations.archive}) == len(costs)


def test_the_teacher_is_the_best_list_schedule() -> None:
    """What `teach` returns is judged like any plan, and its order is used only if it helps."""
    problem = random_problem(11)
    evaluations = Evaluations(problem)
    plan = evaluations.teach()
    assert plan is not None
    check_plan(problem, plan)
    judgement = judge(problem, plan)
    if judgement.feasible:
        assert evaluations.best.score.value_s <= judgement.value


def test_measured_placements_replace_the_judge() -> None:
    """Costs are what `measure` says, and placements that could not run get the penalty."""
    problem = tiny([[1.0, 1.0]] * 3)

    def measure(rows: np.ndarray) -> np.ndarray:
        return np.where(rows.sum(axis=1) == 2, np.inf, 5.0 + rows.sum(axis=1))

    evaluations = Evaluations(problem, measure=measure)
    costs = evaluations.costs(np.array([[0, 0, 1], [0, 1, 1]]))
    assert costs[0] == 6.0
    assert costs[1] > costs[0]
    assert evaluations.best.score.value_s == pytest.approx(5.0)
