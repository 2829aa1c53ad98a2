"""How long a step may take before it counts as stuck."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from placewright.adapt.patience import SILENCE_STEPS, order_limit_s, step_limit_s
from placewright.adapt.timeline import Timeline
from placewright.operators.judge import judge
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem
from placewright.testing.instances import named_instances


def running(problem: OperatorProblem) -> Any:
    """An adaptation whose profile is as it was."""
    watch = SimpleNamespace(problem=lambda: problem)
    return SimpleNamespace(watch=watch, plan=OperatorPlan([0] * problem.n))


def test_patience_is_that_of_typical_steps() -> None:
    """Of the last twenty, of the judge before there are any, and never less than was asked."""
    problem = named_instances()["diamond"]
    adaptation = running(problem)
    timeline = Timeline()
    assert step_limit_s(timeline, None, 10.0) == 10.0
    judged_s = judge(problem, adaptation.plan).value
    assert step_limit_s(timeline, adaptation, 1e-9) == pytest.approx(SILENCE_STEPS * judged_s)
    for seconds in [50.0] * 20 + [2.0] * 20:
        timeline.stepped(seconds)
    assert step_limit_s(timeline, adaptation, 10.0) == SILENCE_STEPS * 2.0
    assert step_limit_s(timeline, adaptation, 1000.0) == 1000.0


def test_survivors_may_be_a_hundred_times_slower() -> None:
    """The judge's word counts until their plan has steps of its own, then those alone; where the
    judge says less than what steps took before, these count.
    """
    problem = named_instances()["diamond"]
    adaptation = running(problem)
    judged_s = judge(problem, adaptation.plan).value
    timeline = Timeline(plans=1)
    for _ in range(30):
        timeline.stepped(judged_s / 100)
    timeline.plans = 2
    assert step_limit_s(timeline, adaptation, 1e-9) == pytest.approx(SILENCE_STEPS * judged_s)
    timeline.stepped(3 * judged_s)
    assert step_limit_s(timeline, adaptation, 1e-9) == pytest.approx(SILENCE_STEPS * 3 * judged_s)
    timeline.plans = 3
    slower = running(problem.asked(compute_s=problem.compute_s / 1e6))
    timeline.stepped(judged_s)
    timeline.plans = 4
    limit_s = step_limit_s(timeline, slower, 1e-9)
    assert limit_s == pytest.approx(SILENCE_STEPS * timeline.typical_s(20))


def test_more_state_may_take_longer() -> None:
    """Twenty gigabytes on a slow disk are no reason to give workers up."""
    assert order_limit_s(10.0, 0) == 40.0
    assert order_limit_s(10.0, 20 * 10**9) == 1040.0
