"""Search: annealing on sequences and placements, judged."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import final

import numpy as np

from placewright.arrays import IntArray
from placewright.errors import InfeasibleError
from placewright.operators._groups import Groups, groups_of
from placewright.operators.judge import Judge
from placewright.operators.plan import Dispatch, OperatorPlan
from placewright.operators.planners._local_search import Score, Start, improve, score_plan
from placewright.operators.planners._order_search import (
    OrderSearch,
    fully_linked,
    played_sequence,
)
from placewright.operators.planners._variants import LISTED
from placewright.operators.planners.single import Single
from placewright.operators.problem import (
    Links,
    Objective,
    OperatorProblem,
    Overlap,
    pairwise_only,
)
from placewright.planning import INTERRUPTED, Context, Planner

ENOUGH = 300
"""Moves of a round per pair of operators; a tiny problem has no use for more."""


@final
@dataclass(frozen=True, slots=True)
class Search:
    """Simulated annealing that never forgets the best plan, and never trusts a surrogate.

    Starts from `Context.incumbent` or, without one, from the best list schedule. Rounds grow
    and alternate hot and cool. In each, sequences are annealed first (`_order_moves`: one
    operator, its place in the sequence, a walk of connected ones; critical operators first) -
    exact where transfers do not wait, a surrogate where they do - and what comes out is judged
    in every dispatch. Where the surrogate is not exact, placements are then annealed on the judge
    itself (`_local_moves`: also stretches of the topological order, exchanges; bytes over the
    memories first).

    The work is fixed by `effort`: the same seed gives the same plan unless a deadline cuts it
    short. Ours; annealing after Kirkpatrick, Gelatt, Vecchi 1983
    (doi 10.1126/science.220.4598.671).

    Parameters
    ----------
    effort
        Moves times operators, over all rounds: the default takes about ten seconds.
    first, growth, longest
        Of the first round, from round to round, and at most, in the same unit.
    heats
        First temperature of each round in turn, in mean operator times.
    on_judge
        Share of each round that is spent on the judge where the decoder is not exact.
    """

    effort: float = 1e9
    first: float = 1e7
    growth: float = 3.0
    longest: float = 3e8
    heats: tuple[float, ...] = (0.5, 1.0, 0.25)
    on_judge: float = 0.06

    @property
    def name(self) -> str:
        """``search``."""
        return "search"

    def supports(self, problem: OperatorProblem) -> str | None:
        """Links between pairs of devices, plans that need not be contiguous."""
        if problem.contiguous:
            return "does not keep plans contiguous"
        return pairwise_only(problem)

    def __call__(self, problem: OperatorProblem, context: Context) -> OperatorPlan:
        """The best plan met.

        Raises
        ------
        InfeasibleError
            No start has a link for every tensor.
        """
        hunt = _hunt(problem, context)
        budget, size, r = self.effort, self.first, 0
        try:
            while budget > 0 and not hunt.done():
                self._round(hunt, min(size, budget), self.heats[r % len(self.heats)], r)
                budget, size, r = budget - size, min(size * self.growth, self.longest), r + 1
                hunt.tell(f"round {r}")
        except KeyboardInterrupt:
            return hunt.best.plan(INTERRUPTED)
        return hunt.best.plan()

    def _round(self, hunt: _Hunt, size: float, heat: float, r: int) -> None:
        """Sequences first where that makes sense, then placements on the judge."""
        n = hunt.problem.n
        moves = max(1, int(min(size / n, ENOUGH * n * n)))
        if hunt.orders is not None:
            _anneal_sequences(hunt, moves, heat, r)
        if hunt.orders is None or not hunt.exact:
            share = moves if hunt.orders is None else int(moves * self.on_judge)
            _anneal_placements(hunt, max(1, share // 4 if hunt.orders is None else share), heat, r)


@dataclass(slots=True)
class _Hunt:
    """The problem laid out, and the best plan so far.

    `orders` is ``None`` where sequences make no sense: serial, throughput, missing links, or
    memories that sequences have turned out not to keep.
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
        """Out of time, or nothing better exists."""
        closed = self.best.score.over_bytes == 0 and (
            self.best.score.value_s <= self.context.lower_bound
        )
        return closed or self.context.remaining_s() <= 0

    def offer(self, plan: OperatorPlan) -> Score:
        """Judge a plan, keep it if it is better."""
        start = score_plan(self.judge, plan)
        if start.score < self.best.score:
            self.best = start
        return start.score

    def tell(self, what: str) -> None:
        """Progress."""
        self.context.progress(
            what=what,
            value=self.best.score.value_s if self.best.score.over_bytes == 0 else math.inf,
            lower_bound=self.context.lower_bound,
            elapsed_s=time.perf_counter() - self.begun_s,
        )


