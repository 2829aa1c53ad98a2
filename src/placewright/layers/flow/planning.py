"""What `solve` needs of layer ranges: planners, judge and bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from placewright.layers.flow.bounds import bounds
from placewright.layers.flow.judge import judge
from placewright.layers.flow.planners import BASELINES, planners
from placewright.layers.flow.problem import FlowProblem
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


def portfolio(problem: FlowProblem) -> Sequence[str]:
    """What ``auto`` tries, in order."""
    return list(planners(problem))


def refined_bounds(problem: FlowProblem, known: BoundContext) -> Mapping[str, float]:
    """None: all bounds are quick."""
    return {}


def refined_s(problem: FlowProblem, limit_s: float) -> float:
    """None: all bounds are quick."""
    return 0.0


def objective(problem: FlowProblem) -> str:
    """Tokens per second."""
    return "throughput"


def baselines(problem: FlowProblem) -> Sequence[str]:
    """Rules that do not look at speeds, at links or at either."""
    return BASELINES


def rehearsals() -> Sequence[Callable[[], object]]:
    """None: kernels are few."""
    return ()
