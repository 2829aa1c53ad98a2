"""What `solve` needs of wing 4: planners, judge and bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from placewright.errors import MissingDependencyError
from placewright.planning.contract import BoundContext
from placewright.requests.bounds import MOST_REQUESTS, bounds, fluid_bounds, windows
from placewright.requests.bounds import refined_bounds as relaxed_bounds
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
    "rehearsals",
]


def refined_s(problem: RequestProblem, limit_s: float) -> float:
    """A tenth: the fluid program is solved after the policies."""
    return limit_s / 10


def refined_bounds(
    problem: RequestProblem, known: BoundContext | None = None
) -> Iterator[tuple[str, float]]:
    """The fluid bound; but for ``auto`` also the Lagrangian one and, for few requests, windows'."""
    if known is not None and known.auto:  # the others take longer than every policy together
        yield from fluid_bounds(problem)
        return
    yield from relaxed_bounds(problem, known)
    if len(problem.stream) <= MOST_REQUESTS:
        limit_s = float("inf") if known is None else known.deadline_s
        with suppress(MissingDependencyError):
            yield "windows", windows(problem, limit_s)


def objective(problem: RequestProblem) -> str:
    """Effective accuracy."""
    return problem.objective


def baselines(problem: RequestProblem) -> Sequence[str]:
    """Policies that know no variants or no deadlines."""
    return list(BASELINES)


def rehearsals() -> Sequence[Callable[[], object]]:
    """None: kernels are few."""
    return ()
