"""What `solve` needs of wing 3: planners, judge and bounds. `planners` is the list of planners."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from placewright.planning.contract import Planner
from placewright.planning.wings import with_plug_ins
from placewright.samples.bounds import bounds, refined_bounds
from placewright.samples.judge import judge
from placewright.samples.planners.lp import Ilp, Lp
from placewright.samples.planners.simple import Greedy, Nic, NoMove, Proportional
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

FEW_NODES = 12
"""Nodes up to which ``auto`` runs the integer program as well: it ends in seconds."""


def planners(problem: SampleProblem) -> Mapping[str, Planner]:
    """Every planner by name."""
    own: list[Planner] = [NoMove(), Proportional(), Nic(), Greedy(), Lp(), Ilp()]
    return with_plug_ins("samples", own)


def portfolio(problem: SampleProblem) -> Sequence[str]:
    """What ``auto`` tries, in order; the integer program only where it ends."""
    known = [name for name in planners(problem) if name != "ilp"]
    return [*known, "ilp"] if problem.n <= FEW_NODES else known


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
