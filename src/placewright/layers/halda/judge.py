"""Judge of layers in a ring: Halda's seconds per token, and what physics allows beside it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from placewright.layers.halda.costs import (
    fixed_s,
    kappa_s,
    layer_bytes,
    physical_bound_s,
    seconds,
)
from placewright.layers.halda.problem import RingPlan, RingProblem, check_plan


@dataclass(frozen=True, eq=False)
class RingJudgement:
    """Judgement of a plan.

    Attributes
    ----------
    value
        Seconds per token by the formula of `placewright.layers.halda.costs`.
    violation, violation_size
        The device that overflows by more layers than a round has, and 1.
    """

    problem: RingProblem
    plan: RingPlan
    value: float
    violation: str
    violation_size: float

    @property
    def feasible(self) -> bool:
        """Whether the formula allows it."""
        return not self.violation

    @cached_property
    def physical_s(self) -> float:
        """Seconds per token that no placement can beat; the formula may say less."""
        return physical_bound_s(self.problem)

    @property
    def metrics(self) -> dict[str, tuple[float, str]]:
        """Measures beside the value."""
        return {
            "rounds": (float(self.plan.rounds), ""),
            "physical bound": (self.physical_s, "s"),
        }

    def trace(self) -> None:
        """The formula has no timeline."""
        return


def judge(problem: RingProblem, plan: RingPlan) -> RingJudgement:
    """Seconds per token of a plan.

    Raises `InputError`: it is no plan of the problem.
    """
    check_plan(problem, plan)
    total, slowest, violation = kappa_s(problem), 0.0, ""
    for d, w, n in zip(problem.devices, plan.layers, plan.gpu_layers, strict=True):
        most = problem.model.num_layers // plan.rounds
        busy_s = float(seconds(problem, d, np.array(w), np.array(n), most).item())
        if np.isinf(busy_s):
            violation = violation or f"{d.name} lacks memory for more than {most} of its layers"
        own_s = busy_s + fixed_s(d)
        total += own_s
        slowest = max(slowest, own_s + w * layer_bytes(problem) / d.disk_bytes_per_s / 2)
    value = total + (plan.rounds - 1) * slowest if plan.rounds > 1 else total
    return RingJudgement(problem, plan, float(value), violation, float(bool(violation)))
