"""Local search on placements: chunks of moves, cooling schedule, deadline."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray, thawed
from placewright.operators.judge import Judge
from placewright.operators.plan import Dispatch, OperatorPlan
from placewright.operators.planners.annealing import group_members
from placewright.operators.planners.placements.moves import (
    BEST_OVER,
    BEST_VALUE,
    EVALUATED,
    TEMPERATURE,
    PlacementInstance,
    anneal_moves,
    begin,
    list_critical,
)
from placewright.operators.problem import Objective, OperatorProblem
from placewright.operators.simulation.inputs import default_order
from placewright.operators.sizes import home_bytes
from placewright.operators.structure.groups import Groups

CHUNK = 48
"""Moves between two looks at the clock and at the critical path."""

BLOCK = 4096
"""Placements that are scored together."""

COLDEST = 1e-2
"""The last temperature, as a share of the first."""


class Score(NamedTuple):
    """Bytes over the memories first, then seconds: less is better."""

    over_bytes: float
    value_s: float


@dataclass(frozen=True, slots=True, eq=False)
class Start:
    """A placement with its score; `order`, `dispatch` and `call` as in a plan."""

    place: IntArray
    score: Score
    order: IntArray | None = None
    dispatch: Dispatch = Dispatch.READY
    call: IntArray | None = None

    def plan(self) -> OperatorPlan:
        """As a plan."""
        return OperatorPlan(self.place, self.order, self.dispatch, self.call)


def score_all(judge: Judge, places: list[IntArray]) -> list[Start]:
    """Judge placements without an order; best first."""
    if not places:
        return []
    values, over = judge.many(np.stack(places))
    scores = [Score(float(o), float(v)) for v, o in zip(values, over, strict=True)]
    return [Start(p, s) for p, s in zip(places, scores, strict=True)]


def score_plan(judge: Judge, plan: OperatorPlan) -> Start:
    """Judge a plan with its order.

    Raises `InfeasibleError`: a tensor has no link.
    """
    judgement = judge(plan)
    score = Score(float(judgement.violation_bytes), float(judgement.value))
    return Start(plan.placement, score, plan.order, plan.dispatch, plan.call)


def improve(
    judge: Judge,
    groups: Groups,
    start: Start,
    *,
    moves: int,
    heat: float,
    seed: int,
    deadline_s: float = math.inf,
) -> Start:
    """The best placement found on a walk of about `moves` moves from `start`.

    Where there are no more placements than moves, the best of all of them.

    `heat`: first temperature, in mean operator times. It falls to a hundredth along the walk.
    """
    with np.errstate(over="ignore"):  # infinitely many, as good as
        placements = np.prod(groups.allowed.sum(axis=1), dtype=np.float64)
    if placements <= moves:
        return _best_of_all(judge, groups, start, deadline_s)
    instance, simulator = _instance(judge, groups, start), judge.full
    score = (start.score.value_s, start.score.over_bytes)
    walk = begin(len(groups.allowed), judge.problem.m, start.place, score, seed)
    walk.score[TEMPERATURE] = heat * mean_operator_s(judge.problem)
    cooling = COLDEST ** (1.0 / max(1, moves))
    while walk.counts[EVALUATED] < moves and time.perf_counter() < deadline_s:
        done = int(walk.counts[EVALUATED])
        list_critical(instance, simulator, walk)
        anneal_moves(instance, *simulator, walk, min(CHUNK, moves - done), cooling)
        # Only the simulation of `list_critical` was counted: no move changes anything any more.
        if walk.counts[EVALUATED] <= done + 1:
            break
    best = Score(float(walk.score[BEST_OVER]), float(walk.score[BEST_VALUE]))
    return Start(walk.best.copy(), best, start.order, start.dispatch)


def _best_of_all(judge: Judge, groups: Groups, start: Start, deadline_s: float) -> Start:
    """The start, or the first of the placements that are best under its order, if it is better."""
    devices, best = [np.flatnonzero(row) for row in groups.allowed], start
    # Those with a single device have no digit: NumPy counts in at most 64 of them.
    free = [g for g, each in enumerate(devices) if len(each) != 1]
    single = np.array([each[0] if len(each) else 0 for each in devices])
    sizes = [len(devices[g]) for g in free]
    count = math.prod(sizes)
    for first in range(0, count, BLOCK):
        if time.perf_counter() >= deadline_s:
            break
        block = np.arange(first, min(first + BLOCK, count))
        columns = np.tile(single, (len(block), 1))
        for g, digit in zip(free, np.unravel_index(block, sizes) if free else (), strict=True):
            columns[:, g] = devices[g][digit]
        places = columns[:, groups.group]
        values, over = judge.many(places, start.order, start.dispatch)
        k = np.lexsort((values, over))[0]
        score = Score(float(over[k]), float(values[k]))
        if score < best.score:
            best = Start(places[k], score, start.order, start.dispatch)
    return best


def mean_operator_s(problem: OperatorProblem) -> float:
    """Mean run time over operators and the devices that can run them."""
    return float(problem.compute_s[np.isfinite(problem.compute_s)].mean())


def _instance(judge: Judge, groups: Groups, start: Start) -> PlacementInstance:
    problem = judge.problem
    group_start, members = group_members(groups.group, len(groups.allowed))
    neighbour_start, neighbours = _neighbours(problem)
    return PlacementInstance(
        fast=judge.fast,
        mode=judge.mode(start.dispatch, memory=bool(np.isfinite(problem.memory_bytes).any())),
        throughput=problem.objective is Objective.THROUGHPUT,
        group=groups.group,
        group_start=group_start,
        members=members,
        neighbour_start=neighbour_start,
        neighbours=neighbours,
        allowed=groups.allowed,
        topological=problem.topology.order,
        position=np.argsort(problem.topology.order),
        order=default_order(problem) if start.order is None else thawed(start.order),
    )


def _neighbours(problem: OperatorProblem) -> tuple[IntArray, IntArray]:
    """CSR: producers and consumers of every operator, by number, each once per tensor."""
    producer = problem.tensor_producer[problem.consumed]
    own = np.concatenate([producer, problem.consumers])
    other = np.concatenate([problem.consumers, producer])
    by = np.lexsort((other, own))
    return np.searchsorted(own[by], np.arange(problem.n + 1)), other[by]


def operator_bytes(problem: OperatorProblem) -> FloatArray:
    """Shape (n,): resident bytes and what an operator makes."""
    made = np.bincount(problem.tensor_producer, home_bytes(problem), problem.n)
    return problem.resident_bytes + made