def _hunt(problem: OperatorProblem, context: Context) -> _Hunt:
    judge, groups = Judge(problem), groups_of(problem)
    best = _first(problem, judge, context)
    parallel = problem.overlap is Overlap.PARALLEL
    sequences = parallel and problem.objective is Objective.LATENCY and problem.m > 1
    orders = OrderSearch(problem, groups) if sequences and fully_linked(problem) else None
    limited = bool(np.isfinite(problem.memory_bytes).any())
    exact = problem.links is Links.FREE and not limited
    return _Hunt(problem, context, judge, groups, best, orders, exact)


def _first(problem: OperatorProblem, judge: Judge, context: Context) -> Start:
    """The incumbent, or the best of the list schedules and single devices."""
    if context.incumbent is not None:
        return score_plan(judge, context.incumbent)
    planners: list[Planner] = [*LISTED, *(Single(device) for device in problem.device_names)]
    found = []
    for planner in planners:
        if planner.supports(problem) is not None:
            continue
        try:
            found.append(score_plan(judge, planner(problem, context)))
        except InfeasibleError:
            continue  # no link for some tensor: another start may still have a way
    if not found:
        raise InfeasibleError(
            "no plan found to start from", where=problem.name, hint="add links, or drop pins"
        )
    return min(found, key=lambda start: start.score)


def _anneal_sequences(hunt: _Hunt, moves: int, heat: float, r: int) -> None:
    """A walk over sequences from the best plan; its end is judged in every dispatch."""
    assert hunt.orders is not None
    played = hunt.judge(hunt.best.plan())
    found = hunt.orders.improve(
        played_sequence(played),
        hunt.best.place,
        moves=moves,
        heat=heat,
        seed=101 * hunt.context.seed + r,
        deadline_s=hunt.context.deadline_s,
    )
    scores = [hunt.offer(plan) for plan in _dispatches(found.place, found.sequence)]
    if min(scores).over_bytes > 0 and hunt.best.score.over_bytes == 0:
        hunt.orders = None


def _dispatches(place: IntArray, sequence: IntArray) -> list[OperatorPlan]:
    """In order, by priority, and as the judge would have it."""
    return [
        OperatorPlan(place, sequence, Dispatch.IN_ORDER),
        OperatorPlan(place, sequence),
        OperatorPlan(place),
    ]


def _anneal_placements(hunt: _Hunt, moves: int, heat: float, r: int) -> None:
    """Walks on the judge from the best plan: with its order, cool, and without."""
    starts = [hunt.best]
    if hunt.best.order is not None:
        starts.append(score_plan(hunt.judge, OperatorPlan(hunt.best.place)))
    for k, start in enumerate(starts):
        found = improve(
            hunt.judge,
            hunt.groups,
            start,
            moves=max(1, moves // len(starts)),
            heat=heat / 5,
            seed=101 * hunt.context.seed + 7919 * (k + 1) + r,
            deadline_s=hunt.context.deadline_s,
        )
        if found.score < hunt.best.score:
            hunt.best = found
