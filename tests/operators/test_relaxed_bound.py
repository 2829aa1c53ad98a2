"""The relaxed schedule bounds every plan, and more than the quick bounds do."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from placewright.errors import InfeasibleError
from placewright.operators.bounds import bounds, refined_bounds, refined_s
from placewright.operators.conformance import random_problem, tiny
from placewright.operators.judge import judge
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import Links, Objective, OperatorProblem
from placewright.operators.relaxed_bound import (
    END,
    WHOLE,
    Choices,
    RelaxedProgram,
    Solver,
    cuts_of,
    followers,
    relaxed_bounds,
)
from placewright.operators.segments import Segments
from placewright.planning.contract import BoundContext
from placewright.planning.solving import solve
from tests.operators.test_bounds import all_values

FAR = 60.0


def bound_of(problem: OperatorProblem, value: float) -> float:
    """With a minute's time."""
    return max(proved(problem, value), default=0.0)


def proved(problem: OperatorProblem, value: float) -> Iterator[float]:
    """Bounds as they rise."""
    known = BoundContext(value, max(bounds(problem).values()), time.perf_counter() + FAR, auto=True)
    follows = followers(problem)
    return relaxed_bounds(problem, Segments.of(problem, follows), follows, known)


@pytest.mark.parametrize("links", Links)
def test_no_plan_beats_the_relaxed_bound(links: Links) -> None:
    """Every placement of tiny problems, whether the plan that is known is the best or the worst."""
    checked = reached = 0
    for seed in range(80):
        problem = random_problem(seed, most_operators=6, most_devices=3, links=links)
        try:
            quick = max(bounds(problem).values())
        except InfeasibleError:
            continue
        values = all_values(problem)
        if not values or quick <= 0:
            continue
        for known in (min(values), max(values)):
            found = bound_of(problem, known)
            assert found <= min(values) * (1 + 1e-9)
            checked += 1
            reached += found > quick * 1.001
    assert checked > 60
    assert reached > 20


def schedule(program: RelaxedProgram, plan: OperatorPlan) -> np.ndarray:
    """A plan as values of the program's columns, transfers left out."""
    judgement = judge(program.problem, plan)
    values = np.zeros(program.linear.size.columns)
    values[END] = judgement.value / program.scale_s
    values[program.start] = judgement.op_start_s / program.scale_s
    values[program.place[np.arange(program.problem.n), plan.placement]] = 1.0
    return values


@pytest.mark.parametrize("seed", range(12))
def test_every_schedule_keeps_every_cut(seed: int) -> None:
    """Rows that a solution in fractions broke are kept by every plan as short as the known one."""
    problem = random_problem(seed, most_operators=14, most_devices=3)
    try:
        quick = max(bounds(problem).values())
        plans = [solve(problem, name) for name in ("heft", "round-robin", "cpop")]
    except InfeasibleError:
        return
    most, follows = max(x.value for x in plans) / quick * WHOLE * 1.0001, followers(problem)
    choices = Choices(problem, quick / WHOLE, most, Segments.of(problem, follows))
    program = RelaxedProgram(choices)
    first = program.linear.size.rows
    for plan in plans:
        assert choices.allowed[choices.groups.group, plan.plan.placement].all()
    rng = np.random.default_rng(seed)
    for turn in range(5):
        fraction = rng.uniform(0.0, 1.0, program.linear.size.columns)
        cuts_of(program, follows).add(turn, fraction, choices.head, choices.tail)
    assert program.linear.size.rows > first
    for plan in plans:
        over = program.linear.broken(schedule(program, plan.plan))
        assert over[first:].max() <= 1e-6


def test_auto_keeps_time_for_it_and_a_planner_alone_does_not_ask() -> None:
    """It is among the bounds of `auto`; a size that is too large keeps no time."""
    problem = random_problem(3, most_operators=14, most_devices=3)
    assert 0 < refined_s(problem, 10.0) <= 5.0
    assert refined_s(problem.replace(objective=Objective.THROUGHPUT), 10.0) == 0.0
    deadline_s, quick = time.perf_counter() + 60.0, max(bounds(problem).values())
    plan = solve(problem, "heft")
    assert not dict(
        refined_bounds(problem, BoundContext(plan.value, quick, deadline_s, auto=False))
    )
    found = dict(refined_bounds(problem, BoundContext(plan.value, quick, deadline_s, auto=True)))
    assert 0 < found["relaxed"] <= solve(problem, "exact").value
    assert "relaxed" not in plan.bound_names


@pytest.mark.parametrize("where", ["cutting", "branching"])
def test_ctrl_c_keeps_what_is_proved(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """In the second linear program or while HiGHS branches; then it is passed on."""
    runs, branching, branch = [0], [False], Solver.branch

    def branched(solver: Solver, deadline_s: float) -> float:
        branching[0] = True
        return branch(solver, deadline_s)

    def waited_for(work: Callable[[], Any], *others: object) -> tuple[Any, bool]:
        runs[0] += 1
        return work(), runs[0] == 2 if where == "cutting" else branching[0]

    problem = random_problem(13, most_operators=14, most_devices=3)
    best = solve(problem, "exact").value
    monkeypatch.setattr(Solver, "branch", branched)
    monkeypatch.setattr("placewright.solvers.programs.waited", waited_for)
    found = proved(problem, 2.0 * best)
    kept = dict[str, float]()
    with pytest.raises(KeyboardInterrupt):
        kept.update(("relaxed", bound_s) for bound_s in found)
    assert 0 < kept["relaxed"] <= best * (1 + 1e-9)
    assert branching[0] == (where == "branching")


def test_a_tensor_without_bytes_where_there_is_no_link() -> None:
    """Nothing times infinity is no number: it warned whoever asked for a plan."""
    unlinked = np.array([[0.0, 1.0, np.inf], [1.0, 0.0, 1.0], [np.inf, 1.0, 0.0]])
    problem = tiny(
        [[1.0, 3.0, 1.0], [3.0, 1.0, 1.0]],
        [(0, 0.0, [1])],
        seconds_per_byte=unlinked,
        channel=np.where(np.isfinite(unlinked), np.arange(9).reshape(3, 3), -1),
        channel_names=tuple(map(str, range(9))),
    )
    assert bound_of(problem, 4.0) <= min(all_values(problem))
