"""The conformance kit fails planners that break a rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from placewright.errors import PlacewrightError
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem
from placewright.planning.contract import Context, Planner, Proposal
from placewright.testing import PlannerConformance, WingConformance


@dataclass(frozen=True)
class Stub:
    """A planner whose answer is a function."""

    answer: Any
    name: str = "stub"

    def unsupported_reason(self, problem: OperatorProblem) -> str | None:
        """Always."""
        return None

    def __call__(self, problem: OperatorProblem, context: Context) -> OperatorPlan:
        """What the function says."""
        plan: OperatorPlan = self.answer(problem)
        return plan


def kit(answer: Any) -> PlannerConformance:
    """The kit on a stub."""

    class OfStub(PlannerConformance):
        def planner(self, problem: OperatorProblem) -> Planner:
            return Stub(answer)

    return OfStub()


def without_a_seed(problem: OperatorProblem) -> OperatorPlan:
    """Random, and not by the context's seed."""
    return OperatorPlan(np.random.default_rng().integers(0, problem.m, problem.n))


def boasting(problem: OperatorProblem) -> Proposal[OperatorPlan]:
    """Claims a bound that its own plan beats."""
    return Proposal(OperatorPlan(np.zeros(problem.n)), 1e9)


def test_a_blind_planner_fails() -> None:
    """It puts operators where they cannot run."""
    with pytest.raises((AssertionError, PlacewrightError)):
        kit(lambda p: OperatorPlan(np.full(p.n, p.m))).test_plans_of_tiny_instances_are_valid(
            "chain"
        )


def fastest(problem: OperatorProblem) -> OperatorPlan:
    """Every group on the device that computes it fastest, pinned or not, able to or not."""
    work = np.where(np.isfinite(problem.compute_s), problem.compute_s, 0.0)
    _, group = np.unique(problem.colocation, return_inverse=True)
    total = np.zeros((problem.n, problem.m))
    np.add.at(total, group, work)
    return OperatorPlan(total.argmin(axis=1)[group])


def test_a_planner_that_looks_at_neither_pins_nor_refusals_fails() -> None:
    """Its plans cannot be executed, which is no excuse."""
    with pytest.raises((PlacewrightError, ExceptionGroup), match=r"cannot run on|sub-exc"):
        kit(fastest).test_plans_of_random_problems_are_valid_and_repeat()


def test_a_splitting_planner_fails() -> None:
    """It tears a group apart."""
    with pytest.raises(PlacewrightError, match="belong together"):
        kit(lambda p: OperatorPlan([0, 0, 1, 0, 0])).test_plans_of_tiny_instances_are_valid(
            "together"
        )


def test_a_boasting_planner_fails() -> None:
    """Its bound is above its value."""
    with pytest.raises(AssertionError):
        kit(boasting).test_plans_of_tiny_instances_are_valid("chain")


def test_an_unseeded_planner_fails() -> None:
    """Two calls, two plans."""
    with pytest.raises((AssertionError, PlacewrightError, ExceptionGroup)):
        kit(without_a_seed).test_plans_of_random_problems_are_valid_and_repeat()


class TestOperators(WingConformance):
    """Wing 1."""

    wing = "operators"


class TestSamples(WingConformance):
    """Wing 3."""

    wing = "samples"
