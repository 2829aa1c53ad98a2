"""Exact throughput and latency around host memory."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from placewright.arrays import IntArray
from placewright.errors import InfeasibleError, MissingDependencyError
from placewright.operators._star_latency import is_star_latency
from placewright.operators._star_loads import star_loads
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners._contraction import Contraction, contract
from placewright.operators.planners._free_cuts import best_cuts, too_large
from placewright.operators.planners._ideals import Chain
from placewright.operators.planners._solver import installed
from placewright.operators.planners._stages import best_stages
from placewright.operators.planners._trios import by_trios
from placewright.operators.planners.exact_latency import ExactLatency
from placewright.operators.planners.ideal_dp import NoProofError, over_ideals, proved
from placewright.operators.planners.linearised_dp import line_or_none
from placewright.operators.problem import OperatorProblem, star_throughput_only
from placewright.planning import Context

MISSING = "ortools is not installed (pip install 'placewright[exact]')"


@final
@dataclass(frozen=True, slots=True)
class Exact:
    """Optimal throughput, contiguous or not, and optimal latency.

    Latency is that of calls through host memory: see `ExactLatency`, which needs no solver.

    The model is that of Tarnawski et al., NeurIPS 2020, arXiv 2006.16423, section 5.1; they give
    a mixed-integer program for a commercial solver. Ours is built on the contracted graph
    (`_contraction`), of stage numbers (`_stages`), and starts from `LinearisedDp`. Where the
    forward graph has few ideals, `IdealDp` is faster and needs no solver. Where plans need not
    be contiguous, SCIP goes on from there with one variable per hyperedge and device instead of
    one for what goes in and one for what goes out (`_free_cuts`), before which and in the last
    quarter of the time three devices at a time are planned anew (`_trios`).

    What a solver claims is scored again. CP-SAT counts in whole numbers (bound rounded down by up
    to 1e-6 of the value), SCIP in floating point (bound lowered by 1e-7 of the start's value).

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
        """Throughput and latency through host memory."""
        if is_star_latency(problem):
            return ExactLatency().supports(problem)
        return star_throughput_only(problem)

    def __call__(self, problem: OperatorProblem, context: Context) -> OperatorPlan:
        """The plan, with what was proved.

        Raises
        ------
        InfeasibleError
            No plan fits the memories.
        MissingDependencyError
            OR-tools is needed for any plan at all and not installed.
        """
        if is_star_latency(problem):
            return ExactLatency()(problem, context)
        if problem.contiguous:
            return self._contiguous(problem, context)
        return self._free(problem, context)

    def _contiguous(self, problem: OperatorProblem, context: Context) -> OperatorPlan:
        c = contract(problem, contiguous=True)
        start = line_or_none(c, context.deadline_s)
        try:
            chain = over_ideals(c, start, self.few_ideals, context.deadline_s)
            return best_of(problem, [c.placement(chain.device)], proved(chain, problem.n))
        except NoProofError:
            if not installed():
                return _instead(problem, c, start)
        found, bound = best_stages(
            c, start, seed=context.seed, deadline_s=context.deadline_s, workers=self.workers
        )
        devices = [d for d in (found, None if start is None else start.device) if d is not None]
        return best_of(problem, [c.placement(d) for d in devices], bound)

    def _free(self, problem: OperatorProblem, context: Context) -> OperatorPlan:
        """From the best contiguous plan."""
        first = self._contiguous(problem, _sooner(context, 0.25))
        c = contract(problem, contiguous=False)
        if too_large(c) or not installed():
            why = "too large for SCIP" if installed() else MISSING
            return replace(first, lower_bound_s=0.0, note=f"{why}: a contiguous plan")
        start = np.empty(c.nodes, dtype=np.int64)
        start[c.node] = first.placement
        early, until = (_sooner(context, share).deadline_s for share in (0.15, 0.75))
        start = by_trios(problem, c, start, seed=context.seed, deadline_s=early)
        value = load_of(problem, c.placement(start))
        found, bound = best_cuts(c, start, value, seed=context.seed, deadline_s=until)
        places = [c.placement(start)] + ([] if found is None else [c.placement(found)])
        plan = best_of(problem, places, bound)
        if time.perf_counter() < until or found is None:
            return plan
        start = np.array(start)
        start[c.node] = plan.placement
        last = by_trios(problem, c, start, seed=context.seed, deadline_s=context.deadline_s)
        return best_of(problem, [plan.placement, c.placement(last)], bound)


def _instead(problem: OperatorProblem, c: Contraction, start: Chain | None) -> OperatorPlan:
    """The line's plan where no solver is installed."""
    if start is None:
        raise MissingDependencyError("ortools", extra="exact", purpose="a plan of this problem")
    return OperatorPlan(c.placement(start.device), note=f"{MISSING}: the line's plan")


def _sooner(context: Context, share: float) -> Context:
    """Less time."""
    now = time.perf_counter()
    return replace(context, deadline_s=now + (context.deadline_s - now) * share)


def load_of(problem: OperatorProblem, place: IntArray) -> float:
    """The largest load, ``inf`` where a memory overflows."""
    held = np.bincount(place, np.ceil(problem.resident_bytes), minlength=problem.m)
    if (held > problem.memory_bytes).any():
        return math.inf
    return float(star_loads(problem, place).load_s.max())


def best_of(problem: OperatorProblem, places: list[IntArray], bound: float) -> OperatorPlan:
    """The best of a solver's plans, scored again; a bound above it is an error and is dropped."""
    values = [load_of(problem, place) for place in places]
    if not values or min(values) == math.inf:
        raise InfeasibleError(
            "no plan that fits the memories was found",
            where=problem.name,
            by=f"{problem.resident_bytes.sum():.0f} resident bytes",
            hint="raise a memory limit, add a device, or allow more time",
        )
    best = int(np.argmin(values))
    sound = math.isfinite(bound) and bound <= values[best] * (1 + 1e-6)
    return OperatorPlan(places[best], lower_bound_s=min(bound, values[best]) if sound else 0.0)
