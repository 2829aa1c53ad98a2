"""What every planner of wing 1 must keep to, as a class to inherit.

    class TestMine(PlannerConformance):
        named = "mine"

A planner that is in no list overrides `planner` instead. Own planners, and those of other
distributions, get the same tests.
"""

from __future__ import annotations

from dataclasses import is_dataclass
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from placewright.errors import InfeasibleError
from placewright.operators.judge import judge
from placewright.operators.plan import OperatorPlan, check_plan
from placewright.operators.planners import planners
from placewright.operators.problem import OperatorProblem
from placewright.planning.contract import Context, Planner, Proposal, proposal_of
from placewright.testing.instances import named_instances
from placewright.testing.strategies import problems

FEW = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow],
)
"""Enough problems to meet every constraint; the same ones every time."""


class PlannerConformance:
    """Inherit, and say which planner by its name or by `planner`."""

    named: ClassVar[str] = ""

    def planner(self, problem: OperatorProblem) -> Planner:
        """The planner under test."""
        return planners(problem)[self.named]

    def proposal(self, problem: OperatorProblem, seed: int = 0) -> Proposal[OperatorPlan] | None:
        """Its answer; ``None`` where there is none, or the devices that it uses are not linked."""
        planner = self.planner(problem)
        if planner.unsupported_reason(problem) is not None:
            return None
        try:
            proposal = proposal_of(planner(problem, Context(seed=seed, judge=judge)))
            judge(problem, proposal.plan)
        except InfeasibleError:
            return None
        assert isinstance(proposal.plan, OperatorPlan)
        return proposal

    @pytest.mark.parametrize("name", named_instances())
    def test_plans_of_tiny_instances_are_valid(self, name: str) -> None:
        """Every named instance gets a plan that can be played, or an error that says why not."""
        problem = named_instances()[name]
        proposal = self.proposal(problem)
        if proposal is not None:
            check_plan(problem, proposal.plan)
            assert judge(problem, proposal.plan).value >= (proposal.bound or 0.0)

    @FEW
    @given(problem=problems())
    def test_plans_of_random_problems_are_valid(self, problem: OperatorProblem) -> None:
        """Refused devices, groups, pins, memory limits, every link and overlap mode."""
        proposal = self.proposal(problem)
        if proposal is not None:
            check_plan(problem, proposal.plan)
            assert np.isfinite(judge(problem, proposal.plan).value)

    @FEW
    @given(problem=problems(), seed=st.integers(0, 1000))
    def test_the_same_seed_gives_the_same_plan(self, problem: OperatorProblem, seed: int) -> None:
        """Placement, order and dispatch repeat."""
        answers = [self.proposal(problem, seed) for _ in range(2)]
        first, second = (None if a is None else a.plan for a in answers)
        assert (first is None) == (second is None)
        if first is not None and second is not None:
            assert np.array_equal(first.placement, second.placement)
            assert first.dispatch == second.dispatch
            assert (first.order is None) == (second.order is None)
            if first.order is not None and second.order is not None:
                assert np.array_equal(first.order, second.order)

    @FEW
    @given(problem=problems())
    def test_the_problem_is_untouched(self, problem: OperatorProblem) -> None:
        """Planning changes no array of the problem."""
        before = problem.hash()
        self.proposal(problem)
        assert problem.hash() == before

    def test_it_is_a_frozen_dataclass_with_a_name(self) -> None:
        """Fields are parameters; the name is what the command line calls it."""
        problem = named_instances()["diamond"]
        planner = self.planner(problem)
        assert is_dataclass(planner)
        assert hash(planner) == hash(self.planner(problem))
        assert planner.name
        assert planner.name.strip() == planner.name
