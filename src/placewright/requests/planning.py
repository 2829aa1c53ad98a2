"""What `solve` needs of wing 4: planners, judge and bounds."""

from __future__ import annotations

from collections.abc import Sequence

from placewright.requests.bounds import bounds, refined_bounds
from placewright.requests.judge import judge
from placewright.requests.planners import BASELINES, planners, portfolio
from placewright.requests.problem import RequestProblem

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


def refined_s(problem: RequestProblem, limit_s: float) -> float:
    """Half: the fluid program is solved after the policies."""
    return limit_s / 2


def objective(problem: RequestProblem) -> str:
    """Effective accuracy."""
    return problem.objective


def baselines(problem: RequestProblem) -> Sequence[str]:
    """Policies that know no variants or no deadlines."""
    return list(BASELINES)
