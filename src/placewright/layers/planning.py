"""What `solve` needs of wing 2: planners, judge and bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from placewright.layers.bounds import bounds, refined_bounds
from placewright.layers.judge import judge
from placewright.layers.planners import planners, portfolio
from placewright.layers.problem import LayerProblem

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


def refined_s(problem: LayerProblem, limit_s: float) -> float:
    """None: planners prove the rest."""
    return 0.0


def objective(problem: LayerProblem) -> str:
    """Step time, or seconds per sample."""
    return str(problem.objective)


def baselines(problem: LayerProblem) -> Sequence[str]:
    """What one would do without planning: the fastest worker, or all of them with shares."""
    return [] if problem.variants is not None else ["single", "data"]


def rehearsals() -> Sequence[Callable[[], object]]:
    """None: kernels are few."""
    return ()
