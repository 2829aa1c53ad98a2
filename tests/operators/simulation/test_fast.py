"""The order of ready operators against NumPy's sort."""

from __future__ import annotations

import numpy as np
import pytest
from numba import typeof

from placewright.operators.conformance import random_placement, random_problem, tiny
from placewright.operators.judge import OperatorJudge
from placewright.operators.plan import Dispatch
from placewright.operators.simulation.fast import simulate

NO_ORDER = np.zeros(0, dtype=np.int64)


@pytest.mark.parametrize("skew", [0, 1, 8])
def test_by_rank_then_by_number(skew: int) -> None:
    """Operators stand by upward rank, equal ones by number, however the ranks crowd."""
    for seed in range(20):
        problem = random_problem(seed, most_operators=400)
        rng = np.random.default_rng(seed)
        compute = np.where(np.isfinite(problem.compute_s), 1.0, np.inf)
        compute *= rng.integers(1, 4, (problem.n, 1)) * rng.random((problem.n, 1)) ** skew
        fast = OperatorJudge(problem.replace(compute_s=compute)).state
        simulate(fast, OperatorJudge(problem).mode(), random_placement(problem, rng), NO_ORDER)
        if fast.all_linked:
            by = np.lexsort((np.arange(problem.n), fast.rank))
            assert fast.ranked[: problem.n].tolist() == by.tolist()


def test_the_rank_is_the_longest_way() -> None:
    """A chain over two devices by hand: compute and transfers added from the end."""
    judge = OperatorJudge(
        tiny([[1.0, 1.0], [2.0, 2.0], [4.0, 4.0]], [(0, 8.0, [1]), (1, 16.0, [2])])
    )
    simulate(judge.state, judge.mode(Dispatch.READY), np.array([0, 1, 1]), NO_ORDER)
    assert judge.state.rank[:3].tolist() == [-15.0, -6.0, -4.0]


def test_every_problem_has_the_same_types() -> None:
    """Also one without tensors: for other types all kernels would be compiled again."""
    alone = OperatorJudge(tiny([[1.0]]))
    two = OperatorJudge(tiny([[1.0, 1.0]] * 2, [(0, 8.0, [1])], objective="throughput"))
    assert typeof(alone.state) == typeof(two.state)
    assert typeof(alone.rounds) == typeof(two.rounds)
    assert typeof(alone.load_scratch()) == typeof(two.load_scratch())
