"""Search: annealing on sequences and placements, judged."""

from __future__ import annotations

import math
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Event
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
    Sequenced,
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

ENOUGH = 7_000
"""Moves of a walk per operator; more of them is worth less than another walk."""

ROUNDS = 12
"""At most; a tiny problem has no use for more."""


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
    short. Two walks go side by side, on any number of cores. Ours; annealing after
    Kirkpatrick, Gelatt, Vecchi 1983 (doi 10.1126/science.220.4598.671).

    Parameters
    ----------
    effort
        Moves times operators, over all rounds: the default takes about ten seconds.
    first, growth
        Of the first round in the same unit, and from round to round.
    heats
        First temperature of each walk in turn, in mean operator times.
    on_judge
        Share of each round that is spent on the judge where the decoder is not exact.
    patience
        Rounds without a better plan after which it ends.
    """

    effort: float = 1e9
    first: float = 1e7
    growth: float = 3.0
    heats: tuple[float, ...] = (0.5, 0.15, 0.5, 1.0)
    on_judge: float = 0.06
    patience: int = 4

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
        budget, size, r, idle = self.effort, self.first, 0, 0
        try:
            while budget > 0 and idle < self.patience and not hunt.done():
                moves = max(1, int(min(size / problem.n / 2, ENOUGH * problem.n)))
                before = hunt.best.score
                self._round(hunt, moves, r)
                idle = 0 if hunt.best.score < before else idle + 1
                budget -= max(2 * moves * problem.n, self.effort / ROUNDS)
                size, r = size * self.growth, r + 1
                hunt.tell(f"round {r}")
        except KeyboardInterrupt:
            return hunt.best.plan(INTERRUPTED)
        return hunt.best.plan()

    def _round(self, hunt: _Hunt, moves: int, r: int) -> None:
        """Sequences first where that makes sense, then placements on the judge."""
        heats = [self.heats[(2 * r + k) % len(self.heats)] for k in range(2)]
        if hunt.orders is not None:
            _anneal_sequences(hunt, moves, heats, r)
        if hunt.orders is None:
            _anneal_placements(hunt, moves, heats[0], r)
        elif not hunt.exact:
            _anneal_placements(hunt, max(1, int(moves * self.on_judge)), heats[0], r)


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


def _anneal_sequences(hunt: _Hunt, moves: int, heats: list[float], r: int) -> None:
    """Walks over sequences from the best plan; their ends are judged in every dispatch."""
    orders, stop = hunt.orders, Event()
    assert orders is not None
    sequence, place = played_sequence(hunt.judge(hunt.best.plan())), hunt.best.place

    def walk(k: int) -> Sequenced:
        return orders.improve(
            sequence,
            place,
            moves=moves,
            heat=heats[k],
            seed=101 * hunt.context.seed + 2 * r + k,
            deadline_s=hunt.context.deadline_s,
            stop=stop,
        )

    with ThreadPoolExecutor(len(heats)) as pool:
        try:
            ends = list(pool.map(walk, range(len(heats))))
        except KeyboardInterrupt:
            stop.set()
            raise
    scores = [hunt.offer(plan) for end in ends for plan in _dispatches(end.place, end.sequence)]
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
