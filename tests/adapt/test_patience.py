"""How long a step may take before it counts as stuck."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from placewright.adapt.patience import SILENCE_STEPS, order_limit_s, step_limit_s
from placewright.adapt.timeline import Timeline
from placewright.operators.judge import judge
from placewright.operators.plan import OperatorPlan
from placewright.testing.instances import named_instances


def test_patience_is_that_of_typical_steps() -> None:
    """Of the last twenty, of the judge before there are any, and never less than was asked."""
    problem = named_instances()["diamond"]
    plan = OperatorPlan([0] * problem.n)
    adaptation: Any = SimpleNamespace(problem=problem, plan=plan)
    timeline = Timeline()
    assert step_limit_s(timeline, None, 10.0) == 10.0
    judged_s = judge(problem, plan).value
    assert step_limit_s(timeline, adaptation, 1e-9) == pytest.approx(SILENCE_STEPS * judged_s)
    for seconds in [50.0] * 20 + [2.0] * 20:
        timeline.stepped(seconds)
    assert step_limit_s(timeline, adaptation, 10.0) == SILENCE_STEPS * 2.0
    assert step_limit_s(timeline, adaptation, 1000.0) == 1000.0


def test_more_state_may_take_longer() -> None:
    """Twenty gigabytes on a slow disk are no reason to give workers up."""
    assert order_limit_s(10.0, 0) == 40.0
    assert order_limit_s(10.0, 20 * 10**9) == 1040.0
