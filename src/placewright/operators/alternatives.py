"""A plan with some of its operators on another device, judged."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from placewright.errors import InfeasibleError
from placewright.numerics.arrays import BoolArray
from placewright.operators.judge import judge
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem


@dataclass(frozen=True, slots=True)
class Alternative:
    """The plan with the operator (and its group) on another device.

    Attributes
    ----------
    compute_s
        The operator alone, there.
    value_s
        Value of the changed plan, ``inf`` where it cannot be.
    note
        Why it cannot be, empty if it can.
    """

    device: str
    compute_s: float
    value_s: float
    note: str = ""


def moved(
    problem: OperatorProblem, plan: OperatorPlan, moving: BoolArray, own_s: float, device: int
) -> Alternative:
    """The plan with the operators in `moving`, whole groups, on another device.

    `own_s`: what the operators that are asked about take there.
    """
    name = problem.device_names[device]
    leader = device if plan.replica_of is None else int(plan.replica_of[device])
    if leader != device:
        note = f"it is a copy of {problem.device_names[leader]!r}"
        return Alternative(name, own_s, float("inf"), note)
    placement = np.where(moving, device, plan.placement)
    try:
        judged = judge(problem, replace(plan, placement=placement))
    except InfeasibleError as error:
        return Alternative(name, own_s, float("inf"), error.what)
    if not judged.feasible:
        return Alternative(name, own_s, float("inf"), judged.violation)
    return Alternative(name, own_s, float(judged.value))
