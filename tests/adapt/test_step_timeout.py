"""How long a step may take before it counts as stuck."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from placewright.adapt.step_timeout import StepTimeout
from placewright.adapt.timeline import Timeline
from placewright.operators.judge import judge
from placewright.operators.plan import OperatorPlan
from placewright.runtime.limits import SILENCE_STEPS
from placewright.testing.instances import named_instances

DIAMOND = named_instances()["diamond"]
PLAN = OperatorPlan(np.zeros(DIAMOND.n, dtype=np.int64))
JUDGED_S = judge(DIAMOND, PLAN).value


def running(slower: float = 1.0) -> Any:
    """An adaptation on devices that are so many times slower than the diamond's."""
    problem = DIAMOND.replace(compute_s=DIAMOND.compute_s * slower)
    return SimpleNamespace(watch=SimpleNamespace(problem=lambda: problem), plan=PLAN)


def test_patience_is_that_of_typical_steps() -> None:
    """Of the last twenty, of the judge before there are any, and never less than was asked."""
    timeline, patience = Timeline(plans=1), StepTimeout(1e-9)
    limit_s = patience.step_limit_s(timeline, running())
    assert limit_s == pytest.approx(SILENCE_STEPS * JUDGED_S)
    for seconds in [50.0] * 20 + [2.0] * 20:
        timeline.stepped(seconds)
    assert patience.step_limit_s(timeline, running()) == SILENCE_STEPS * 2.0
    assert StepTimeout(1000.0).step_limit_s(timeline, running()) == 1000.0


def test_survivors_may_be_a_hundred_times_slower() -> None:
    """The judge's word counts until their plan has steps of its own, then those alone."""
    timeline, patience = Timeline(plans=1), StepTimeout(1e-9)
    patience.step_limit_s(timeline, running(0.01))
    for _ in range(30):
        timeline.stepped(0.001 * JUDGED_S)
    timeline.plans = 2
    limit_s = patience.step_limit_s(timeline, running())
    assert limit_s == pytest.approx(SILENCE_STEPS * JUDGED_S)
    timeline.stepped(3 * JUDGED_S)
    limit_s = patience.step_limit_s(timeline, running())
    assert limit_s == pytest.approx(SILENCE_STEPS * 3 * JUDGED_S)


def test_a_judge_who_says_too_little_is_believed_accordingly() -> None:
    """Steps took seven times what he had said of the plan before."""
    timeline, patience = Timeline(plans=1), StepTimeout(1e-9)
    patience.step_limit_s(timeline, running(0.01))
    timeline.stepped(0.07 * JUDGED_S)
    timeline.plans = 2
    limit_s = patience.step_limit_s(timeline, running())
    assert limit_s == pytest.approx(SILENCE_STEPS * 7 * JUDGED_S)
