"""What `solve` needs of layers in a ring: planners, judge and bounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from placewright.layers.halda.judge import judge
from placewright.layers.halda.planners import BASELINES, planners, relaxed_bound_s
from placewright.layers.halda.problem import RingProblem
from placewright.planning.contract import BoundContext

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


def portfolio(problem: RingProblem) -> Sequence[str]:
    """What ``auto`` tries: the exact one, which leaves nothing to the others."""
    return ["rounds"]


def bounds(problem: RingProblem) -> Mapping[str, float]:
    """With cycles at their shortest; `rounds` proves the rest.

    The physical bound is none on the formula, which undercuts it.
    """
    relaxed = relaxed_bound_s(problem)
    return {"relaxed": relaxed} if math.isfinite(relaxed) else {}


def refined_bounds(problem: RingProblem, known: BoundContext) -> Mapping[str, float]:
    """None."""
    return {}


def refined_s(problem: RingProblem, limit_s: float) -> float:
    """None."""
    return 0.0


def objective(problem: RingProblem) -> str:
    """Seconds per token."""
    return "time per token"


def baselines(problem: RingProblem) -> Sequence[str]:
    """Parts by count or by memory."""
    return BASELINES


def rehearsals() -> Sequence[Callable[[], object]]:
    """None: nothing is compiled."""
    return ()
