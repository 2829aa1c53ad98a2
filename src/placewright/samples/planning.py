"""What `solve` needs of wing 3: planners, judge and bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from placewright.samples.bounds import bounds, refined_bounds
from placewright.samples.judge import judge
from placewright.samples.planners import planners, portfolio
from placewright.samples.problem import SampleProblem

__all__ = [
    "baselines",
    "bounds",
    "judge",
    "objective",
    "planners",
    "portfolio",
    "refined_bounds",
    "refined_s",
    "rehearsals",
]


def refined_s(problem: SampleProblem, limit_s: float) -> float:
    """None: the bound of the linear program is a by-product of its planner."""
    return 0.0


def objective(problem: SampleProblem) -> str:
    """The end of the training."""
    return str(problem.objective)


def baselines(problem: SampleProblem) -> Sequence[str]:
    """No sample moves."""
    return ["none"]


def rehearsals() -> Sequence[Callable[[], object]]:
    """None: kernels are few."""
    return ()
