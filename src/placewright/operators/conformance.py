"""Wing 1's problems for the conformance kit, and what a valid plan is."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from hypothesis.strategies import SearchStrategy

from placewright.operators.plan import OperatorPlan, check_plan
from placewright.operators.problem import OperatorProblem
from placewright.testing.instances import named_instances
from placewright.testing.strategies import problems

__all__ = ["check_plan", "random_problems", "same_plan", "tiny_instances"]


def tiny_instances() -> Mapping[str, OperatorProblem]:
    """Named problems that planners get wrong; the first is a diamond."""
    return named_instances()


def random_problems() -> SearchStrategy[OperatorProblem]:
    """Refused devices, groups, pins, memory limits, every link and overlap mode."""
    return problems()


def same_plan(plan: OperatorPlan, other: OperatorPlan) -> bool:
    """Whether placement, order and dispatch are equal."""
    return (
        np.array_equal(plan.placement, other.placement)
        and plan.dispatch == other.dispatch
        and (plan.order is None) == (other.order is None)
        and (plan.order is None or other.order is None or np.array_equal(plan.order, other.order))
    )
