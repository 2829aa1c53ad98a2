"""Search and auto: never worse than their start, deterministic, and interruptible."""

from __future__ import annotations

import sys
import time
from itertools import product

import numpy as np
import pytest

from placewright.errors import MissingDependencyError
from placewright.operators.conformance import random_placement, random_problem, tiny
from placewright.operators.costs import groups_of
from placewright.operators.judge import judge
from placewright.operators.judgement import OperatorJudgement
from placewright.operators.plan import OperatorPlan, check_plan
from placewright.operators.planners import portfolio
from placewright.operators.planners.lists.planners import HEFT
from placewright.operators.planners.search import Search
from placewright.operators.planners.sequences.decode import (
    BEST,
    TEMPERATURE,
    VALID,
    VALUE,
    SequenceState,
    decode,
    overloaded,
    start_state,
)
from placewright.operators.planners.sequences.moves import anneal, close_window, open_window
from placewright.operators.planners.sequences.search import (
    USUAL,
    OrderSearch,
    SequenceWindows,
    start_order,
)
from placewright.operators.problem import Links, OperatorProblem
from placewright.planning.candidates import Status
from placewright.planning.contract import Context, Planner
from placewright.planning.solving import solve
from placewright.planning.wings import Judge
from placewright.testing import PlannerConformance

SHORT = Search(effort=2e5, first=2e4)


class TestSearch(PlannerConformance):
    """A short one keeps to the kit."""

    def planner(self, problem: OperatorProblem) -> Planner:
        """With little effort."""
        return SHORT


def best_of_all(problem: OperatorProblem) -> float:
    """Least value over all placements and priorities that are the judge's own."""
    allowed = problem.allowed()
    values = [
        judge(problem, OperatorPlan(np.array(place))).value
        for place in product(range(problem.m), repeat=problem.n)
        if allowed[np.arange(problem.n), place].all()
    ]
    return min(values)


@pytest.mark.parametrize("links", Links)
def test_at_least_as_good_as_every_placement(links: Links) -> None:
    """On problems of up to five operators, where all placements can be tried."""
    for seed in range(25):
        problem = random_problem(seed, most_operators=5, most_devices=3, links=links)
        problem = problem.replace(
            memory_bytes=np.full(problem.m, np.inf), colocation=np.arange(problem.n)
        )
        plan = SHORT(problem, Context(seed=seed)).plan
        assert judge(problem, plan).value <= best_of_all(problem)


@pytest.mark.parametrize("links", Links)
def test_a_window_sees_the_whole(links: Links) -> None:
    """Wherever it lies, its makespan is that of the sequence, up to rounding; it closes exactly."""
    for seed in range(20):
        orders, state = a_line(random_problem(seed, most_operators=40, links=links))
        n, whole = len(state.sequence), float(state.score[VALUE])
        for low in range(0, n, 3):
            seen = open_window(orders.instance, state, low, min(n - 1, low + 4))
            assert seen == pytest.approx(whole, rel=1e-12)
            assert close_window(orders.instance, state, np.inf) == whole


@pytest.mark.parametrize("links", Links)
def test_windows_forget_what_was_not_taken(links: Links) -> None:
    """After many windows the line's makespan is that of decoding its state afresh."""
    for seed in range(20):
        orders, state = a_line(random_problem(seed, most_operators=40, links=links))
        state.score[TEMPERATURE] = 0.1 * state.score[VALUE]
        anneal(orders.instance, state, 20, len(state.sequence), 30, 0.99)
        again = orders.improve(state.best_sequence, state.best_place, moves=0, heat=0.0, seed=0)
        assert again.value_s == state.score[BEST]
        check_plan(orders.problem, OperatorPlan(state.best_place, state.best_sequence))


def test_channels_are_what_a_fresh_decoding_gives() -> None:
    """Where transfers wait, moves, sorting and windows that are undone change who sends first."""
    for seed in range(12):
        problem = random_problem(seed, most_operators=200, most_devices=5, links=Links.CONTENDED)
        orders, state = a_line(problem)
        state.score[TEMPERATURE] = 0.02 * state.score[VALUE]
        for _ in range(12):
            anneal(orders.instance, state, 2, 64, 60, 1.0)
            again = orders.improve(state.sequence, state.place, moves=0, heat=0.0, seed=0)
            assert state.score[VALUE] == pytest.approx(again.value_s, rel=1e-9)


@pytest.mark.parametrize("links", Links)
def test_windows_that_estimate_transfers_are_exact_when_closed(links: Links) -> None:
    """Whatever a window believed, its state and the best one are worth what is said."""
    for seed in range(12):
        problem = random_problem(seed, most_operators=200, most_devices=5, links=links)
        orders, state = a_line(problem, SequenceWindows(late=True))
        before = state.score[VALUE]
        state.score[TEMPERATURE] = 0.02 * before
        for _ in range(12):
            anneal(orders.instance, state, 2, 64, 60, 0.99)
            again = orders.improve(state.sequence, state.place, moves=0, heat=0.0, seed=0)
            assert state.score[VALUE] == pytest.approx(again.value_s, rel=1e-9)
        best = orders.improve(state.best_sequence, state.best_place, moves=0, heat=0.0, seed=0)
        assert best.value_s == pytest.approx(state.score[BEST], rel=1e-9)
        assert best.value_s <= before
        check_plan(problem, OperatorPlan(state.best_place, state.best_sequence))


