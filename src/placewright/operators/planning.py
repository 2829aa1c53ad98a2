"""Planners, judge and bounds of wing 1, for `solve`."""

from __future__ import annotations

from collections.abc import Sequence

from placewright.operators.bounds import bounds, refined_bounds, refined_s
from placewright.operators.judge import judge
from placewright.operators.planners import planners, portfolio
from placewright.operators.problem import OperatorProblem

__all__ = [
    "baselines",
    "bounds",
    "judge",
    "objective",
    "planners",
    "portfolio",
    "refined_bounds",
    "refined_s",
]


def objective(problem: OperatorProblem) -> str:
    """The objective, and the options of the pipeline."""
    return ", ".join(x for x in (str(problem.objective), problem.pipeline.described()) if x)


def baselines(problem: OperatorProblem) -> Sequence[str]:
    """Everything on one device."""
    return [f"only:{device}" for device in problem.device_names]
