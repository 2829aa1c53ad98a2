"""LNS: optimal windows, plans never worse, the same plan from the same seed."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from placewright.errors import MissingDependencyError
from placewright.operators.conformance import random_placement, random_problem
from placewright.operators.costs import groups_of
from placewright.operators.judge import judge
from placewright.operators.plan import OperatorPlan, check_plan
from placewright.operators.planners.lists.planners import HEFT
from placewright.operators.planners.lns import Lns, solve_window
from placewright.operators.planners.sequences.decode import VALUE, start_state
from placewright.operators.planners.sequences.search import OrderSearch, start_order
from placewright.operators.problem import Links, OperatorProblem
from placewright.planning.contract import Context, Planner
from placewright.testing import PlannerConformance
from tests.operators.planners.test_exact_schedule import practically_never
from tests.operators.planners.test_search import best_of_all

pytest.importorskip("ortools")
SHORT = Lns(windows=2, work=0.02)


class TestLns(PlannerConformance):
    """A short one keeps to the kit."""

    def planner(self, problem: OperatorProblem) -> Planner:
        """With few windows."""
        return SHORT


@pytest.mark.parametrize("links", Links)
def test_one_window_over_all_is_the_optimum(links: Links) -> None:
    """On up to five operators: no worse than every placement, from a random start."""
    for seed in range(10):
        problem = random_problem(seed, most_operators=5, most_devices=3, links=links)
        problem = problem.replace(
            memory_bytes=np.full(problem.m, np.inf), colocation=np.arange(problem.n)
        )
        start = OperatorPlan(random_placement(problem, np.random.default_rng(seed)))
        plan = Lns(windows=3)(problem, Context(seed=seed, incumbent=start)).plan
        assert judge(problem, plan).value <= best_of_all(problem) * (1 + 2e-5)


def test_never_worse_and_repeatable() -> None:
    """From HEFT's plan: as good or better, and twice the same, to the last operator."""
    problem = random_problem(11, most_operators=40, links="contended")
    start = HEFT(problem, Context())
    plans = [
        Lns(windows=4, work=0.05)(problem, Context(seed=5, incumbent=start)).plan for _ in range(2)
    ]
    assert judge(problem, plans[0]).value <= judge(problem, start).value
    assert np.array_equal(plans[0].placement, plans[1].placement)


@pytest.mark.parametrize("links", Links)
def test_a_window_leaves_the_rest_alone(links: Links) -> None:
    """The answer is a topological order of the window's operators on devices that they may use."""
    for seed in range(4):
        problem = random_problem(seed, most_operators=30, links=links)
        place = random_placement(problem, np.random.default_rng(seed))
        orders = OrderSearch(problem, groups_of(problem))
        sequence = start_order(judge(problem, OperatorPlan(place)))
        state = start_state(orders.instance, problem.t, orders.channels, sequence, place, 0)
        before, low = float(state.score[VALUE]), problem.n // 4
        high = min(problem.n - 1, low + 8)
        found = solve_window(
            orders.instance, state, low, high, seed=0, work=0.05, deadline_s=float("inf")
        )
        assert state.score[VALUE] == before
        if found is not None:
            assert sorted(found.sequence) == sorted(sequence[low : high + 1])
            place = place.copy()
            place[found.sequence] = found.place
            new = np.concatenate([sequence[:low], found.sequence, sequence[high + 1 :]])
            check_plan(problem, OperatorPlan(place, new))


def test_ctrl_c_hands_the_best_plan_back() -> None:
    """The plan says that it was interrupted."""
    problem = random_problem(8, most_operators=40, most_devices=3)

    def stop(*, what: str, value: float, bound: float, elapsed_s: float) -> None:
        raise KeyboardInterrupt

    assert SHORT(problem, Context(progress=stop)).interrupted


def test_without_ortools_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hint names the extra."""
    monkeypatch.setitem(sys.modules, "ortools", None)
    with pytest.raises(MissingDependencyError, match="exact"):
        SHORT(random_problem(8, most_devices=3), Context())


@pytest.mark.parametrize("links", Links)
def test_costs_past_64_bits_are_no_option(links: Links) -> None:
    """From every operator where it is fastest: no worse than every placement."""
    for seed in range(8):
        problem = practically_never(seed, links)
        problem = problem.replace(colocation=np.arange(problem.n))
        if problem.m < 2:
            continue
        start = OperatorPlan(problem.compute_s.argmin(axis=1))
        plan = Lns(windows=3)(problem, Context(seed=seed, incumbent=start)).plan
        assert judge(problem, plan).value <= best_of_all(problem) * (1 + 2e-5)
