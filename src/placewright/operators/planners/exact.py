"""Exact throughput around host memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from placewright.arrays import IntArray
from placewright.errors import InfeasibleError
from placewright.operators._star_loads import star_loads
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners._contraction import Contraction, contract
from placewright.operators.planners._solver import require_ortools
from placewright.operators.planners._stages import best_stages
from placewright.operators.planners.ideal_dp import NoProofError, over_ideals, proved
from placewright.operators.planners.linearised_dp import line_or_none
from placewright.operators.problem import OperatorProblem, star_throughput_only
from placewright.planning import Context


@final
@dataclass(frozen=True, slots=True)
class Exact:
    """Optimal throughput by CP-SAT (contiguous plans).

    The model is that of Tarnawski et al., NeurIPS 2020, arXiv 2006.16423, section 5.1; they give
    a mixed-integer program for a commercial solver. Ours is built on the contracted graph
    (`_contraction`), of stage numbers (`_stages`), and starts from `LinearisedDp`. Where the
    forward graph has few ideals, `IdealDp` is faster and needs no solver.

    The same seed gives the same plan where the search ends before the deadline.

    Parameters
    ----------
    few_ideals
        Up to so many, dynamic programming over ideals comes before CP-SAT.
    workers
        Threads of the solver.
    """

    few_ideals: int = 20_000
    workers: int = 1

    @property
    def name(self) -> str:
        """``exact``."""
        return "exact"

    def supports(self, problem: OperatorProblem) -> str | None:
        """Throughput through host memory."""
        return star_throughput_only(problem)

    def __call__(self, problem: OperatorProblem, context: Context) -> OperatorPlan:
        """The plan, with what was proved.

        Raises
        ------
        InfeasibleError
            No plan fits the memories.
        MissingDependencyError
            OR-tools is not installed.
        """
        require_ortools(f"planner {self.name!r}")
        return self._contiguous(problem, context)

    def _contiguous(self, problem: OperatorProblem, context: Context) -> OperatorPlan:
        c = contract(problem, contiguous=True)
        start = line_or_none(c, context.deadline_s)
        try:
            chain = over_ideals(c, start, self.few_ideals, context.deadline_s)
            return best_of(problem, c, [chain.device], proved(chain, problem.n))
        except NoProofError:
            pass
        found, bound = best_stages(
            c,
            start,
            seed=context.seed,
            deadline_s=context.deadline_s,
            workers=self.workers,
        )
        devices = [d for d in (found, None if start is None else start.device) if d is not None]
        return best_of(problem, c, devices, bound)


def best_of(
    problem: OperatorProblem, c: Contraction, devices: list[IntArray], bound: float
) -> OperatorPlan:
    """The best by the judge's arithmetic; a bound above it is a solver's error and is dropped."""
    if not devices:
        raise InfeasibleError("no plan that fits the memories was found", where=problem.name)
    places = [c.placement(d) for d in devices]
    values = [float(star_loads(problem, place).load_s.max()) for place in places]
    best = int(np.argmin(values))
    proved = bound if math.isfinite(bound) and bound <= values[best] * (1 + 1e-9) else 0.0
    return OperatorPlan(places[best], lower_bound_s=min(proved, values[best]))
