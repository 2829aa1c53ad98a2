"""`Judge`, plans to begin with, and objectives of the caller's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import placewright
from placewright.errors import InputError, UnknownNameError
from placewright.operators.conformance import random_problem, tiny
from placewright.planning.candidates import Outcome, Status
from placewright.planning.contract import Needs
from placewright.planning.wings import wings

TWO = tiny([[2.0, 5.0], [4.0, 3.0], [2.0, 2.0]], [(0, 1.0, [1]), (1, 1.0, [2])], name="two")


def test_many_are_worth_what_each_one_is() -> None:
    """Of random problems with memory, groups and pins; what does not fit is worth infinity."""
    unfit = 0
    for seed in range(20):
        problem = random_problem(seed)
        rows = np.random.default_rng(seed).integers(problem.m, size=(15, problem.n))
        judge, expected = placewright.Judge(problem), []
        for row in rows:
            try:
                one = placewright.judge(problem, row)
                expected.append(one.value if one.feasible else np.inf)
            except placewright.PlacewrightError:
                expected.append(np.inf)
        assert judge.many(rows).tolist() == expected
        unfit += sum(np.isinf(expected))
    assert 0 < unfit < 300


def test_plans_may_be_names_indices_or_results() -> None:
    """A wrong name is offered the nearest."""
    judge, names = placewright.Judge(TWO), TWO.operator_names
    result = placewright.solve(TWO, "heft")
    by_name = result.plan.devices(TWO)
    values = judge.many([by_name, result.plan.placement])
    assert judge(result).value == judge(result.plan).value == result.value
    assert values[0] == values[1] == judge(by_name).value
    with pytest.raises(UnknownNameError, match="dev9"):
        judge(dict.fromkeys(names, "dev9"))


@pytest.mark.parametrize(
    ("name", "planner"), [("layers", "single"), ("samples", "none"), ("requests", "edf-fastest")]
)
def test_every_wing_has_it(name: str, planner: str) -> None:
    """One by one, the same value as by `judge`."""
    wing = wings()[name]
    problem = next(iter(wing.conformance().tiny_instances().values()))
    result = placewright.solve(problem, planner, bounds=False)
    judge = placewright.Judge(problem)
    assert judge(result).value == result.value
    assert judge.many([result.plan, result.plan]).tolist() == [result.value] * 2
    with pytest.raises(InputError, match="must be of type"):
        judge("nonsense")


def test_the_answer_is_never_worse_than_the_given_plan() -> None:
    """It is a row, and what planners start from; a plan that does not fit starts nothing."""
    given = placewright.solve(TWO, "exact").plan
    result = placewright.solve(TWO, "random", incumbent=given)
    assert result.planner == "incumbent"
    assert [c.planner for c in result.candidates] == ["incumbent", "random"]
    seen: list[Any] = []

    @dataclass(frozen=True)
    class Looks:
        name: str = "looks"

        def unsupported_reason(self, problem: Any) -> None:
            return None

        def __call__(self, problem: Any, context: Any) -> Any:
            seen.append(context.incumbent)
            return placewright.OperatorPlan(np.zeros(problem.n, dtype=np.int64))

    placewright.compare(TWO, [Looks(), "heft"], incumbent=given)
    full = TWO.replace(memory_bytes=[0.0, np.inf], resident_bytes=[1.0, 1.0, 1.0])
    placewright.compare(full, [Looks(), "heft"], incumbent=given)
    assert seen == [given, None]
    with pytest.raises(InputError, match="wrong length"):
        placewright.solve(TWO, incumbent=[0, 1])


def test_an_objective_of_ones_own_decides() -> None:
    """Without a unit, a bound or a proof, negative values too."""

    def idle(judgement: Any) -> float:
        return -float(judgement.busy_s[1])

    for result in (
        placewright.solve(TWO, objective=idle),
        placewright.compare(TWO, objective=idle),
    ):
        assert result.value == -10.0 == idle(result.judgement)
        assert (result.status, result.objective, result.unit) == (Status.FEASIBLE, "idle", "")
        assert result.gap == np.inf
        assert "idle -10 by" in repr(result)
    with pytest.raises(InputError, match="must return a number"):
        placewright.solve(TWO, "heft", objective=lambda judgement: "low")
    values = placewright.Judge(TWO, objective=idle).many([[1, 1, 1], [0, 0, 0]])
    assert values.tolist() == [-10.0, 0.0]


@pytest.mark.parametrize("method", ["needs", "unsupported_reason", "__call__"])
def test_whatever_raises_ends_its_own_row(method: str) -> None:
    """Estimates and refusals, too; alone it raises."""

    @dataclass(frozen=True)
    class Bad:
        name: str = "bad"

        def unsupported_reason(self, problem: Any) -> str | None:
            return fail("unsupported_reason")

        def needs(self, problem: Any) -> Needs:
            fail("needs")
            return Needs()

        def __call__(self, problem: Any, context: Any) -> Any:
            fail("__call__")

    def fail(where: str) -> None:
        if where == method:
            raise MemoryError("6 GiB")

    bad = Bad()
    with pytest.warns(RuntimeWarning, match="6 GiB"):
        result = placewright.compare(TWO, [bad, "heft"])
    assert result.candidates["bad"].outcome is Outcome.FAILED
    assert result.planner == "heft"
    with pytest.raises(MemoryError):
        placewright.compare(TWO, [bad])