@pytest.mark.parametrize("links", Links)
def test_a_limit_refuses_only_what_is_over_it(links: Links) -> None:
    """Moves in windows and in the whole: each is decoded at its own makespan, none just below."""
    overloads = 0
    for seed in range(40):
        problem = random_problem(seed, most_operators=60, links=links)
        orders, s = a_line(problem, SequenceWindows(late=True))
        f, n, rng = orders.instance, len(s.sequence), np.random.default_rng(seed)
        allowed = problem.allowed()
        for low, high in ((0, n - 1), (n // 3, 2 * n // 3)):
            open_window(f, s, low, high)
            for i in s.sequence[low : high + 1]:
                s.place[i] = rng.choice(np.flatnonzero(allowed[i]))
                value = decode(f, s, low, np.inf)
                assert not overloaded(f, s, low, value)
                assert decode(f, s, low, value * (1 + 1e-12)) == value
                below = value * (1 - 1e-6)
                overloads += overloaded(f, s, low, below)
                assert decode(f, s, low, below) > below
            s.counts[VALID] = 0
            close_window(f, s, np.inf)
    assert overloads > 100


def a_line(
    problem: OperatorProblem, windows: SequenceWindows = USUAL
) -> tuple[OrderSearch, SequenceState]:
    """A random placement, decoded in the order of its simulation."""
    place = random_placement(problem, np.random.default_rng(0))
    sequence = start_order(judge(problem, OperatorPlan(place)))
    orders = OrderSearch(problem, groups_of(problem), windows)
    field = orders.instance
    return orders, start_state(field, problem.t, orders.channels, sequence, place, 0)


def test_it_starts_from_the_incumbent() -> None:
    """A plan that it is given is never lost."""
    problem = random_problem(3, most_operators=40)
    incumbent = SHORT(problem, Context(seed=1)).plan
    again = Search(effort=1.0)(problem, Context(seed=2, incumbent=incumbent)).plan
    assert judge(problem, again).value <= judge(problem, incumbent).value


def test_a_deadline_that_has_passed_gives_the_start() -> None:
    """No walk begins."""
    problem = random_problem(3, most_operators=40)
    plan = Search()(problem, Context(deadline_s=time.perf_counter())).plan
    assert judge(problem, plan).value <= judge(problem, HEFT(problem, Context())).value


@pytest.mark.parametrize("seed", range(6))
def test_an_objective_of_ones_own_is_searched(seed: int) -> None:
    """The best of all placements by it is found, also below zero; Ctrl-C keeps the best so far."""
    problem = random_problem(seed, most_operators=5, most_devices=3)
    weights = np.random.default_rng(seed).uniform(-1, 2, problem.m)
    asked = []

    def cost(judgement: OperatorJudgement) -> float:
        asked.append(float(judgement.busy_s @ weights) - 0.1 * len(judgement.transfers))
        return asked[-1]

    every = np.array([*product(range(problem.m), repeat=problem.n)])
    wanted = float(Judge(problem, cost).many(every).min())
    assert solve(problem, "search", objective=cost).value == wanted
    assert solve(problem, objective=cost, time_limit_s=60).value == wanted
    asked.clear()

    def stopped(judgement: OperatorJudgement) -> float:
        if len(asked) == 20:
            raise KeyboardInterrupt
        return cost(judgement)

    proposal = Search()(problem, Context(objective=stopped))
    assert proposal.interrupted
    assert cost(judge(problem, proposal.plan)) == min(asked)


def test_ctrl_c_hands_the_best_plan_back() -> None:
    """The plan says that it was interrupted, and so does the result."""
    problem = random_problem(8, most_operators=40, most_devices=3)

    def stop(*, what: str, value: float, bound: float, elapsed_s: float) -> None:
        if "round" in what:
            raise KeyboardInterrupt

    proposal = Search()(problem, Context(progress=stop))
    assert proposal.interrupted
    result = solve(problem, Search(), progress=stop)
    assert result.status in (Status.INTERRUPTED, Status.OPTIMAL)


@pytest.mark.parametrize("links", Links)
def test_auto_is_never_worse_than_what_it_contains(links: Links) -> None:
    """And it says who won."""
    for seed in range(4):
        problem = random_problem(seed, most_operators=20, links=links)
        result = solve(problem, time_limit_s=0.3)
        fitting = [c.value for c in result.candidates if c.status is Status.FEASIBLE]
        assert result.value == min(fitting)
        assert result.note.startswith(f"{result.planner} won")
        assert {c.planner for c in result.candidates} == set(portfolio(problem))


def test_a_missing_package_costs_its_planner_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The result says how to install what could not be asked; asked by name it is an error."""
    monkeypatch.setitem(sys.modules, "pymetis", None)
    problem = random_problem(7, most_operators=20, most_devices=2)
    result = solve(problem, time_limit_s=5)
    if any(c.planner == "metis" and "needs" in c.note for c in result.candidates):
        assert "pip install 'placewright[exact]'" in result.note
    with pytest.raises(MissingDependencyError):
        solve(problem, "metis")


@pytest.mark.parametrize("looks", range(1, 6))
def test_the_deadline_may_pass_at_any_look_at_the_clock(
    looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also between the test that time is left and the estimate of what fits into it."""
    left_s = iter([1.0] * looks)
    monkeypatch.setattr(Context, "remaining_s", lambda context: next(left_s, -1e-6))
    problem = tiny([[1.0, 2.0]] * 6, [(i, 1.0, [i + 1]) for i in range(5)])
    deadline_s = time.perf_counter() + 60
    assert SHORT(problem, Context(deadline_s=deadline_s)).plan.placement.shape == (problem.n,)
