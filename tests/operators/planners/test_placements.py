"""Local moves keep the rules, and their values are the judge's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placewright.operators.conformance import random_placement, random_problem, tiny
from placewright.operators.costs import groups_of
from placewright.operators.judge import OperatorJudge
from placewright.operators.plan import OperatorPlan, check_plan
from placewright.operators.planners import placements
from placewright.operators.planners.placements import (
    Score,
    begin,
    improve,
    list_critical,
    score_all,
    score_plan,
)
from placewright.operators.problem import Objective


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(list(Objective)), st.sampled_from([0.0, 1.0]))
def test_never_worse_and_as_judged(seed: int, objective: Objective, heat: float) -> None:
    """The best placement met is no worse than the start, valid, and scored as the judge does."""
    problem = random_problem(seed).replace(objective=objective)
    judge = OperatorJudge(problem)
    place = random_placement(problem, np.random.default_rng(seed))
    start = score_all(judge, [place])[0]
    best = improve(judge, groups_of(problem), start, moves=60, heat=heat, seed=seed)
    check_plan(problem, OperatorPlan(best.place))
    assert best.score <= start.score
    values, over = OperatorJudge(problem).many(best.place)
    assert best.score == Score(float(over[0]), float(values[0]))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(list(Objective)))
def test_no_placement_is_better_where_there_are_few(seed: int, objective: Objective) -> None:
    """As many moves as placements: every one is scored, in blocks, with the start's order."""
    problem = random_problem(seed, most_operators=5, most_devices=3).replace(objective=objective)
    judge, groups = OperatorJudge(problem), groups_of(problem)
    rows = np.indices((problem.m,) * problem.n).reshape(problem.n, -1).T
    group = groups.group
    first = np.array([np.flatnonzero(group == g)[0] for g in range(len(groups.allowed))])
    kept = (rows == rows[:, first][:, group]).all(axis=1) & groups.allowed[group, rows].all(axis=1)
    values, over = judge.many(rows[kept])
    start = score_all(judge, [rows[kept][-1]])[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placements, "BLOCK", 7)
        best = improve(judge, groups, start, moves=int(kept.sum()), heat=0.0, seed=0)
    assert best.score == min(Score(*pair) for pair in zip(over, values, strict=True))


def test_many_operators_with_one_device_each_are_no_digits() -> None:
    """NumPy counts in 64 digits at most; a run with one device left has an operator in each."""
    n = 100
    compute_s = np.full((n, 2), [1.0, np.inf])
    compute_s[n - 1] = [2.0, 1.0]
    problem = tiny(compute_s)
    start = score_all(OperatorJudge(problem), [np.zeros(n, dtype=np.int64)])[0]
    best = improve(OperatorJudge(problem), groups_of(problem), start, moves=1000, heat=1.0, seed=0)
    assert best.place.tolist() == [0] * (n - 1) + [1]
    compute_s[n - 1, 1] = np.inf
    problem = tiny(compute_s)
    alone = score_all(OperatorJudge(problem), [np.zeros(n, dtype=np.int64)])[0]
    best = improve(OperatorJudge(problem), groups_of(problem), alone, moves=1000, heat=1.0, seed=0)
    assert best.place.tolist() == [0] * n


def test_same_seed_same_walk() -> None:
    """Two walks from one start with one seed end at the same placement; the start is kept."""
    problem = random_problem(5, most_operators=12)
    place = random_placement(problem, np.random.default_rng(0))
    before = place.copy()
    ends = []
    for _ in range(2):
        judge = OperatorJudge(problem)
        start = score_all(judge, [place])[0]
        ends.append(improve(judge, groups_of(problem), start, moves=200, heat=1.0, seed=3).place)
    assert np.array_equal(*ends)
    assert np.array_equal(place, before)


@pytest.mark.parametrize("seed", range(12))
def test_the_walk_is_the_same_with_the_full_simulator_from_the_start(seed: int) -> None:
    """Where the fast simulator is unsure of a move, the walk goes on as if not asked before."""
    problem = random_problem(seed, most_operators=12, links="contended", objective="latency")
    place = random_placement(problem, np.random.default_rng(seed))
    ends = []
    for full in (False, True):
        judge = OperatorJudge(problem)
        start = score_all(judge, [place])[0]
        with pytest.MonkeyPatch.context() as patch:
            if full:
                patch.setattr(
                    placements, "_asked", lambda judge: (judge.rounds, judge.load_scratch())
                )
            ends.append(improve(judge, groups_of(problem), start, moves=150, heat=1.0, seed=3))
    assert ends[0].score == ends[1].score
    assert np.array_equal(ends[0].place, ends[1].place)


def test_memory_comes_before_time() -> None:
    """From a fast plan that does not fit the walk goes to a slow one that does."""
    chain = [(i, 0.0, [i + 1]) for i in range(5)]
    problem = tiny([[1.0, 9.0]] * 6, chain, resident_bytes=[4.0] * 6, memory_bytes=[12.0, 12.0])
    judge = OperatorJudge(problem)
    start = score_all(judge, [np.zeros(6, dtype=np.int64)])[0]
    assert start.score.over_bytes == 12
    best = improve(judge, groups_of(problem), start, moves=300, heat=0.0, seed=0)
    assert best.score == Score(0.0, 30.0)


@pytest.mark.parametrize(
    ("size", "links", "wanted"),
    [(1.0, "contended", [0, 1]), (9.0, "contended", [0, 1, 2, 3]), (9.0, "free", [0, 1])],
)
def test_moves_of_streams_begin_where_the_load_is(
    size: float, links: str, wanted: list[int]
) -> None:
    """On the busiest device, or at both ends of the tensors of the busiest channel."""
    costs, tensors = [[5.0, 9.0]] + [[1.0, 1.0]] * 3, [(0, size, [2]), (1, 2.0, [3])]
    problem = tiny(costs, tensors, objective="throughput", links=links)
    judge, groups = OperatorJudge(problem), groups_of(problem)
    start = score_plan(judge, OperatorPlan([0, 0, 1, 1]))
    walk = begin(4, start.place, (0.0, 0.0), 0)
    instance = placements._instance(judge, groups, start)
    list_critical(instance, judge, walk, judge.load_scratch())
    assert walk.critical[: walk.counts[placements.CRITICAL]].tolist() == wanted


def test_operators_that_end_together_are_taken_in_input_order() -> None:
    """The critical path goes by operator numbers, whatever instructions the CPU sorts with."""
    n = 400
    problem = tiny([[1.0, 9.0], *([[0.0, 9.0]] * (n - 2)), [2.0, 9.0]])
    order = np.append(np.random.default_rng(0).permutation(n - 1), n - 1)
    judge, groups = OperatorJudge(problem), groups_of(problem)
    start = score_plan(judge, OperatorPlan(np.zeros(n, dtype=np.int64), order))
    walk = begin(n, start.place, (0.0, 0.0), 0)
    list_critical(placements._instance(judge, groups, start), judge, walk, judge.load_scratch())
    before = order[np.flatnonzero(order == 0)[0] : -1]
    assert walk.critical[:2].tolist() == [n - 1, before.min()]
