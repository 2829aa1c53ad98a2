"""Hypothesis strategies for problems, placements and plans."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from placewright.operators.plan import Dispatch, OperatorPlan
from placewright.operators.problem import Links, Objective, OperatorProblem, Overlap
from placewright.testing.instances import random_placement, random_problem, with_random_views


@st.composite
def problems(
    draw: st.DrawFn,
    *,
    most_operators: int = 10,
    most_devices: int = 4,
    objective: Objective = Objective.LATENCY,
) -> OperatorProblem:
    """Problems with unsupported devices, groups, pins, memory limits and shared channels.

    Hypothesis draws the seed and the sizes, so that it can shrink towards few operators.
    """
    operators = draw(st.integers(1, most_operators))
    devices = draw(st.integers(1, most_devices))
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
