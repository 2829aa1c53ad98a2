"""Every planner of the wing keeps to the conformance kit; all their schedules are valid."""

from __future__ import annotations

import pytest

from placewright.errors import InfeasibleError
from placewright.operators.instances import named_instances, random_problem, tiny
from placewright.operators.judge import judge
from placewright.operators.planners import planners, portfolio
from placewright.operators.problem import Links, OperatorProblem, Overlap
from placewright.operators.readers.dag import read_dag
from placewright.planning.contract import Context, Planner, proposal_of
from placewright.testing.conformance import PlannerConformance
from tests.operators.validity import assert_valid_schedule
from tests.published import published

OWN = ["round-robin", "random", "topological-split", "heft", "heft-contended", "cpop", "peft"]


class TestSingle(PlannerConformance):
    """Everything on the first device."""

    def planner(self, problem: OperatorProblem) -> Planner:
        """It is called after its device."""
        return named_planner(f"only:{problem.device_names[0]}", problem)


class TestRoundRobin(PlannerConformance):
    """Devices in turn."""

    named = "round-robin"


class TestRandom(PlannerConformance):
    """By the seed."""

    named = "random"


class TestTopologicalSplit(PlannerConformance):
    """One stretch per device."""

    named = "topological-split"


class TestHeft(PlannerConformance):
    """HEFT."""

    named = "heft"


class TestHeftContended(PlannerConformance):
    """HEFT with reserved links."""

    named = "heft-contended"


class TestCpop(PlannerConformance):
    """CPOP."""

    named = "cpop"


class TestPeft(PlannerConformance):
    """PEFT."""

    named = "peft"


def named_planner(name: str, problem: OperatorProblem) -> Planner:
    """One of the wing's planners."""
    return planners(problem)[name]


def quick(problem: OperatorProblem) -> list[Planner]:
    """Planners that take no time: searches have their own tests."""
    known = planners(problem)
    return [p for name, p in known.items() if name in OWN or name.startswith("only:")]


@pytest.mark.parametrize("links", Links)
@pytest.mark.parametrize("overlap", Overlap)
def test_all_schedules_are_valid(links: Links, overlap: Overlap) -> None:
    """Checked without the judge, on random problems with every constraint."""
    for seed in range(40):
        problem = random_problem(seed, links=links, overlap=overlap)
        for planner in quick(problem):
            if planner.unsupported_reason(problem) is not None:
                continue
            try:
                plan = proposal_of(planner(problem, Context(seed=seed))).plan
            except InfeasibleError:
                continue
            assert_valid_schedule(problem, plan.placement, judge(problem, plan))


@pytest.mark.parametrize("links", Links)
@pytest.mark.parametrize(
    "name", ["layered_n100_ccr5.0_s0", "layered_n1000_ccr1.0_s0", "narrow_n100_ccr1.0_s7"]
)
def test_schedules_of_published_graphs_are_valid(name: str, links: Links) -> None:
    """The same on the dag files."""
    problem = read_dag(published(f"dag/{name}.json"), links)
    for planner in quick(problem):
        if planner.unsupported_reason(problem) is None:
            plan = proposal_of(planner(problem, Context())).plan
            assert_valid_schedule(problem, plan.placement, judge(problem, plan))


def test_a_broken_schedule_is_noticed() -> None:
    """The validity check itself can fail."""
    problem = named_instances()["diamond"]
    other = tiny([[1.0, 2.0], [4.0, 9.0], [3.0, 3.0], [1.0, 1.0]])
    plan = proposal_of(named_planner("heft", other)(other, Context())).plan
    with pytest.raises((AssertionError, KeyError)):
        assert_valid_schedule(problem, plan.placement, judge(other, plan))


def test_the_portfolio_names_planners() -> None:
    """``auto`` tries planners that exist, single devices first."""
    problem = named_instances()["diamond"]
    assert set(portfolio(problem)) <= set(planners(problem))
    assert list(portfolio(problem))[:2] == ["only:dev0", "only:dev1"]


def test_plans_without_a_schedule_leave_the_order_to_the_judge() -> None:
    """Single devices, round robin and random have no opinion on the order."""
    problem = named_instances()["diamond"]
    for name in ("only:dev0", "round-robin", "random"):
        plan = proposal_of(named_planner(name, problem)(problem, Context())).plan
        assert plan.order is None
