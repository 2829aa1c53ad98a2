"""Plans for a running job, in a process of their own."""

from __future__ import annotations

from placewright.operators.adaptive.replanner import Replanner
from placewright.operators.adaptive.survivors import problem_of
from placewright.operators.judge import judge
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem
from tests.operators.adaptive.jobs import job


def all_on(problem: OperatorProblem, device: int) -> OperatorPlan:
    """Every operator on one device."""
    return OperatorPlan([device] * problem.n)


def test_offers_go_on_while_devices_leave_and_return() -> None:
    """Three, two of them, two others, three: each offer is one for the devices that are there."""
    whole, replanner = job()[1].problem, Replanner()
    for names in ("abc", "ab", "bc", "abc"):
        problem = problem_of(whole, set(names))
        current = all_on(problem, 1)
        offer = replanner.offer(problem, current)
        assert judge(problem, offer.plan).feasible
        assert offer.plan.placement.max() < problem.m
        assert offer.new_s <= offer.current_s == judge(problem, current).value
