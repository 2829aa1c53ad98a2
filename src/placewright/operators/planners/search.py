"""Search: annealing on sequences and placements, judged."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import Event
from typing import ClassVar, final

import numpy as np

from placewright.numerics.arrays import IntArray
from placewright.operators.costs import Groups, groups_of
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.lns import Lns
from placewright.operators.planners.placements import improve, score_plan
from placewright.operators.planners.sequences.search import (
    SearchState,
    Sequenced,
    dispatches,
    start_order,
    start_search_state,
)
from placewright.operators.problem import OperatorProblem, pairwise_only
from placewright.planning.contract import Context, Proposal, Share
from placewright.planning.wings import Judge
from placewright.solvers.programs import installed

ENOUGH = 200
"""Moves per operator from which a walk begins at full temperature; a shorter one begins cooler."""

LONGEST = 20_000
"""Most moves of a walk per operator; beyond them another walk gains more."""

FEW = 200
"""Operators up to which windows solved by CP-SAT gain as much as annealing."""

ROUNDS = 20
"""At most; a tiny problem has no use for more."""


@final
@dataclass(frozen=True, slots=True)
class Search:
    """Simulated annealing on sequences and placements; the best judged plan is kept.

    Starts from `Context.incumbent` or, without one, from the best list schedule. Rounds grow
    and alternate hot and cool. In each, sequences are annealed first (`sequences.moves`: one
    operator, its place in the sequence, a walk of connected ones; critical operators first), in
    windows where they are long (`sequences.moves`). Decoding them is what the judge does but for
    memory (`sequences.decode`); what comes out is judged in every dispatch. Where memories are
    limited or sequences make no sense, placements are annealed on the judge itself
    (`placements`: also stretches of the topological order, exchanges; bytes over the memories
    first).

    The work is fixed by `effort`: the same seed gives the same plan unless a deadline cuts it
    short; a walk that would not end before it is made shorter, so that it still cools. Two walks
    go side by side, on any number of cores. Ours; annealing after Kirkpatrick, Gelatt, Vecchi 1983
    (doi 10.1126/science.220.4598.671).

    With an objective of the caller's own, of which neither scale nor sign is known, placements are
    changed one after another and judged, accepted late (Burke, Bykov 2017,
    doi 10.1016/j.ejor.2016.07.012).

    Parameters
    ----------
    effort
        Operators decoded, over all rounds: the default takes about ten seconds.
    first, growth
        Of the first round in the same unit, and from round to round.
    heats
        First temperature of each walk in turn, in mean operator times.
    on_judge
        Share of each round that is spent on the judge where the decoder is not exact.
    patience
        Rounds without a better plan after which it ends.
    left_to_lns
        Share of the time to the deadline that is left to `Lns`, which continues from its plan in
        ``auto``; less of it above `FEW` operators, of which a window is a small part.
    """

    name: ClassVar[str] = "search"
    effort: float = 1e9
    first: float = 2e7
    growth: float = 3.0
    heats: tuple[float, ...] = (0.2, 0.05, 0.4, 0.1, 0.8, 0.2)
    on_judge: Share = 0.06
    patience: int = 8
    left_to_lns: Share = 0.3

    def unsupported_reason(self, problem: OperatorProblem) -> str | None:
        """Links between pairs of devices, plans that need not be contiguous."""
        if problem.contiguous:
            return "does not keep plans contiguous"
        return pairwise_only(problem)

    def __call__(self, problem: OperatorProblem, context: Context) -> Proposal[OperatorPlan]:
        """The best plan found; raises `InfeasibleError`: no start has a link for every tensor."""
        if context.objective is not None:
            return _by_own_objective(problem, context)
        left_s, relayed = context.remaining_s(), context.incumbent is not None
        if (
            relayed
            and math.isfinite(left_s)
            and installed("ortools")
            and not Lns().unsupported_reason(problem)
        ):
            kept_s = self.left_to_lns * min(1.0, FEW / problem.n) * left_s
            context = replace(context, deadline_s=context.deadline_s - kept_s)
        search_state = start_search_state(problem, context)
        budget, size, r, idle = self.effort, self.first, 0, 0
        rate = math.inf
        try:
            while budget > 0 and idle < self.patience and not search_state.done():
                before, began = search_state.best.score, time.perf_counter()
                work = min(size, budget)
                if math.isfinite(rate):  # not known yet: the deadline may have passed meanwhile
                    work = min(work, rate * context.remaining_s())
                done = self._round(search_state, work, r)
                rate = done / (time.perf_counter() - began) if r else math.inf
                idle = 0 if search_state.best.score < before else idle + 1
                budget -= max(done, self.effort / ROUNDS)
                size, r = max(size, min(size, done) * self.growth), r + 1
                search_state.report(f"round {r}")
        except KeyboardInterrupt:
            return Proposal(search_state.best.plan(), interrupted=True)
        return Proposal(search_state.best.plan())

    def _round(self, search_state: SearchState, work: float, r: int) -> float:
        """Anneal sequences where that applies, then placements on the judge; the work done."""
        heats = [self.heats[(2 * r + k) % len(self.heats)] for k in range(2)]
        done, on_judge = work, work / search_state.problem.n
        if search_state.orders is not None:
            done = 2 * _anneal_sequences(search_state, work / 2, heats, r)
            on_judge = 0.0 if search_state.exact else on_judge * self.on_judge
        if on_judge > 0:
            _anneal_placements(search_state, max(1, int(on_judge)), heats[0], r)
        return done


def _anneal_sequences(search_state: SearchState, work: float, heats: list[float], r: int) -> float:
    """Walks over sequences from the best plan; their ends are judged in every dispatch.

    Returns the work of one walk: less than `work` where it would exceed `LONGEST` moves per
    operator.
    """
    orders, stop = search_state.orders, Event()
    assert orders is not None
    n = search_state.problem.n
    wanted = orders.moves(work)
    moves = min(wanted, LONGEST * n)
    warmth = min(1.0, moves / (ENOUGH * n))
    place, began_s = search_state.best.place, time.perf_counter()
    sequence = start_order(search_state.judge(search_state.best.plan()))
    # The ends of the walks are judged in time, in every dispatch.
    judging_s = 3 * len(heats) * (search_state.judging_s or time.perf_counter() - began_s)
    deadline_s = search_state.context.deadline_s - judging_s

    def walk(k: int) -> Sequenced:
        return orders.improve(
            sequence,
            place,
            moves=moves,
            heat=heats[k] * warmth,
            seed=101 * search_state.context.seed + 2 * r + k,
            deadline_s=deadline_s,
            stop=stop,
        )

    with ThreadPoolExecutor(len(heats)) as pool:
        try:
            ends = list(pool.map(walk, range(len(heats))))
        except KeyboardInterrupt:
            stop.set()
            raise
    scores = [
        search_state.offer(plan) for end in ends for plan in dispatches(end.place, end.sequence)
    ]
    if min(scores).over_bytes > 0 and search_state.best.score.over_bytes == 0:
        search_state.orders = None
    return work * moves / wanted


def _anneal_placements(search_state: SearchState, moves: int, heat: float, r: int) -> None:
    """Walks on the judge from the best plan: with its order, cool, and without."""
    starts = [search_state.best]
    if search_state.best.order is not None:
        starts.append(score_plan(search_state.judge, OperatorPlan(search_state.best.place)))
    for k, start in enumerate(starts):
        found = improve(
            search_state.judge,
            search_state.groups,
            start,
            moves=max(1, moves // len(starts)),
            heat=heat / 5,
            seed=101 * search_state.context.seed + 7919 * (k + 1) + r,
            deadline_s=search_state.context.deadline_s,
        )
        if found.score < search_state.best.score:
            search_state.best = found


HISTORY = 50
"""A move is accepted where it is no worse than what there was so many moves before."""

TRIES, LEAST_TRIES = 20, 1000
"""Moves without a better plan after which a search by an objective of the caller's own ends: for
each group and device, and at least."""


def _by_own_objective(problem: OperatorProblem, context: Context) -> Proposal[OperatorPlan]:
    judge, groups = Judge(problem, context.objective), groups_of(problem)
    start = start_search_state(problem, context).best.plan()
    at, best = start.placement[groups.first], start
    value = best_value = float(judge.many([start])[0])
    before, idle = [value] * HISTORY, 0
    limit = max(LEAST_TRIES, TRIES * groups.allowed.size)
    try:
        for k, near in enumerate(_moves(problem, groups, np.random.default_rng(context.seed))):
            if idle >= limit or context.remaining_s() <= 0:
                break
            place, idle = np.where(near < 0, at, near), idle + 1
            plan = OperatorPlan(place[groups.group])
            found = float(judge.many([plan])[0])
            if found < best_value:
                best, best_value, idle = plan, found, 0
            if found <= max(value, before[k % HISTORY]):
                at, value = place, found
            before[k % HISTORY] = value
    except KeyboardInterrupt:
        return Proposal(best, interrupted=True)
    return Proposal(best)


def _moves(
    problem: OperatorProblem, groups: Groups, rng: np.random.Generator
) -> Iterator[IntArray]:
    """Shape (groups,) each: new devices, -1 where nothing changes.

    Of one group, or of all that make and read a tensor.
    """
    while True:
        near = np.full(len(groups.first), -1)
        device = int(rng.integers(problem.m))
        moved = np.array([rng.integers(len(near))])
        if problem.t and rng.random() < 0.3:
            tensor = int(rng.integers(problem.t))
            ends = [problem.tensor_producer[tensor], *problem.readers(tensor)]
            moved = groups.group[ends]
        near[moved[groups.allowed[moved, device]]] = device
        yield near
