"""What every planner, and every wing, must keep to: classes of tests to inherit.

    class TestMine(PlannerConformance):
        named = "mine"  # or several: ("mine", "other")

    class TestMyWing(WingConformance):
        wing = "mine"

A planner that is in no list overrides `planner` instead; one of another wing names its `wing`. Own
planners, and those of other distributions, get the same tests.
"""

from __future__ import annotations

import json
import math
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from placewright.errors import InfeasibleError
from placewright.io.boundary import validate
from placewright.planning.contract import Context, Planner, Proposal, proposal_of
from placewright.planning.parameters import choose, label
from placewright.planning.solving import compare
from placewright.planning.wing import Conformance, Wing
from placewright.planning.wings import find_wing, wing_of

FEW = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow],
)
"""Enough problems to meet every constraint; the same ones every time."""

ROUNDING = 1e-9
"""Relative: sums of the same numbers in another order."""


class _OfWing:
    """Tests of a wing, or of its planners.

    `wing`: the wing, or its name.
    """

    wing: ClassVar[str | Wing] = "operators"

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run tests with the argument `name` on each of the wing's instances."""
        if "name" in metafunc.fixturenames:
            metafunc.parametrize("name", list(self._kit().tiny_instances()))

    def _wing(self) -> Wing:
        return find_wing(self.wing) if isinstance(self.wing, str) else self.wing

    def _kit(self) -> Conformance:
        conformance = self._wing().conformance
        assert conformance is not None, f"wing {self._wing().name} has no conformance problems"
        return conformance()


class PlannerConformance(_OfWing):
    """Inherit, and say which planner by its name or by `planner`; several names, each is tested."""

    named: ClassVar[str | tuple[str, ...]] = ""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run every test with each of the planners, and tests of instances on each of these."""
        super().pytest_generate_tests(metafunc)
        if isinstance(self.named, tuple):
            metafunc.parametrize("_planner_name", self.named, indirect=True)

    @pytest.fixture(autouse=True)
    def _planner_name(self, request: pytest.FixtureRequest) -> None:
        self._name = str(getattr(request, "param", self.named))

    def planner(self, problem: Any) -> Planner:
        """The planner under test."""
        return self._wing().planning().planners(problem)[self._name]

    def proposal(self, problem: Any, seed: int = 0) -> Proposal[Any] | None:
        """Its answer; ``None`` where there is none, or none that can be simulated.

        Raises what `Conformance.check_plan` does: a plan that breaks a rule is no answer.
        """
        planner, judge = self.planner(problem), self._wing().planning().judge
        if planner.unsupported_reason(problem) is not None:
            return None
        try:
            proposal = proposal_of(planner(problem, Context(seed=seed, judge=judge)))
        except InfeasibleError:
            return None
        assert isinstance(proposal.plan, self._wing().plan_type())
        self._kit().check_plan(problem, proposal.plan)
        try:
            judge(problem, proposal.plan)
        except InfeasibleError:  # a heuristic may miss a link
            return None
        return proposal

    def test_plans_of_tiny_instances_are_valid(self, name: str) -> None:
        """Every named instance gets a plan that can be simulated, or an error that says why not."""
        problem = self._kit().tiny_instances()[name]
        proposal = self.proposal(problem)
        if proposal is not None and proposal.bound is not None:
            value = self._wing().planning().judge(problem, proposal.plan).value
            assert not self._wing().direction.better(value, proposal.bound)

    @FEW
    @given(data=st.data(), seed=st.integers(0, 1000))
    def test_plans_of_random_problems_are_valid_and_repeat(
        self, data: st.DataObject, seed: int
    ) -> None:
        """Every constraint is kept, two calls are equal to the last bit, no array is changed."""
        problem = data.draw(self._kit().random_problems())
        before = problem.hash()
        first, second = (self.proposal(problem, seed) for _ in range(2))
        assert problem.hash() == before
        assert (first is None) == (second is None)
        if first is not None and second is not None:
            assert math.isfinite(self._wing().planning().judge(problem, first.plan).value)
            assert self._kit().same_plan(first.plan, second.plan)

    def test_it_is_a_frozen_dataclass_with_a_name(self) -> None:
        """Fields are parameters; the name is what the command line calls it."""
        problem = next(iter(self._kit().tiny_instances().values()))
        planner = self.planner(problem)
        assert is_dataclass(planner)
        assert hash(planner) == hash(self.planner(problem))
        assert planner.name
        assert planner.name.strip() == planner.name
        known = {planner.name: planner}
        assert choose(known, label(known, planner)) == (planner.name, planner)


class WingConformance(_OfWing):
    """Inherit, and say which wing by its name."""

    def test_problems_are_the_wings_own(self, name: str) -> None:
        """They have a name and a hash, and no other wing takes them."""
        problem = self._kit().tiny_instances()[name]
        assert wing_of(problem) is self._wing()
        assert problem.name
        assert problem.hash() == problem.hash()
        assert self._wing().planning().objective(problem)

    def test_names_are_those_of_planners(self, name: str) -> None:
        """In the list, the portfolio and the baselines."""
        problem, planning = self._kit().tiny_instances()[name], self._wing().planning()
        known = planning.planners(problem)
        assert [planner.name for planner in known.values()] == list(known)
        assert {*planning.portfolio(problem), *planning.baselines(problem)} <= set(known)
        for planner in known.values():
            assert planner.unsupported_reason(problem) != ""

    def test_no_baseline_beats_a_bound(self, name: str) -> None:
        """Nor does the reason why it does not fit lack a size."""
        problem, planning = self._kit().tiny_instances()[name], self._wing().planning()
        bound = self._wing().direction.tightest(planning.bounds(problem).values())
        for baseline in planning.baselines(problem):
            self._judged(problem, planning.planners(problem)[baseline], bound)

    def _judged(self, problem: Any, planner: Planner, bound: float) -> None:
        if planner.unsupported_reason(problem) is not None:
            return
        judge = self._wing().planning().judge
        try:
            plan = proposal_of(planner(problem, Context(judge=judge))).plan
            judgement = judge(problem, plan)
        except InfeasibleError:
            return
        assert judgement.feasible == (not judgement.violation) == (judgement.violation_size <= 0)
        assert all(isinstance(unit, str) for _, unit in judgement.metrics.values())
        if judgement.feasible:
            direction = self._wing().direction
            eased = bound * (1 - direction.sign * ROUNDING)
            assert not direction.better(judgement.value, eased)

    def test_files_are_read_back_equal(self, name: str, tmp_path: Path) -> None:
        """Problems, and plans with what was proved; their kinds are told apart."""
        problem, files = self._kit().tiny_instances()[name], self._wing().files()
        path = files.write_problem(problem, tmp_path / f"{problem.name}.json")
        back = files.read_problem(path)
        assert back.hash() == problem.hash()
        assert files.problem_document.matches(json.loads(path.read_text()))
        names = self._wing().planning().baselines(problem) or list(
            self._wing().planning().planners(problem)
        )
        try:
            result = compare(problem, names[:1])
        except InfeasibleError:
            return
        saved = result.save(tmp_path / "plan.json")
        data = json.loads(saved.read_text())
        assert files.plan_document.matches(data)
        assert not files.plan_document.matches(json.loads(path.read_text()))
        validate(files.plan_document.model, data, where=str(saved))
        assert self._kit().same_plan(files.read_proposal(saved, problem).plan, result.plan)
