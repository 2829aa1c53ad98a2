"""The shared setup of list schedulers: memory budgets shrink until a plan fits."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

from placewright.numerics.arrays import FloatArray
from placewright.operators.conformance import tiny
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.lists.insertion import within_memory
from placewright.operators.planners.lists.planners import HEFT
from placewright.planning.contract import Context


@pytest.mark.parametrize(("seconds", "builds"), [(0.0, 1), (math.inf, 9)])
def test_no_round_begins_after_the_deadline(seconds: float, builds: int) -> None:
    """The first plan is the answer where nothing fits anyway."""
    problem = tiny([[1.0, 1.0]], resident_bytes=[2.0], memory_bytes=[1.0, 1.0])
    budgets = list[FloatArray]()

    def build(budget_bytes: FloatArray) -> OperatorPlan:
        budgets.append(budget_bytes)
        return OperatorPlan(np.zeros(1, dtype=np.int64))

    plan = within_memory(problem, build, time.perf_counter() + seconds)
    assert plan.placement.tolist() == [0]
    assert len(budgets) == builds


def test_a_budget_that_leaves_no_linked_device_keeps_the_plan_before() -> None:
    """The plan that is over its memory by least, and not an error about links."""
    problem = tiny(
        [[1.0, np.inf], [1.0, 1.0]],
        [(0, 4.0, [1])],
        resident_bytes=[4.0, 4.0],
        memory_bytes=[8.0, np.inf],
    )
    apart = np.array([[0.0, np.inf], [np.inf, 0.0]])
    problem = problem.replace(latency_s=apart, seconds_per_byte=apart, channel=np.full((2, 2), -1))
    assert HEFT(problem, Context()).placement.tolist() == [0, 0]
