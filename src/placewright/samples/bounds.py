"""What no plan of wing 3 can beat.

**balance**. Without links in the way, samples could be anywhere. If the training ends at T, node
i has held at most ``(T - fixed_i) / work_i`` samples, at most its storage, and at least what it
must keep; all of them together hold all samples. The least such T, found by bisection, is a lower
bound for proportional batches, and for equal ones too, where a node trains no faster.

**lp**. Every limit and time of the judge, with ideal ports, is a linear row over the moves (equal
batches: an epoch takes ``sum_r (c_r - c_(r+1)) M_r``, nodes from the slowest on, M_r the most
samples among the first r). The plan's moves satisfy them, so the linear optimum is a lower bound;
queued ports only add to the transfers. What is returned is Lagrange's bound of multipliers that
were made to add up: see `placewright.samples.relaxation.generation`. Late: it takes seconds.
"""

from __future__ import annotations

import time

import numpy as np

from placewright.errors import InfeasibleError, MissingDependencyError
from placewright.planning.contract import BoundContext
from placewright.samples.problem import SampleProblem
from placewright.samples.relaxation.columns import begun, relaxation

HALVINGS = 100

SUMMED = 1e-9
"""Taken off: the judge sums in another order."""


def bounds(problem: SampleProblem) -> dict[str, float]:
    """Quick lower bounds by name, seconds."""
    return {"balance": _balance_s(problem) * (1 - SUMMED) + problem.epochs * problem.sync_s}


def refined_bounds(problem: SampleProblem, known: BoundContext | None = None) -> dict[str, float]:
    """The relaxation's bound, where HiGHS is installed; as good as the time allows.

    Raises `InfeasibleError`: no plan keeps every limit, and none that does is known.
    """
    deadline_s = np.inf if known is None else known.deadline_s
    if time.perf_counter() > deadline_s and not begun(problem):
        return {}
    try:
        return {"lp": relaxation(problem, deadline_s).lower_bound_s}
    except MissingDependencyError:
        return {}
    except InfeasibleError:
        if known is None or np.isinf(known.value):
            raise
        return {}  # the judge has seen one


def _balance_s(problem: SampleProblem) -> float:
    fixed, keep = problem.epochs * problem.fixed_s, problem.keep.sum(axis=1)
    total = int(problem.held.sum())
    low = float((problem.work_s * keep + fixed).max())
    high = max(low, float((problem.work_s * total + fixed).max()))
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        with np.errstate(divide="ignore", invalid="ignore"):
            hold = np.where(problem.work_s > 0, (middle - fixed) / problem.work_s, np.inf)
        if np.minimum(hold, problem.storage).sum() < total:
            low = middle
        else:
            high = middle
    return low
