"""Problems of wing 1 for the conformance kit, and hypothesis strategies for its tests."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from hypothesis import strategies as st

from placewright.operators.instances import (
    named_instances,
    random_placement,
    random_problem,
    with_random_views,
)
from placewright.operators.plan import Dispatch, OperatorPlan, check_plan
from placewright.operators.problem import Links, Objective, OperatorProblem, Overlap

__all__ = ["check_plan", "plans", "problems", "random_problems", "same_plan", "tiny_instances"]


MOST_OPERATORS, MOST_DEVICES = 10, 4
"""Of random problems."""


def tiny_instances() -> Mapping[str, OperatorProblem]:
    """Named problems that planners get wrong."""
    return named_instances()


def random_problems() -> st.SearchStrategy[OperatorProblem]:
    """Refused devices, groups, pins, memory limits, every link and overlap mode."""
    return problems()


def same_plan(plan: OperatorPlan, other: OperatorPlan) -> bool:
    """Whether placement, order, dispatch, calls and copies are equal."""
    arrays = ("placement", "order", "call", "replica_of")
    pairs = [(getattr(plan, key), getattr(other, key)) for key in arrays]
    return plan.dispatch == other.dispatch and all(
        (a is None) == (b is None) and (a is None or np.array_equal(a, b)) for a, b in pairs
    )


@st.composite
def problems(draw: st.DrawFn, *, objective: Objective = Objective.LATENCY) -> OperatorProblem:
    """Problems with unsupported devices, groups, pins, memory limits and shared channels.

    Hypothesis draws the seed and the sizes, so that it can shrink towards few operators.
    """
    operators, devices = draw(st.integers(1, MOST_OPERATORS)), draw(st.integers(1, MOST_DEVICES))
    problem = random_problem(
        draw(st.integers(0, 2**32 - 1)), most_operators=operators, most_devices=devices
    )
    if draw(st.booleans()):
        problem = with_random_views(problem, draw(st.integers(0, 2**32 - 1)))
    return problem.replace(
        objective=objective,
        links=draw(st.sampled_from(list(Links))),
        overlap=draw(st.sampled_from(list(Overlap))),
    )


@st.composite
def plans(draw: st.DrawFn, problem: OperatorProblem) -> OperatorPlan:
    """Plans that `check_plan` passes: without an order, with any, or in a topological one."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    placement = random_placement(problem, rng)
    kind = draw(st.sampled_from(["none", "any", "in-order"]))
    if kind == "none":
        return OperatorPlan(placement)
    if kind == "any":
        return OperatorPlan(placement, rng.permutation(problem.n))
    return OperatorPlan(placement, problem.topology.order, Dispatch.IN_ORDER)
