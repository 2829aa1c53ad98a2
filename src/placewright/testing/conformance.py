"""What every planner must keep to, as a class to inherit.

    class TestMine(PlannerConformance):
        named = "mine"

A planner that is in no list overrides `planner` instead; one of another wing names its `wing`. Own
planners, and those of other distributions, get the same tests.
"""

from __future__ import annotations

import math
from dataclasses import is_dataclass
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from placewright.errors import InfeasibleError
from placewright.planning.contract import Conformance, Context, Planner, Proposal, Wing, proposal_of
from placewright.planning.wings import find_wing

FEW = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow],
)
"""Enough problems to meet every constraint; the same ones every time."""


class PlannerConformance:
    """Inherit, and say which planner by its name or by `planner`.

    Attributes
    ----------
    wing
        The planner's wing, or its name.
    """

    named: ClassVar[str] = ""
    wing: ClassVar[str | Wing] = "operators"

    def planner(self, problem: Any) -> Planner:
        """The planner under test."""
        return self._wing().planning().planners(problem)[self.named]

    def proposal(self, problem: Any, seed: int = 0) -> Proposal[Any] | None:
        """Its answer; ``None`` where there is none, or none that can be simulated."""
        planner, judge = self.planner(problem), self._wing().planning().judge
        if planner.unsupported_reason(problem) is not None:
            return None
        try:
            proposal = proposal_of(planner(problem, Context(seed=seed, judge=judge)))
            judge(problem, proposal.plan)
        except InfeasibleError:
            return None
        assert isinstance(proposal.plan, self._wing().plan_type())
        return proposal

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run `test_plans_of_tiny_instances_are_valid` on each of the wing's instances."""
        if "name" in metafunc.fixturenames:
            metafunc.parametrize("name", list(self._kit().tiny_instances()))

    def test_plans_of_tiny_instances_are_valid(self, name: str) -> None:
        """Every named instance gets a plan that can be simulated, or an error that says why not."""
        problem = self._kit().tiny_instances()[name]
        proposal = self.proposal(problem)
        if proposal is None:
            return
        self._kit().check_plan(problem, proposal.plan)
        if proposal.bound is not None:
            value = self._wing().planning().judge(problem, proposal.plan).value
            assert not self._wing().direction.better(value, proposal.bound)

    @FEW
    @given(data=st.data())
    def test_plans_of_random_problems_are_valid(self, data: st.DataObject) -> None:
        """Every kind of constraint that the wing has."""
        problem = data.draw(self._kit().random_problems())
        proposal = self.proposal(problem)
        if proposal is not None:
            self._kit().check_plan(problem, proposal.plan)
            assert math.isfinite(self._wing().planning().judge(problem, proposal.plan).value)

    @FEW
    @given(data=st.data(), seed=st.integers(0, 1000))
    def test_the_same_seed_gives_the_same_plan(self, data: st.DataObject, seed: int) -> None:
        """Two calls, equal to the last bit."""
        problem = data.draw(self._kit().random_problems())
        first, second = (self.proposal(problem, seed) for _ in range(2))
        assert (first is None) == (second is None)
        if first is not None and second is not None:
            assert self._kit().same_plan(first.plan, second.plan)

    @FEW
    @given(data=st.data())
    def test_the_problem_is_untouched(self, data: st.DataObject) -> None:
        """Planning changes no array of the problem."""
        problem = data.draw(self._kit().random_problems())
        before = problem.hash()
        self.proposal(problem)
        assert problem.hash() == before

    def test_it_is_a_frozen_dataclass_with_a_name(self) -> None:
        """Fields are parameters; the name is what the command line calls it."""
        problem = next(iter(self._kit().tiny_instances().values()))
        planner = self.planner(problem)
        assert is_dataclass(planner)
        assert hash(planner) == hash(self.planner(problem))
        assert planner.name
        assert planner.name.strip() == planner.name

    def _wing(self) -> Wing:
        return find_wing(self.wing) if isinstance(self.wing, str) else self.wing

    def _kit(self) -> Conformance:
        conformance = self._wing().conformance
        assert conformance is not None, f"wing {self._wing().name} has no conformance problems"
        return conformance()
