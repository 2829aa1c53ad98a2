"""What `solve` needs of layers in a ring: planners, judge and bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from placewright.layers.halda.judge import judge
from placewright.layers.halda.planners import BASELINES, planners
from placewright.layers.halda.problem import RingProblem
from placewright.planning.contract import BoundContext

__all__ = ["baselines", "bounds", "judge", "objective", "planners", "portfolio"]


def portfolio(problem: RingProblem) -> Sequence[str]:
    """What ``auto`` tries: the exact one, which leaves nothing to the others."""
    return ["rounds"]


def bounds(problem: RingProblem) -> Mapping[str, float]:
    """None: `rounds` proves its plan, and the physical bound is none on the formula."""
    return {}


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
