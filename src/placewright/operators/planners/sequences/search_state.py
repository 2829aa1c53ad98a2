"""State of a search on sequences: prepared problem, best plan, deadline."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

import numpy as np

from placewright.errors import InfeasibleError
from placewright.numerics.arrays import IntArray
from placewright.operators.judge import Judge
from placewright.operators.plan import Dispatch, OperatorPlan
from placewright.operators.planners.placements.search import Score, Start, score_plan
from placewright.operators.planners.pricing.candidates import LIST_SCHEDULERS
from placewright.operators.planners.sequences.search import OrderSearch, fully_linked
from placewright.operators.planners.trivial import Single
from placewright.operators.problem import Objective, OperatorProblem, Overlap
from placewright.operators.structure.groups import Groups, groups_of
from placewright.planning.contract import Context, Planner, proposal_of


@dataclass(slots=True)
class SearchState:
    """The problem laid out, and the best plan so far.

    `orders` is ``None`` where sequences make no sense: serial, throughput, missing links, or
    memories that sequences have turned out not to keep. `exact` says that decoding them is what
    the judge does: no memory is limited.
    """

    problem: OperatorProblem
    context: Context
    judge: Judge
    groups: Groups
    best: Start
    orders: OrderSearch | None = None
    exact: bool = False
    begun_s: float = field(default_factory=time.perf_counter)

    def done(self) -> bool:
        """Whether the deadline has passed or the bound is reached."""
        closed = self.best.score.over_bytes == 0 and (self.best.score.value_s <= self.context.bound)
        return closed or self.context.remaining_s() <= 0

    def offer(self, plan: OperatorPlan) -> Score:
        """Judge a plan; it becomes the best one if its value is lower."""
        start = score_plan(self.judge, plan)
        if start.score < self.best.score:
            self.best = start
        return start.score

    def report(self, what: str) -> None:
        """Report progress with the best value so far."""
        self.context.progress(
            what=what,
            value=self.best.score.value_s if self.best.score.over_bytes == 0 else math.inf,
            bound=self.context.bound,
            elapsed_s=time.perf_counter() - self.begun_s,
        )


def start_search_state(problem: OperatorProblem, context: Context) -> SearchState:
    """From the incumbent or, without one, the best list schedule or single device.

    Raises `InfeasibleError` (no start has a link for every tensor).
    """
    judge, groups = Judge(problem), groups_of(problem)
    best = _first(problem, judge, context)
    parallel = problem.overlap is Overlap.PARALLEL
    sequences = parallel and problem.objective is Objective.LATENCY and problem.m > 1
    orders = OrderSearch(problem, groups) if sequences and fully_linked(problem) else None
    exact = not np.isfinite(problem.memory_bytes).any()
    return SearchState(problem, context, judge, groups, best, orders, exact)


def _first(problem: OperatorProblem, judge: Judge, context: Context) -> Start:
    """The incumbent, or the best of the list schedules and single devices."""
    if context.incumbent is not None:
        return score_plan(judge, context.incumbent)
    planners: list[Planner] = [
        *LIST_SCHEDULERS,
        *(Single(device) for device in problem.device_names),
    ]
    found = []
    for planner in planners:
        if planner.unsupported_reason(problem) is not None:
            continue
        try:
            found.append(score_plan(judge, proposal_of(planner(problem, context)).plan))
        except InfeasibleError:
            continue  # no link for some tensor: another start may still have a way
    if not found:
        raise InfeasibleError(
            "no plan found to start from", where=problem.name, hint="add links, or drop pins"
        )
    return min(found, key=lambda start: start.score)


def dispatches(place: IntArray, sequence: IntArray) -> list[OperatorPlan]:
    """A sequence under every dispatch rule: in order, by priority, and the default order."""
    return [
        OperatorPlan(place, sequence, Dispatch.IN_ORDER),
        OperatorPlan(place, sequence),
        OperatorPlan(place),
    ]
